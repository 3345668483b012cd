//! The parts of a JSON value. Errors name them by their JSON pointer.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    api::problem::{FieldError, Problem},
    message::MessageId,
    time,
};

/// Maximum number of messages of one request: as many as the store takes in one step.
pub const MAX_MESSAGES: usize = 1000;

/// Declares an object. Its fields stay raw: `None` is an absent one, and `null` is a value.
macro_rules! raw_object {
    ($name:ident: $($field:ident),+) => {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name<'a> {
            $(#[serde(borrow, default, deserialize_with = "crate::api::message_body::fields::present")]
            $field: Option<&'a RawValue>,)+
        }
    };
}

/// Distinguishes `null` from an absent field.
pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The errors found in a body so far.
#[derive(Default)]
pub struct Faults {
    /// The pointer of the object that is being read.
    pub at: String,
    pub errors: Vec<FieldError>,
}

impl Faults {
    /// `tail`: the rest of the pointer, empty for the whole object.
    pub fn add(&mut self, tail: &str, text: impl Into<String>) {
        self.errors.push(FieldError::new(format!("{}{tail}", self.at), text));
    }

    /// Adds an error and returns `None`.
    pub fn keep<T>(&mut self, result: Result<T, FieldError>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    /// `None` for an absent field, and for an invalid one. `parse` takes the field's JSON and pointer.
    pub fn field<'a, T>(
        &mut self,
        name: &str,
        raw: Option<&'a RawValue>,
        parse: impl FnOnce(&'a RawValue, &str) -> Result<T, FieldError>,
    ) -> Option<T> {
        let parsed = parse(raw?, &format!("{}/{name}", self.at));
        self.keep(parsed)
    }

    /// # Errors
    /// When there is no value, or any error.
    pub fn end<T>(self, value: Option<T>) -> Result<T, Problem> {
        value.filter(|_| self.errors.is_empty()).ok_or_else(|| Problem::invalid(self.errors))
    }
}

/// Reads an object. A derived struct alone would also accept an array of its fields in order.
pub fn object<'a, T: Deserialize<'a>>(raw: &'a RawValue, pointer: &str) -> Result<T, FieldError> {
    if raw.get().starts_with('{') { read(raw, pointer) } else { Err(FieldError::new(pointer, "must be an object")) }
}

pub fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue, pointer: &str) -> Result<T, FieldError> {
    located(serde_json::from_str(raw.get()), pointer)
}

/// At most `MAX_MESSAGES` values.
pub fn items<'a>(raw: &'a RawValue, pointer: &str) -> Result<Vec<&'a RawValue>, FieldError> {
    items_up_to(MAX_MESSAGES, raw, pointer)
}

/// At most `max` values: millions of tiny ones are refused before they are collected.
pub fn items_up_to<'a>(max: usize, raw: &'a RawValue, pointer: &str) -> Result<Vec<&'a RawValue>, FieldError> {
    let mut items = Vec::new();
    let add = |_, item| {
        items.push(item);
        if items.len() > max { Err(format!("has more than {max} items")) } else { Ok(()) }
    };
    let each = Each { expected: "an array", add };
    located(serde_json::Deserializer::from_str(raw.get()).deserialize_seq(each), pointer).map(|()| items)
}

/// Visits the fields of an object until one is refused.
pub fn each_field<'a>(
    raw: &'a RawValue,
    (pointer, expected): (&str, &'static str),
    add: impl FnMut(String, &'a RawValue) -> Result<(), String>,
) -> Result<(), FieldError> {
    let each = Each { expected, add };
    located(serde_json::Deserializer::from_str(raw.get()).deserialize_map(each), pointer)
}

/// The position in an error is within the field, which the pointer names.
fn located<T>(result: serde_json::Result<T>, pointer: &str) -> Result<T, FieldError> {
    result.map_err(|error| {
        let text = error.to_string();
        let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
        FieldError::new(pointer, text)
    })
}

/// Visits fields, or items with an empty name, until one is refused. The rest takes no memory.
struct Each<F> {
    expected: &'static str,
    add: F,
}

impl<'de, F: FnMut(String, &'de RawValue) -> Result<(), String>> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, value)) = map.next_entry()? {
            (self.add)(name, value).map_err(A::Error::custom)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(item) = seq.next_element()? {
            (self.add)(String::new(), item).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

/// The field, unless it is `null`.
pub fn given(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

/// The field, unless it is `null` or an empty text.
pub fn filled(raw: Option<&RawValue>) -> Option<&RawValue> {
    given(raw).filter(|raw| raw.get() != r#""""#)
}

pub fn id(raw: &RawValue, pointer: &str) -> Result<MessageId, FieldError> {
    MessageId::parse(&read::<String>(raw, pointer)?).map_err(|error| FieldError::new(pointer, error))
}

/// A whole number in any form of JSON, such as `3` and `3.0`.
pub fn integer<T: TryFrom<u64>>(raw: &RawValue, pointer: &str) -> Result<T, FieldError> {
    let number = time::number(raw.get()).unwrap_or_else(|| Err("is not a number".into()));
    let text = |error: String| match error.split_once(':') {
        Some((error, _)) => format!("`{}` {error}", raw.get()),
        None => error,
    };
    let number = number.map_err(|error| FieldError::new(pointer, text(error)))?;
    number.try_into().map_err(|_| FieldError::new(pointer, format!("`{number}` is too large")))
}

/// `parse` takes the text of a string, or a number as it was written.
pub fn moment<T>(raw: &RawValue, pointer: &str, parse: fn(&str) -> Result<T, String>) -> Result<T, FieldError> {
    let parsed = match raw.get().as_bytes().first() {
        Some(b'"') => parse(&read::<String>(raw, pointer)?),
        Some(b'-' | b'0'..=b'9') => parse(raw.get()),
        _ => Err("must be a string or a number of milliseconds".into()),
    };
    parsed.map_err(|error| FieldError::new(pointer, error))
}

/// One raw JSON value, with nothing after it.
pub fn json(body: &[u8]) -> Result<&RawValue, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("the body is not JSON: {error}")))
}
