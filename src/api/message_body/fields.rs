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

/// Maximum number of mistakes that are named of one message. More are counted.
pub const MAX_NAMED: usize = 10;

/// An object with fields that stay raw.
pub trait RawObject<'a>: Default {
    /// The names of the fields; a keyword begins with `r#`.
    const FIELDS: &'static [&'static str];

    /// The place of the field with this number.
    fn place(&mut self, number: usize) -> &mut Option<&'a RawValue>;
}

/// Declares a `RawObject`: `None` is an absent field, and `null` is a value.
macro_rules! raw_object {
    ($name:ident: $($field:ident),+) => {
        #[derive(Default)]
        struct $name<'a> {
            $($field: Option<&'a serde_json::value::RawValue>,)+
        }

        impl<'a> crate::api::message_body::fields::RawObject<'a> for $name<'a> {
            const FIELDS: &'static [&'static str] = &[$(stringify!($field)),+];

            fn place(&mut self, number: usize) -> &mut Option<&'a serde_json::value::RawValue> {
                let places = [$(&mut self.$field),+];
                places.into_iter().nth(number).expect("one of FIELDS")
            }
        }
    };
}

/// The errors found in a body so far.
#[derive(Default)]
pub struct Faults {
    /// The pointer of the message that is being read.
    at: String,
    /// Named errors of this message.
    named: usize,
    errors: Vec<FieldError>,
    /// Errors of all messages, named or not.
    count: usize,
}

impl Faults {
    /// Begins the message at this pointer.
    pub fn begin(&mut self, at: String) {
        (self.at, self.named) = (at, 0);
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pointer of a field of the message; of the whole message if `name` is empty.
    pub fn pointer(&self, name: &str) -> String {
        format!("{}{}{name}", self.at, if name.is_empty() { "" } else { "/" })
    }

    /// `tail`: the rest of the pointer, empty for the whole message.
    pub fn add(&mut self, tail: &str, text: impl Into<String>) {
        self.push(FieldError::new(format!("{}{tail}", self.at), text));
    }

    /// At most one error of a message is its size: without the others beyond `MAX_NAMED` the status is the same.
    pub fn push(&mut self, error: FieldError) {
        self.count += 1;
        if self.named < MAX_NAMED {
            self.named += 1;
            self.errors.push(error);
        }
    }

    /// Adds an error and returns `None`.
    pub fn keep<T>(&mut self, result: Result<T, FieldError>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Reads an object. Unknown and repeated fields are errors beside those of its other fields. `None` without an
    /// object.
    pub fn object<'a, T: RawObject<'a>>(&mut self, raw: &'a RawValue, pointer: &str) -> Option<T> {
        if !raw.get().starts_with('{') {
            self.push(FieldError::new(pointer, "must be an object"));
            return None;
        }
        let mut object = T::default();
        let names = || T::FIELDS.iter().map(|name| name.trim_start_matches("r#"));
        let read = each_field(raw, (pointer, "an object"), |name, value| {
            match names().position(|known| known == name).map(|number| object.place(number)) {
                Some(place @ None) => *place = Some(value),
                Some(Some(_)) => self.push(FieldError::new(pointer, format!("duplicate field `{name}`"))),
                None if self.named < MAX_NAMED => {
                    let known: Vec<String> = names().map(|name| format!("`{name}`")).collect();
                    let text = format!("unknown field `{name}`, expected one of {}", known.join(", "));
                    self.push(FieldError::new(pointer, text));
                }
                None => self.count += 1,
            }
            Ok(())
        });
        self.keep(read).map(|()| object)
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

    /// Like `field`, for a field with several parts: `parse` adds an error for each.
    pub fn part<'a, T>(
        &mut self,
        name: &str,
        raw: Option<&'a RawValue>,
        parse: impl FnOnce(&'a RawValue, &str, &mut Self) -> T,
    ) -> Option<T> {
        let pointer = self.pointer(name);
        raw.map(|raw| parse(raw, &pointer, self))
    }

    /// # Errors
    /// When there is no value, or any error.
    pub fn end<T>(self, value: Option<T>) -> Result<T, Problem> {
        value.filter(|_| self.is_empty()).ok_or_else(|| Problem::invalid(self.errors).of(self.count))
    }
}

/// The body of a call on many messages, or on a route.
///
/// # Errors
/// 400 with all unknown and repeated fields: a misspelt selection must not be another one.
pub fn whole<'a, T: RawObject<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let mut faults = Faults::default();
    let object = faults.object(json(body)?, "");
    let texts: Vec<String> = faults.errors.into_iter().map(|error| error.detail).collect();
    object.filter(|_| texts.is_empty()).ok_or_else(|| Problem::bad_request(texts.join("; ")))
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
