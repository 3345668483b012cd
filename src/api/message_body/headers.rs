//! Headers: an object of texts, or a list of headers with types. AMQP properties.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::fields::{each_field, given, integer, items_up_to, object, read};
use crate::{
    api::problem::FieldError,
    message::{Headers, MAX_METADATA_BYTES, Properties, TypedValue},
    sink::headers::ALL,
};

/// Maximum number of headers: as many of the smallest as the metadata of a message holds. A source takes as many.
const MAX_HEADERS: usize = MAX_METADATA_BYTES / r#"{"name":"","value":""}"#.len();

/// With these headers RabbitMQ copies a message to more queues, which the `allow` of a sink would not restrict.
const COPIES: [&str; 2] = ["CC", "BCC"];

pub fn headers(raw: &RawValue, pointer: &str) -> Result<Headers, FieldError> {
    if raw.get().starts_with('[') { list(raw, pointer) } else { texts(raw, pointer) }
}

/// Texts by name, without duplicate names.
fn texts(raw: &RawValue, pointer: &str) -> Result<Headers, FieldError> {
    // Sorted, because many programs do not keep the order of an object.
    let mut texts = BTreeMap::new();
    let add = |name: String, value| {
        let value: String = read(value, pointer).map_err(|error| error.detail)?;
        texts.insert(name.clone(), value).map_or(Ok(()), |_| Err(format!("duplicate header `{name}`")))
    };
    each_field(raw, (pointer, "an object of strings"), add).map(|()| texts.into())
}

raw_object!(Listed: name, r#type, value);

fn list(raw: &RawValue, pointer: &str) -> Result<Headers, FieldError> {
    let one = |(index, item)| header(item, &format!("{pointer}/{index}"));
    let given: Vec<_> =
        items_up_to(MAX_HEADERS, raw, pointer)?.into_iter().enumerate().map(one).collect::<Result<_, _>>()?;
    Ok(Headers::classify(given, |_| false))
}

fn header(raw: &RawValue, pointer: &str) -> Result<(String, TypedValue), FieldError> {
    let Listed { name, r#type, value } = object(raw, pointer)?;
    let at = |field: &str| format!("{pointer}{field}");
    let name: String = read(name.ok_or_else(|| FieldError::new(pointer, "has no `name`"))?, &at("/name"))?;
    if ALL.contains(&&*name) {
        return Err(FieldError::new(at("/name"), format!("`{name}` is set by punctual")));
    }
    let r#type: Option<String> = given(r#type).map(|raw| read(raw, &at("/type"))).transpose()?;
    let value: Option<serde_json::Value> = value.map(|raw| read(raw, &at("/value"))).transpose()?;
    let typed = TypedValue::parse(r#type.as_deref().unwrap_or("string"), &value.unwrap_or_default());
    let typed = typed.map_err(|fault| FieldError::new(at(&fault.pointer), fault.text))?;
    if COPIES.contains(&&*name) && !matches!(typed, TypedValue::String(_)) {
        return Err(FieldError::new(at("/name"), "RabbitMQ would copy the message to other queues"));
    }
    Ok((name, typed))
}

pub fn properties(raw: &RawValue, pointer: &str) -> Result<Option<Box<Properties>>, FieldError> {
    // Stored metadata is read leniently, so that it can come from a newer release. Requests are read strictly.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Given<'a> {
        content_encoding: Option<String>,
        correlation_id: Option<String>,
        reply_to: Option<String>,
        r#type: Option<String>,
        #[serde(borrow)]
        priority: Option<&'a RawValue>,
        app_id: Option<String>,
    }
    let Given { content_encoding, correlation_id, reply_to, r#type, priority, app_id } = object(raw, pointer)?;
    let priority = given(priority).map(|raw| integer(raw, pointer)).transpose()?;
    let properties = Properties { content_encoding, correlation_id, reply_to, r#type, priority, app_id };
    Ok(properties.or_none().map(Box::new))
}
