//! Splits a text at its placeholders, and fills them in.

use std::fmt;

use super::allow::{Pattern, PatternToken};
use crate::message::{Metadata, check_header_name};

/// The placeholders and the escape of a brace, for errors.
pub const KNOWN: &str =
    "known: {key}, {route}, {header:NAME}; a brace that is meant as such is doubled, `{{jobs}}` for `{jobs}`";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Literal(String),
    Value(Placeholder),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placeholder {
    Key,
    Route,
    /// The name of a header, in any case.
    Header(String),
}

impl Placeholder {
    fn parse(inner: &str) -> Result<Self, String> {
        match inner.split_once(':') {
            None if inner == "key" => Ok(Self::Key),
            None if inner == "route" => Ok(Self::Route),
            // Messages have no reserved headers.
            Some(("header", name)) => check_header_name(name).map(|()| Self::Header(name.to_owned())),
            _ => Err(format!("`{{{}}}` is no placeholder; {KNOWN}", inner.escape_debug())),
        }
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str("`key`"),
            Self::Route => f.write_str("`route`"),
            Self::Header(name) => write!(f, "header `{name}`"),
        }
    }
}

/// Literals and placeholders. Adjacent literals are joined.
///
/// # Errors
/// The error text, with the known placeholders.
pub fn parse(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        let found = &rest[at..];
        if found.starts_with("{{") || found.starts_with("}}") {
            literal.push_str(&found[..1]);
            rest = &found[2..];
            continue;
        }
        let inner = found.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let Some((inner, behind)) = inner else {
            return Err(format!("has a single `{}`; {KNOWN}", &found[..1]));
        };
        let placeholder = Placeholder::parse(inner)?;
        if !literal.is_empty() {
            parts.push(Part::Literal(std::mem::take(&mut literal)));
        }
        parts.push(Part::Value(placeholder));
        rest = behind;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(parts)
}

/// The text with `x` for every value.
pub fn sample(parts: &[Part]) -> String {
    let text = |part: &Part| match part {
        Part::Literal(text) => text.clone(),
        Part::Value(_) => "x".to_owned(),
    };
    parts.iter().map(text).collect()
}

/// The pattern of all texts of `parts`, if every value matches `value`.
pub fn shape(parts: &[Part], value: PatternToken) -> Pattern {
    let tokens = parts.iter().flat_map(|part| match part {
        Part::Literal(text) => text.chars().map(PatternToken::One).collect(),
        Part::Value(_) => vec![value],
    });
    tokens.collect()
}

/// The values of one message.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    pub route: &'a str,
    pub metadata: &'a Metadata,
}

impl<'a> Values<'a> {
    /// `put` appends a value in the form that the text needs, or refuses it.
    ///
    /// # Errors
    /// The missing or refused value. Empty values are refused because they would name another level than intended, and
    /// control characters because they break logs and parsers.
    pub fn fill(
        self,
        parts: &[Part],
        mut put: impl FnMut(&str, &mut String) -> Result<(), String>,
    ) -> Result<String, String> {
        let mut text = String::new();
        for part in parts {
            let placeholder = match part {
                Part::Literal(literal) => {
                    text.push_str(literal);
                    continue;
                }
                Part::Value(placeholder) => placeholder,
            };
            let value = self.get(placeholder).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| format!("its destination needs a {placeholder}"))?;
            if value.contains(char::is_control) {
                return Err(format!("its {placeholder} has a control character, and stands in its destination"));
            }
            put(value, &mut text).map_err(|error| format!("its {placeholder} {error}"))?;
        }
        Ok(text)
    }

    pub fn get(self, placeholder: &Placeholder) -> Option<&'a str> {
        match placeholder {
            Placeholder::Key => self.metadata.key.as_deref(),
            Placeholder::Route => Some(self.route),
            Placeholder::Header(name) => self.metadata.selector(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_at_its_placeholders_and_doubled_braces_are_braces() {
        let literal = |text: &str| Part::Literal(text.into());
        assert_eq!(parse("").unwrap(), []);
        assert_eq!(parse("a{{b}}c").unwrap(), [literal("a{b}c")]);
        assert_eq!(
            parse("{route}/{{{key}}}:{header:X-A}").unwrap(),
            [
                Part::Value(Placeholder::Route),
                literal("/{"),
                Part::Value(Placeholder::Key),
                literal("}:"),
                Part::Value(Placeholder::Header("X-A".into())),
            ]
        );
    }

    #[test]
    fn what_is_no_placeholder_is_refused_with_a_way_out() {
        for text in ["{jobs}", "{}", "{KEY}", "{key", "a}", "}", "{header}", "{headers:X}", "{ key }", "{ke{{y}", "{:}"]
        {
            let error = parse(text).expect_err(text);
            assert!(error.contains("known: {key}, {route}, {header:NAME}") && error.contains("`{{jobs}}`"), "{error}");
        }
        assert_eq!(parse("{header:Host}").unwrap_err(), "header `Host` is reserved");
        assert_eq!(parse("{header:}").unwrap_err(), "`` is not a header name");
    }

    #[test]
    fn a_header_is_found_in_any_case_and_best_in_its_own() {
        let metadata = Metadata {
            headers: [("X-A", "1"), ("x-a", "2"), ("x-b", "3")].map(|(name, value)| (name.into(), value.into())).into(),
            ..Metadata::default()
        };
        let values = Values { route: "r", metadata: &metadata };
        for (name, value) in [("X-A", "1"), ("x-a", "2"), ("X-a", "1"), ("X-B", "3")] {
            assert_eq!(values.get(&Placeholder::Header(name.into())), Some(value), "{name}");
        }
    }

    #[test]
    fn a_missing_or_empty_value_or_a_control_character_names_what_it_is_about() {
        let fill = |key: Option<&str>, text: &str| {
            let metadata = Metadata { key: key.map(Into::into), ..Metadata::default() };
            let put = |value: &str, text: &mut String| {
                text.push_str(value);
                Ok(())
            };
            Values { route: "r", metadata: &metadata }.fill(&parse(text).unwrap(), put)
        };
        assert_eq!(fill(None, "{route}:{key}").unwrap_err(), "its destination needs a `key`");
        assert_eq!(fill(Some(""), "{key}").unwrap_err(), "its destination needs a `key`");
        assert_eq!(fill(Some("k"), "{header:X}").unwrap_err(), "its destination needs a header `X`");
        for control in ["\0", "a\r\nb", "\t", "\u{7f}", "\u{85}"] {
            assert!(fill(Some(control), "{key}").unwrap_err().starts_with("its `key` has a control character"));
        }
        assert_eq!(fill(Some("k"), "a-{key}-{route}"), Ok("a-k-r".into()));
    }
}
