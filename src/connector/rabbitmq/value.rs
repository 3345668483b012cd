//! Converts typed AMQP header values to JSON and back, without loss.
//!
//! | type | JSON |
//! |---|---|
//! | `boolean`, `int8` .. `uint32`, `int64`, `timestamp` (seconds) | boolean or number |
//! | `float`, `double` | their bits as an integer: decimal digits lose precision, and JSON has no `NaN` |
//! | `decimal` | `[scale, value]` |
//! | `string` | text; `string-base64` if the bytes are not UTF-8 |
//! | `bytes` | base64 |
//! | `array`, `table` | array or object of typed values |
//! | `void` | null |

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, LongString, ShortString};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use crate::message::TypedValue;

/// Deepest nesting. `x-death` has two levels. Each level becomes two of JSON, whose parser stops at 128.
const MAX_DEPTH: u32 = 32;

/// # Errors
/// When arrays and tables are nested deeper than `MAX_DEPTH`.
pub fn to_typed(value: &AMQPValue) -> Result<TypedValue, String> {
    typed(value, MAX_DEPTH)
}

/// # Errors
/// When the value does not fit its type, or the type is unknown.
pub fn from_typed(typed: &TypedValue) -> Result<AMQPValue, String> {
    parse(typed).ok_or_else(|| format!("is no `{}` of AMQP", typed.r#type))
}

fn typed(value: &AMQPValue, depth: u32) -> Result<TypedValue, String> {
    let inner = |value| match depth.checked_sub(1) {
        Some(depth) => typed(value, depth).map(|typed| json(&typed)),
        None => Err(format!("has arrays or tables nested deeper than {MAX_DEPTH}")),
    };
    let (name, value) = match value {
        AMQPValue::Boolean(value) => ("boolean", json(value)),
        AMQPValue::ShortShortInt(value) => ("int8", json(value)),
        AMQPValue::ShortShortUInt(value) => ("uint8", json(value)),
        AMQPValue::ShortInt(value) => ("int16", json(value)),
        AMQPValue::ShortUInt(value) => ("uint16", json(value)),
        AMQPValue::LongInt(value) => ("int32", json(value)),
        AMQPValue::LongUInt(value) => ("uint32", json(value)),
        AMQPValue::LongLongInt(value) => ("int64", json(value)),
        AMQPValue::Float(value) => ("float", json(&value.to_bits())),
        AMQPValue::Double(value) => ("double", json(&value.to_bits())),
        AMQPValue::DecimalValue(value) => ("decimal", json(&(value.scale, value.value))),
        AMQPValue::ShortString(value) => ("string", json(value.as_str())),
        AMQPValue::LongString(value) => match str::from_utf8(value.as_bytes()) {
            Ok(text) => ("string", json(text)),
            Err(_) => ("string-base64", json(&STANDARD.encode(value.as_bytes()))),
        },
        AMQPValue::FieldArray(values) => {
            ("array", Json::Array(values.as_slice().iter().map(inner).collect::<Result<_, _>>()?))
        }
        AMQPValue::Timestamp(value) => ("timestamp", json(value)),
        AMQPValue::FieldTable(table) => {
            let entries = table.inner().iter().map(|(name, value)| Ok((name.to_string(), inner(value)?)));
            ("table", Json::Object(entries.collect::<Result<_, String>>()?))
        }
        AMQPValue::ByteArray(value) => ("bytes", json(&STANDARD.encode(value.as_slice()))),
        AMQPValue::Void => ("void", Json::Null),
    };
    Ok(TypedValue { r#type: name.into(), value })
}

fn parse(typed: &TypedValue) -> Option<AMQPValue> {
    let value = &typed.value;
    let bytes = || STANDARD.decode(value.as_str()?).ok();
    Some(match &*typed.r#type {
        "boolean" => AMQPValue::Boolean(read(value)?),
        "int8" => AMQPValue::ShortShortInt(read(value)?),
        "uint8" => AMQPValue::ShortShortUInt(read(value)?),
        "int16" => AMQPValue::ShortInt(read(value)?),
        "uint16" => AMQPValue::ShortUInt(read(value)?),
        "int32" => AMQPValue::LongInt(read(value)?),
        "uint32" => AMQPValue::LongUInt(read(value)?),
        "int64" => AMQPValue::LongLongInt(read(value)?),
        "float" => AMQPValue::Float(f32::from_bits(read(value)?)),
        "double" => AMQPValue::Double(f64::from_bits(read(value)?)),
        "decimal" => {
            let (scale, value) = read(value)?;
            AMQPValue::DecimalValue(DecimalValue { scale, value })
        }
        "string" => AMQPValue::LongString(value.as_str()?.into()),
        "string-base64" => AMQPValue::LongString(LongString::from(bytes()?)),
        "array" => {
            let values: Vec<TypedValue> = read(value)?;
            AMQPValue::FieldArray(FieldArray::from(values.iter().map(parse).collect::<Option<Vec<_>>>()?))
        }
        "timestamp" => AMQPValue::Timestamp(read(value)?),
        "table" => {
            let entries: BTreeMap<String, TypedValue> = read(value)?;
            let mut table = FieldTable::default();
            for (name, value) in entries {
                table.insert(ShortString::try_new(name).ok()?, parse(&value)?);
            }
            AMQPValue::FieldTable(table)
        }
        "bytes" => AMQPValue::ByteArray(bytes()?.into()),
        "void" => AMQPValue::Void,
        _ => return None,
    })
}

fn json<T: Serialize + ?Sized>(value: &T) -> Json {
    serde_json::to_value(value).expect("text and numbers always serialize")
}

fn read<T: DeserializeOwned>(value: &Json) -> Option<T> {
    T::deserialize(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_converted_without_loss() {
        let mut table = FieldTable::default();
        table.insert("a\nb".into(), AMQPValue::Void);
        let array = vec![AMQPValue::FieldTable(table), AMQPValue::Timestamp(u64::MAX), AMQPValue::Boolean(true)];
        let all = [
            AMQPValue::FieldArray(array.into()),
            AMQPValue::ShortShortInt(-128),
            AMQPValue::ShortShortUInt(255),
            AMQPValue::ShortInt(-3),
            AMQPValue::ShortUInt(u16::MAX),
            AMQPValue::LongInt(i32::MIN),
            AMQPValue::LongUInt(u32::MAX),
            AMQPValue::LongLongInt(i64::MIN),
            AMQPValue::Float(f32::INFINITY),
            AMQPValue::Double(0.1 + 0.2),
            AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 }),
            AMQPValue::LongString("é\0".into()),
            AMQPValue::LongString(LongString::from(vec![0xff, 0xfe])),
            AMQPValue::ByteArray(vec![0, 255].into()),
        ];
        for value in all {
            let text = serde_json::to_string(&to_typed(&value).unwrap()).unwrap();
            let typed: TypedValue = serde_json::from_str(&text).unwrap();
            assert_eq!(from_typed(&typed), Ok(value), "{text}");
        }
    }

    #[test]
    fn the_deepest_value_is_valid_json_and_a_deeper_one_is_refused() {
        let nested = |depth| (0..depth).fold(AMQPValue::Void, |inner, _| AMQPValue::FieldArray(vec![inner].into()));
        let text = serde_json::to_string(&[to_typed(&nested(MAX_DEPTH)).unwrap()]).unwrap();
        let typed: Vec<TypedValue> = serde_json::from_str(&text).unwrap();
        assert_eq!(from_typed(&typed[0]), Ok(nested(MAX_DEPTH)));
        assert!(to_typed(&nested(MAX_DEPTH + 1)).unwrap_err().contains("deeper than 32"));
    }

    #[test]
    fn an_invalid_value_is_refused() {
        let typed = |name: &str, value| TypedValue { r#type: name.into(), value };
        assert_eq!(from_typed(&typed("int8", json(&300))), Err("is no `int8` of AMQP".into()));
        assert_eq!(from_typed(&typed("other", Json::Null)), Err("is no `other` of AMQP".into()));
    }
}
