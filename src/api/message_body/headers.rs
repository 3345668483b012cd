//! Headers: an object of texts, or a list of headers with types. AMQP properties.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::fields::{Faults, each_field, given, integer, items_up_to, read};
use crate::{
    api::problem::FieldError,
    message::{Headers, MAX_METADATA_BYTES, Properties, TypedValue},
    sink::headers::ALL,
};

/// Maximum number of headers: as many of the smallest as the metadata of a message holds. A source takes as many.
const MAX_HEADERS: usize = MAX_METADATA_BYTES / r#"{"name":"","value":""}"#.len();

/// With a list in these headers RabbitMQ copies a message to more queues, which the `allow` of a sink would not restrict.
const COPIES: [&str; 2] = ["CC", "BCC"];

pub fn headers(raw: &RawValue, pointer: &str, faults: &mut Faults) -> Headers {
    if raw.get().starts_with('[') { list(raw, pointer, faults) } else { texts(raw, pointer, faults) }
}

/// Texts by name, without duplicate names.
fn texts(raw: &RawValue, pointer: &str, faults: &mut Faults) -> Headers {
    // Sorted, because many programs do not keep the order of an object.
    let mut texts = BTreeMap::new();
    let read = each_field(raw, (pointer, "an object of strings"), |name, value| {
        if let Some(value) = faults.keep(read::<String>(value, pointer))
            && texts.insert(name.clone(), value).is_some()
        {
            faults.push(FieldError::new(pointer, format!("duplicate header `{name}`")));
        }
        Ok(())
    });
    faults.keep(read);
    texts.into()
}

raw_object!(Listed: name, r#type, value);

fn list(raw: &RawValue, pointer: &str, faults: &mut Faults) -> Headers {
    let items = faults.keep(items_up_to(MAX_HEADERS, raw, pointer)).unwrap_or_default();
    let header = |(index, item)| header(item, &format!("{pointer}/{index}"), faults);
    Headers::classify(items.into_iter().enumerate().filter_map(header).collect(), |_| false)
}

fn header(raw: &RawValue, pointer: &str, faults: &mut Faults) -> Option<(String, TypedValue)> {
    let Listed { name, r#type, value } = faults.object(raw, pointer)?;
    let at = |field: &str| format!("{pointer}{field}");
    let name = name.ok_or_else(|| FieldError::new(pointer, "has no `name`"));
    let name: Option<String> = faults.keep(name.and_then(|raw| read(raw, &at("/name"))));
    let r#type: Option<Option<String>> = faults.keep(given(r#type).map(|raw| read(raw, &at("/type"))).transpose());
    let value: Option<Option<serde_json::Value>> = faults.keep(value.map(|raw| read(raw, &at("/value"))).transpose());
    let typed = TypedValue::parse(r#type?.as_deref().unwrap_or("string"), &value?.unwrap_or_default());
    let typed = faults.keep(typed.map_err(|fault| FieldError::new(at(&fault.pointer), fault.text)));
    let name = name?;
    if ALL.contains(&&*name) {
        faults.push(FieldError::new(at("/name"), format!("`{name}` is set by punctual")));
    }
    let typed = typed?;
    if COPIES.contains(&&*name) && matches!(typed, TypedValue::Array(_)) {
        faults.push(FieldError::new(at("/name"), "RabbitMQ would copy the message to other queues"));
    }
    Some((name, typed))
}

// Stored metadata is read leniently, so that it can come from a newer release. Requests are read strictly.
raw_object!(Given: content_encoding, correlation_id, reply_to, r#type, priority, app_id);

pub fn properties(raw: &RawValue, pointer: &str, faults: &mut Faults) -> Option<Box<Properties>> {
    let all: Given = faults.object(raw, pointer)?;
    let at = |name: &str| format!("{pointer}/{name}");
    let mut text = |name, raw| faults.keep(read(given(raw)?, &at(name)));
    let properties = Properties {
        content_encoding: text("content_encoding", all.content_encoding),
        correlation_id: text("correlation_id", all.correlation_id),
        reply_to: text("reply_to", all.reply_to),
        r#type: text("type", all.r#type),
        app_id: text("app_id", all.app_id),
        priority: given(all.priority).and_then(|raw| faults.keep(integer(raw, &at("priority")))),
    };
    properties.or_none().map(Box::new)
}
