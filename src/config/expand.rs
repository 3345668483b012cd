//! Expands `${VAR}`, `${VAR:-default}` and `${file:/path}` in text values; `$${` is a literal `${`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Maximum bytes of a file with a value or with settings. A larger one is another kind of file.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// The text of a file of the configuration.
pub fn read_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("it has more than 16 MiB"));
    }
    Ok(text)
}

/// Expands one value at a time, so the content of a variable or file is neither read as YAML nor expanded again. As in
/// a shell, `:-` also replaces an empty variable. A default ends at the first `}`.
///
/// # Errors
/// The text to show. It names variables and files, not their content.
pub fn expand(text: &str, env: &BTreeMap<String, String>) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if let Some(before) = rest[..start].strip_suffix('$') {
            expanded += before;
            expanded += "${";
            rest = &rest[start + 2..];
            continue;
        }
        expanded += &rest[..start];
        let (inner, after) =
            rest[start + 2..].split_once('}').ok_or("has a `${` without its `}`; write `$${` for a plain `${`")?;
        expanded += &value(inner, env)?;
        rest = after;
    }
    Ok(expanded + rest)
}

fn value(inner: &str, env: &BTreeMap<String, String>) -> Result<String, String> {
    if let Some(path) = inner.strip_prefix("file:") {
        let text = read_file(Path::new(path));
        let mut text = text.map_err(|error| format!("names the file `{path}`: {error}"))?;
        if text.ends_with('\n') {
            text.truncate(text.len() - 1);
        }
        return Ok(text);
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.bytes().all(valid) {
        return Err("has a `${...}` that is neither `${VAR}`, `${VAR:-default}` nor `${file:/path}`".into());
    }
    match (env.get(name), default) {
        (Some(value), None) => Ok(value.clone()),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value.clone()),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!("names the environment variable `{name}`, which is not set")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let env = [("A", "one"), ("NESTED", "${A}"), ("EMPTY", "")];
        expand(text, &env.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }

    #[test]
    fn variables_defaults_and_escapes_expand_once() {
        for (text, result) in [
            ("plain $A $ }", "plain $A $ }"),
            ("<${A}${A}>", "<oneone>"),
            ("${NESTED}", "${A}"),
            ("${B:-two}", "two"),
            ("${EMPTY:-two}", "two"),
            ("${A:-two}", "one"),
            ("${EMPTY}", ""),
            ("${B:-}", ""),
            ("$${A}", "${A}"),
            ("é$${é${A}é", "é${éoneé"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(result), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_expanded_is_named() {
        for (text, part) in [
            ("${B}", "`B`"),
            ("${A", "without its `}`"),
            ("${}", "neither"),
            ("${1A}", "neither"),
            ("${file:/does/not/exist}", "`/does/not/exist`"),
        ] {
            let error = expanded(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MAX_FILE_BYTES).unwrap();
        assert_eq!(read_file(file.path()).unwrap().len() as u64, MAX_FILE_BYTES);
        file.as_file().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert_eq!(read_file(file.path()).unwrap_err().to_string(), "it has more than 16 MiB");
    }

    #[test]
    fn a_file_loses_one_newline_at_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "${A}: \n\n").unwrap();
        assert_eq!(expanded(&format!("${{file:{}}}", file.path().display())).as_deref(), Ok("${A}: \n"));
    }
}
