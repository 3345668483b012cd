//! The headers of a message, in order.

use std::{collections::BTreeMap, fmt, ops::Index};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
    ser::SerializeSeq,
};
use serde_json::Value as Json;

use super::{TypedValue, check_header_name, check_text, folded_header};

/// JSON: an object of texts if every sink sends each of the headers and they are sorted by name, because an object does
/// not keep their order. Otherwise an array of `{"name", "type", "value"}`; an element without `type` is a text that
/// every sink sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<Header>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub name: String,
    pub value: HeaderValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// Every sink sends this header: its name is unique in any spelling, valid in HTTP and not reserved, and the value
    /// has no control characters.
    Text(String),
    /// Any other header. Only the sinks of brokers send it.
    Typed(TypedValue),
}

impl Headers {
    /// Separates the texts that every sink sends from other headers. Drops headers with a name that `is_dropped`.
    pub fn classify(given: Vec<(String, TypedValue)>, is_dropped: impl Fn(&str) -> bool) -> Self {
        let mut counts = BTreeMap::new();
        for (name, _) in &given {
            *counts.entry(folded_header(name)).or_insert(0) += 1;
        }
        let is_plain = |name: &str, text: &str| {
            counts[&folded_header(name)] == 1 && check_header_name(name).is_ok() && check_text(text).is_ok()
        };
        let header = |(name, value): (String, TypedValue)| {
            let value = match value {
                TypedValue::String(text) if is_plain(&name, &text) => HeaderValue::Text(text),
                other => HeaderValue::Typed(other),
            };
            Header { name, value }
        };
        Self(given.into_iter().filter(|(name, _)| !is_dropped(name)).map(header).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Header> {
        self.0.iter()
    }

    /// The headers that every sink sends.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|header| match &header.value {
            HeaderValue::Text(text) => Some((header.name.as_str(), text.as_str())),
            HeaderValue::Typed(_) => None,
        })
    }

    /// The headers that only sinks of brokers send.
    pub fn typed(&self) -> impl Iterator<Item = (&str, &TypedValue)> {
        self.0.iter().filter_map(|header| match &header.value {
            HeaderValue::Text(_) => None,
            HeaderValue::Typed(value) => Some((header.name.as_str(), value)),
        })
    }

    /// The value of the text header with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.texts().find_map(|(other, text)| (other == name).then_some(text))
    }

    /// Adds a text that every sink sends, or replaces the header with this name.
    pub fn insert(&mut self, name: String, text: String) {
        let value = HeaderValue::Text(text);
        match self.0.iter_mut().find(|header| header.name == name) {
            Some(header) => header.value = value,
            None => self.push(name, value),
        }
    }

    pub fn push(&mut self, name: String, value: HeaderValue) {
        self.0.push(Header { name, value });
    }

    /// Adds a text that every sink sends: in its place if the headers are sorted by name, otherwise at the end.
    pub fn add_sorted(&mut self, name: &str, text: &str) {
        let is_sorted = self.0.is_sorted_by(|a, b| a.name < b.name);
        let place = if is_sorted { self.0.partition_point(|header| *header.name < *name) } else { self.0.len() };
        self.0.insert(place, Header { name: name.to_owned(), value: HeaderValue::Text(text.to_owned()) });
    }

    pub fn retain(&mut self, is_kept: impl FnMut(&Header) -> bool) {
        self.0.retain(is_kept);
    }

    /// The errors about texts that some sink cannot send.
    pub fn mistakes(&self) -> impl Iterator<Item = String> {
        let mut names = BTreeMap::new();
        self.texts().filter_map(move |(name, value)| {
            if let Err(text) = check_header_name(name) {
                return Some(text);
            }
            if let Some(other) = names.insert(folded_header(name), name) {
                return Some(format!("header `{other}` and `{name}` are one header to receivers"));
            }
            check_text(value).err().map(|text| format!("header `{name}`: {text}"))
        })
    }
}

/// The value of the text header with this name, which must exist.
impl Index<&str> for Headers {
    type Output = str;

    fn index(&self, name: &str) -> &str {
        self.get(name).unwrap_or_else(|| panic!("no header `{name}` in {self:?}"))
    }
}

impl FromIterator<(String, String)> for Headers {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(texts: I) -> Self {
        Self(texts.into_iter().map(|(name, text)| Header { name, value: HeaderValue::Text(text) }).collect())
    }
}

impl<const N: usize> From<[(String, String); N]> for Headers {
    fn from(texts: [(String, String); N]) -> Self {
        texts.into_iter().collect()
    }
}

impl From<BTreeMap<String, String>> for Headers {
    fn from(texts: BTreeMap<String, String>) -> Self {
        texts.into_iter().collect()
    }
}

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.typed().next().is_none() && self.0.is_sorted_by(|a, b| a.name < b.name) {
            return serializer.collect_map(self.texts());
        }
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for Header { name, value } in &self.0 {
            list.serialize_element(&match value {
                HeaderValue::Text(text) => Listed { name, r#type: None, value: text.as_str().into() },
                HeaderValue::Typed(value) => Listed { name, r#type: Some(value.type_name()), value: value.json() },
            })?;
        }
        list.end()
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    value: Json,
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HeadersVisitor)
    }
}

