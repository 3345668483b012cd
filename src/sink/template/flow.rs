//! The key of a message's flow.

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::parts::{self, Part, Placeholder, Values};
use crate::message::{MAX_ID_BYTES, Metadata};

/// Bytes of a long flow before its digest: a tilde and 40 hexadecimal digits complete `MAX_ID_BYTES`.
const HEAD_BYTES: usize = MAX_ID_BYTES - 41;

/// A text with placeholders `{key}`, `{route}`, `{header:NAME}`. `{{` and `}}` are braces.
#[derive(Clone, Debug)]
pub struct FlowTemplate {
    text: String,
    parts: Vec<Part>,
}

impl fmt::Display for FlowTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FlowTemplate {
    /// # Errors
    /// For an unknown placeholder, or a text without one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = parts::parse(text)?;
        if !parts.iter().any(|part| matches!(part, Part::Value(_))) {
            return Err("has no placeholder: without `key` the whole route is one flow".into());
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// The flow of a message, of the characters of an id. Empty if the message lacks a value. A byte that is not allowed
    /// is `~` and two hexadecimal digits. A flow longer than an id is its first 87 bytes, `~` and the SHA-1 of the whole:
    /// scripts of Redis have no other digest.
    pub fn render(&self, route: &str, metadata: &Metadata) -> String {
        let values = Values { route, metadata };
        let mut flow = String::new();
        for part in &self.parts {
            let bytes = match part {
                Part::Literal(text) => Some(Cow::Borrowed(text.as_bytes())),
                Part::Value(placeholder) => value(values, placeholder),
            };
            let Some(bytes) = bytes else { return String::new() };
            for byte in &*bytes {
                if byte.is_ascii_alphanumeric() || b"._:~-".contains(byte) {
                    flow.push(char::from(*byte));
                } else {
                    write!(flow, "~{byte:02X}").expect("a string takes everything");
                }
            }
        }
        if flow.len() > MAX_ID_BYTES {
            let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, flow.as_bytes());
            flow.truncate(HEAD_BYTES);
            flow.push('~');
            for byte in hash.as_ref() {
                write!(flow, "{byte:02x}").expect("a string takes everything");
            }
        }
        flow
    }
}

/// `None` for an absent or empty value. The key can be any bytes.
fn value<'a>(values: Values<'a>, placeholder: &Placeholder) -> Option<Cow<'a, [u8]>> {
    let odd_key = || {
        let encoded =
            values.metadata.origin.as_ref()?.key_base64.as_ref().filter(|_| *placeholder == Placeholder::Key)?;
        STANDARD.decode(encoded).ok().map(Cow::Owned)
    };
    let value = values.get(placeholder).map(|text| Cow::Borrowed(text.as_bytes())).or_else(odd_key);
    value.filter(|bytes| !bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Origin, check_flow};

    fn rendered(text: &str, key: Option<&str>) -> String {
        let headers = [("X-Tenant".to_owned(), "acme".to_owned()), ("X-Empty".to_owned(), String::new())].into();
        let metadata = Metadata { key: key.map(str::to_owned), headers, ..Metadata::default() };
        FlowTemplate::parse(text).unwrap().render("orders", &metadata)
    }

    #[test]
    fn a_flow_is_made_of_key_route_and_headers() {
        assert_eq!(rendered("{route}:{header:x-TENANT}/{{{key}}}", Some("7")), "orders:acme~2F~7B7~7D");
    }

    #[test]
    fn bytes_that_an_id_cannot_have_are_escaped() {
        assert_eq!(rendered("{key}", Some("A-z0.9_:~")), "A-z0.9_:~");
        assert_eq!(rendered("{key}", Some("é \t/\u{1}")), "~C3~A9~20~09~2F~01");
        let origin = Some(Origin { key_base64: Some("/wBh".into()), ..Origin::default() }.into());
        let binary = Metadata { origin, ..Metadata::default() };
        assert_eq!(FlowTemplate::parse("{key}").unwrap().render("r", &binary), "~FF~00a", "a key of Kafka");
        assert_eq!(FlowTemplate::parse("{header:X}").unwrap().render("r", &binary), "");
    }

    #[test]
    fn without_one_of_its_values_a_flow_is_empty() {
        for (text, key) in [
            ("a:{key}", None),
            ("{route}:{key}", Some("")),
            ("{key}:{header:X-None}", Some("k")),
            ("{header:X-Empty}{key}", Some("k")),
        ] {
            assert_eq!(rendered(text, key), "", "{text}");
        }
    }

    #[test]
    fn a_long_flow_ends_with_its_digest_as_redis_computes_it() {
        assert_eq!(rendered("{key}", Some(&"a".repeat(128))), "a".repeat(128));
        // printf 'a%.0s' $(seq 129) | sha1sum
        let long = rendered("{key}", Some(&"a".repeat(129)));
        assert_eq!(long, format!("{}~{}", "a".repeat(87), "d96debf1bdcbc896e6c134ea76e8141f40d78536"));
        let spaces = rendered("{key}", Some(&" ".repeat(43)));
        assert_eq!((&spaces[..88], spaces.len()), (&*("~20".repeat(29) + "~"), 128));
        assert_ne!(spaces, rendered("{key}", Some(&" ".repeat(44))));
        for flow in [&long, &spaces, &rendered("{key}", Some("é"))] {
            assert_eq!(check_flow(flow), Ok(()));
        }
    }

    #[test]
    fn a_text_without_placeholders_is_refused() {
        for text in ["", "orders", "{{key}}"] {
            let error = FlowTemplate::parse(text).unwrap_err();
            assert_eq!(error, "has no placeholder: without `key` the whole route is one flow");
        }
        assert!(FlowTemplate::parse("{keys}").unwrap_err().contains("known: {key}, {route}, {header:NAME}"));
        assert_eq!(FlowTemplate::parse("{header:Punctual-Flow}").unwrap_err(), "header `Punctual-Flow` is reserved");
    }
}
