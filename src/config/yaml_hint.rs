//! Hints for a text that is not YAML.

/// The hint for `error`, which the parser reported at `line` (from 1; 0: unknown) of `text`. The usual causes are a
/// tab, a `${...}` without quotes, and the indentation.
pub fn hint(text: &str, line: usize, error: &str) -> Option<&'static str> {
    if error.contains(" tab") || error.starts_with("tabs ") {
        return Some("indent with spaces: YAML takes no tabs");
    }
    let lines: Vec<&str> = text.lines().take(line).filter(|line| !line.trim().is_empty()).collect();
    let [.., at] = lines[..] else { return None };
    if has_unquoted_expansion(at) {
        return Some("within braces and brackets, put text with `${...}` in quotes");
    }
    let about_keys = ["expected key", "mapping values", "indentation"];
    let [.., before, at] = lines[..] else { return None };
    let [outer, inner] = [before, at].map(|line| line.len() - line.trim_start().len());
    if outer == inner || !about_keys.iter().any(|part| error.contains(part)) {
        return None;
    }
    // The line below a key without a value is indented correctly.
    if inner > outer && before.trim_end().ends_with(':') {
        return Some("put text with `: ` in quotes");
    }
    Some("check the indentation: all keys of a mapping begin in the same column")
}

/// Whether a flow mapping or list of `line` holds a `${` outside of quotes.
fn has_unquoted_expansion(line: &str) -> bool {
    let (mut quote, mut depth) = (None, 0_u32);
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '$') if characters.peek() == Some(&'{') && depth > 0 => return true,
            (None, '{' | '[') => depth += 1,
            (None, '}' | ']') => depth = depth.saturating_sub(1),
            (None, '#') => return false,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTES: &str = "put text with `: ` in quotes";
    const INDENTATION: &str = "check the indentation: all keys of a mapping begin in the same column";
    const BRACES: &str = "within braces and brackets, put text with `${...}` in quotes";

    #[test]
    fn a_hint_fits_to_the_line_and_the_one_before() {
        let keys = "mapping values are not allowed here";
        for (text, error, expected) in [
            ("a:\n  b: c: d", keys, Some(QUOTES)),
            ("  a: 1\nb: 2", keys, Some(INDENTATION)),
            ("a: 1\n  b: 2", keys, Some(INDENTATION)),
            // The line before ends with a colon, but this one is less indented.
            ("  a:\nb: c: d", keys, Some(INDENTATION)),
            ("  a: 1\n  b: c: d", keys, None),
            ("a:\n  b: c", "another error", None),
            ("a: 1", keys, None),
            ("a:\n\tb: 1", "found a tab", Some("indent with spaces: YAML takes no tabs")),
            ("a: { b: ${C} }", "another error", Some(BRACES)),
        ] {
            assert_eq!(hint(text, text.lines().count(), error), expected, "{text:?}");
        }
    }

    #[test]
    fn an_expansion_is_found_outside_of_quotes_within_braces() {
        for (line, expected) in [
            ("a: { b: ${C} }", true),
            ("a: [${C}]", true),
            ("a: ${C}", false),
            ("a: { b: \"${C}\" }", false),
            ("a: { b: \"it's ${C}\" }", false),
            ("a: { b: 'c', d: ${E} }", true),
            ("a: {} # ${C}", false),
            ("a: [] ${C}", false),
        ] {
            assert_eq!(has_unquoted_expansion(line), expected, "{line}");
        }
    }
}