struct HeadersVisitor;

impl<'de> Visitor<'de> for HeadersVisitor {
    type Value = Headers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts, or an array of headers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
        let mut texts = BTreeMap::new();
        while let Some((name, text)) = map.next_entry::<String, String>()? {
            texts.insert(name, text);
        }
        Ok(texts.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Headers, A::Error> {
        #[derive(Deserialize)]
        struct Given {
            name: String,
            r#type: Option<String>,
            #[serde(default)]
            value: Json,
        }
        let mut headers = Headers::default();
        while let Some(Given { name, r#type, value }) = seq.next_element()? {
            let value = match (r#type, value) {
                (None, Json::String(text)) => HeaderValue::Text(text),
                (None, _) => return Err(A::Error::custom("a header without a `type` is a text")),
                (Some(r#type), value) => HeaderValue::Typed(
                    TypedValue::parse(&r#type, &value)
                        .map_err(|fault| A::Error::custom(format!("{}: {}", fault.pointer, fault.text)))?,
                ),
            };
            headers.push(name, value);
        }
        Ok(headers)
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::{super::typed::tests::any_value, *};

    /// Any headers that a source can read, in any order.
    pub fn any_headers() -> impl Strategy<Value = Headers> {
        let name = prop_oneof!["[a-cA-C]", "[A-Za-z-]{1,12}", any::<String>()];
        let value = prop_oneof!["[ -~]{0,12}".prop_map(TypedValue::String), any_value()];
        proptest::collection::vec((name, value), 0..6).prop_map(|given| Headers::classify(given, |_| false))
    }

    fn string(text: &str) -> TypedValue {
        TypedValue::String(text.to_owned())
    }

    proptest! {
        #[test]
        fn headers_come_back_from_their_json_in_their_order(headers in any_headers()) {
            let text = serde_json::to_string(&headers).unwrap();
            prop_assert_eq!(serde_json::from_str::<Headers>(&text).unwrap(), headers.clone());
            prop_assert_eq!(headers.mistakes().next(), None);
        }
    }

    #[test]
    fn texts_in_the_order_of_their_names_are_an_object_and_others_make_it_a_list() {
        let shown = |given: &[(&str, TypedValue)]| {
            let given = given.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            serde_json::to_string(&Headers::classify(given.collect(), |name| name == "dropped")).unwrap()
        };
        assert_eq!(shown(&[]), "{}");
        assert_eq!(
            shown(&[("z", string("1")), ("dropped", string("")), ("a", string("2"))]),
            r#"[{"name":"z","value":"1"},{"name":"a","value":"2"}]"#
        );
        assert_eq!(shown(&[("a", string("2")), ("z", string("1"))]), r#"{"a":"2","z":"1"}"#);
        assert_eq!(
            shown(&[("z", string("1")), ("a", string("2")), ("z", TypedValue::Null)]),
            r#"[{"name":"z","type":"string","value":"1"},{"name":"a","value":"2"},{"name":"z","type":"null","value":null}]"#
        );
        for (name, value) in [("Host", "v"), ("two words", "v"), ("X", "a\nb")] {
            assert!(shown(&[(name, string(value))]).contains(r#""type":"string""#), "{name}");
        }
        assert!(shown(&[("X-Case", string("1")), ("x_case", string("2"))]).starts_with('['));
    }

    #[test]
    fn a_text_is_added_in_its_place_among_sorted_headers() {
        let added = |names: &[&str], name: &str| {
            let mut headers = Headers::default();
            for name in names {
                headers.push((*name).to_owned(), HeaderValue::Text("x".to_owned()));
            }
            headers.add_sorted(name, "new");
            headers
                .iter()
                .map(|one| format!("{}={}", one.name, headers.get(&one.name).unwrap()))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(added(&["a", "c"], "b"), "a=x b=new c=x");
        assert_eq!(added(&["b", "c"], "a"), "a=new b=x c=x");
        assert_eq!(added(&["c", "a"], "b"), "c=x a=x b=new");
        // A name that occurs twice makes them a list.
        assert_eq!(added(&["b", "c", "c"], "a"), "b=x c=x c=x a=new");
        let mut twice: Headers = [("b".to_owned(), "x".to_owned())].into();
        twice.add_sorted("b", "new");
        assert_eq!(twice.iter().filter(|one| one.value == HeaderValue::Text("new".into())).count(), 1);
        assert_eq!(twice.get("b"), Some("new"), "it comes first");
    }

    #[test]
    fn texts_with_one_name_are_a_list() {
        let mut headers = Headers::default();
        for text in ["1", "2"] {
            headers.push("a".to_owned(), HeaderValue::Text(text.to_owned()));
        }
        let expected = r#"[{"name":"a","value":"1"},{"name":"a","value":"2"}]"#;
        assert_eq!(serde_json::to_string(&headers).unwrap(), expected);
    }

    #[test]
    fn an_error_says_which_forms_headers_have() {
        let error = serde_json::from_str::<Headers>("7").unwrap_err().to_string();
        assert!(error.contains("an object of texts, or an array of headers"), "{error}");
    }
}
