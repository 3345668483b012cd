//! Header values of brokers with their types, and their lossless JSON form:
//!
//! | `type` | `value` |
//! |---|---|
//! | `null` | null, or absent |
//! | `boolean` | `true` or `false` |
//! | `int8`, `uint8`, `int16`, `uint16`, `int32`, `uint32`, `int64`, `timestamp` (seconds since 1970) | a number; beyond 2^53 its digits as text, which is always accepted |
//! | `float`, `double` | text: the shortest digits that are read as the same number, `inf`, `-inf`, or `nan:` with the bits as hexadecimal digits. JSON numbers are rounded by many readers, and have no NaN |
//! | `decimal` | `{"scale": 2, "value": 314}` |
//! | `string` | text |
//! | `string-base64` | a string of AMQP that is not UTF-8 |
//! | `bytes` | base64 |
//! | `array`, `table` | an array or an object of `{"type": ..., "value": ...}` |

use std::{collections::BTreeMap, fmt::Write as _};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::Error as _,
    ser::{Error as _, SerializeMap},
};
use serde_json::{Value as Json, json};

/// Maximum nesting. `x-death` has two levels. Each level becomes two levels of JSON, and the JSON parser stops at 128.
pub const MAX_DEPTH: u32 = 32;

/// Larger integers are text, because readers that use doubles would round them.
const MAX_SAFE: u64 = 1 << 53;

/// A value with its type. Floating-point numbers are stored as bits, so that a NaN equals itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypedValue {
    Null,
    Boolean(bool),
    Int8(i8),
    Uint8(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    /// Seconds since 1970.
    Timestamp(u64),
    Float(u32),
    Double(u64),
    Decimal {
        scale: u8,
        value: u32,
    },
    String(String),
    /// A string that is not UTF-8.
    StringBytes(Vec<u8>),
    Bytes(Vec<u8>),
    Array(Vec<TypedValue>),
    Table(BTreeMap<String, TypedValue>),
}

/// The reason why JSON is not a typed value.
#[derive(Debug, PartialEq, Eq)]
pub struct TypeFault {
    /// JSON pointer within the object that has `type` and `value`.
    pub pointer: String,
    pub text: String,
}

impl TypedValue {
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean(_) => "boolean",
            Self::Int8(_) => "int8",
            Self::Uint8(_) => "uint8",
            Self::Int16(_) => "int16",
            Self::Uint16(_) => "uint16",
            Self::Int32(_) => "int32",
            Self::Uint32(_) => "uint32",
            Self::Int64(_) => "int64",
            Self::Timestamp(_) => "timestamp",
            Self::Float(_) => "float",
            Self::Double(_) => "double",
            Self::Decimal { .. } => "decimal",
            Self::String(_) => "string",
            Self::StringBytes(_) => "string-base64",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "array",
            Self::Table(_) => "table",
        }
    }

    /// The `value` of the JSON form.
    pub fn json(&self) -> Json {
        let whole = |value: &Self| json!({ "type": value.type_name(), "value": value.json() });
        match self {
            Self::Null => Json::Null,
            Self::Boolean(value) => (*value).into(),
            Self::Int8(value) => (*value).into(),
            Self::Uint8(value) => (*value).into(),
            Self::Int16(value) => (*value).into(),
            Self::Uint16(value) => (*value).into(),
            Self::Int32(value) => (*value).into(),
            Self::Uint32(value) => (*value).into(),
            Self::Int64(value) if value.unsigned_abs() > MAX_SAFE => value.to_string().into(),
            Self::Int64(value) => (*value).into(),
            Self::Timestamp(value) if *value > MAX_SAFE => value.to_string().into(),
            Self::Timestamp(value) => (*value).into(),
            Self::Float(bits) => match f32::from_bits(*bits) {
                value if value.is_nan() => format!("nan:{bits:x}").into(),
                value => format!("{value:?}").into(),
            },
            Self::Double(bits) => match f64::from_bits(*bits) {
                value if value.is_nan() => format!("nan:{bits:x}").into(),
                value => format!("{value:?}").into(),
            },
            Self::Decimal { scale, value } => json!({ "scale": scale, "value": value }),
            Self::String(text) => text.as_str().into(),
            Self::StringBytes(bytes) | Self::Bytes(bytes) => STANDARD.encode(bytes).into(),
            Self::Array(values) => Json::Array(values.iter().map(whole).collect()),
            Self::Table(values) => {
                Json::Object(values.iter().map(|(name, value)| (name.clone(), whole(value))).collect())
            }
        }
    }

    /// # Errors
    /// For an unknown type, and for a value that its type does not allow.
    pub fn parse(name: &str, value: &Json) -> Result<Self, TypeFault> {
        parse(name, value, "/value", MAX_DEPTH)
    }
}

impl Serialize for TypedValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("type", self.type_name())?;
        map.serialize_entry("value", &serde_json::to_value(self.json()).map_err(S::Error::custom)?)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for TypedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Given {
            r#type: String,
            #[serde(default)]
            value: Json,
        }
        let Given { r#type, value } = Given::deserialize(deserializer)?;
        Self::parse(&r#type, &value).map_err(|fault| D::Error::custom(format!("{}: {}", fault.pointer, fault.text)))
    }
}

fn parse(name: &str, value: &Json, pointer: &str, depth: u32) -> Result<TypedValue, TypeFault> {
    let fault = |text: &str| TypeFault { pointer: pointer.to_owned(), text: text.to_owned() };
    let bytes = || {
        let text = value.as_str().ok_or_else(|| fault("must be base64 as a text"))?;
        STANDARD.decode(text).map_err(|error| fault(&format!("not standard base64: {error}")))
    };
    Ok(match name {
        "null" if value.is_null() => TypedValue::Null,
        "null" => return Err(fault("a `null` has no value")),
        "boolean" => TypedValue::Boolean(value.as_bool().ok_or_else(|| fault("must be true or false"))?),
        "int8" => TypedValue::Int8(integer(value).map_err(|text| fault(&text))?),
        "uint8" => TypedValue::Uint8(integer(value).map_err(|text| fault(&text))?),
        "int16" => TypedValue::Int16(integer(value).map_err(|text| fault(&text))?),
        "uint16" => TypedValue::Uint16(integer(value).map_err(|text| fault(&text))?),
        "int32" => TypedValue::Int32(integer(value).map_err(|text| fault(&text))?),
        "uint32" => TypedValue::Uint32(integer(value).map_err(|text| fault(&text))?),
        "int64" => TypedValue::Int64(integer(value).map_err(|text| fault(&text))?),
        "timestamp" => TypedValue::Timestamp(integer(value).map_err(|text| fault(&text))?),
        "float" => {
            let bits =
                |digits: &str| u32::from_str_radix(digits, 16).ok().filter(|bits| f32::from_bits(*bits).is_nan());
            TypedValue::Float(
                real(value, bits, |text| Some(text.parse::<f32>().ok()?.to_bits())).ok_or_else(|| fault(REAL))?,
            )
        }
        "double" => {
            let bits =
                |digits: &str| u64::from_str_radix(digits, 16).ok().filter(|bits| f64::from_bits(*bits).is_nan());
            TypedValue::Double(
                real(value, bits, |text| Some(text.parse::<f64>().ok()?.to_bits())).ok_or_else(|| fault(REAL))?,
            )
        }
        "decimal" => {
            #[derive(Deserialize)]
            #[serde(deny_unknown_fields)]
            struct Decimal {
                scale: u8,
                value: u32,
            }
            let text = "must be {\"scale\": 0 to 255, \"value\": 0 to 4294967295}";
            let decimal = value.is_object().then(|| Decimal::deserialize(value).ok()).flatten();
            let Decimal { scale, value } = decimal.ok_or_else(|| fault(text))?;
            TypedValue::Decimal { scale, value }
        }
        "string" => TypedValue::String(value.as_str().ok_or_else(|| fault("must be a text"))?.to_owned()),
        "string-base64" => TypedValue::StringBytes(bytes()?),
        "bytes" => TypedValue::Bytes(bytes()?),
        "array" => {
            let items = value.as_array().ok_or_else(|| fault("must be an array of typed values"))?;
            let inner = items.iter().enumerate().map(|(at, item)| nested(item, &format!("{pointer}/{at}"), depth));
            TypedValue::Array(inner.collect::<Result<_, _>>()?)
        }
        "table" => {
            let items = value.as_object().ok_or_else(|| fault("must be an object of typed values"))?;
            let inner = items.iter().map(|(name, item)| {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                Ok((name.clone(), nested(item, &format!("{pointer}/{escaped}"), depth)?))
            });
            TypedValue::Table(inner.collect::<Result<_, _>>()?)
        }
        other => {
            let pointer = format!("{}/type", pointer.trim_end_matches("/value"));
            return Err(TypeFault { pointer, text: format!("`{}` is no type of a header", other.escape_debug()) });
        }
    })
}

/// A value within an array or a table.
fn nested(item: &Json, pointer: &str, depth: u32) -> Result<TypedValue, TypeFault> {
    let fault = |text: String| TypeFault { pointer: pointer.to_owned(), text };
    let depth = depth.checked_sub(1).ok_or_else(|| fault(too_deep()))?;
    let fields = item.as_object().ok_or_else(|| fault("must be an object with `type` and `value`".to_owned()))?;
    let name = fields.get("type").and_then(Json::as_str).ok_or_else(|| fault("has no `type`".to_owned()))?;
    if let Some(other) = fields.keys().find(|field| !["type", "value"].contains(&field.as_str())) {
        return Err(fault(format!("unknown field `{other}`")));
    }
    parse(name, fields.get("value").unwrap_or(&Json::Null), &format!("{pointer}/value"), depth)
}

pub fn too_deep() -> String {
    format!("has arrays or tables nested deeper than {MAX_DEPTH}")
}

const REAL: &str = "must be a number as text, such as \"0.1\", \"inf\", or \"nan:\" and the bits in hexadecimal digits";

fn integer<T: TryFrom<i128>>(value: &Json) -> Result<T, String> {
    let number = match value {
        Json::Number(number) => number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)),
        Json::String(text) => text.parse().ok(),
        _ => None,
    };
    let mut text = String::from("must be an integer of ");
    let (signed, bits) = (T::try_from(-1).is_ok(), size_of::<T>() * 8);
    let _ = write!(text, "{bits} bits{}", if signed { "" } else { ", not negative" });
    number.and_then(|number| T::try_from(number).ok()).ok_or(text)
}

fn real<T>(value: &Json, bits: impl Fn(&str) -> Option<T>, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let text = value.as_str()?;
    match text.strip_prefix("nan:") {
        Some(digits) => bits(digits),
        None if text.to_ascii_lowercase().contains("nan") => None,
        None => parse(text),
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any value of any type, up to three levels deep.
    pub fn any_value() -> impl Strategy<Value = TypedValue> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
        let leaf = prop_oneof![
            Just(TypedValue::Null),
            any::<bool>().prop_map(TypedValue::Boolean),
            any::<i8>().prop_map(TypedValue::Int8),
            any::<u8>().prop_map(TypedValue::Uint8),
            any::<i16>().prop_map(TypedValue::Int16),
            any::<u16>().prop_map(TypedValue::Uint16),
            any::<i32>().prop_map(TypedValue::Int32),
            any::<u32>().prop_map(TypedValue::Uint32),
            any::<i64>().prop_map(TypedValue::Int64),
            any::<u64>().prop_map(TypedValue::Timestamp),
            any::<u32>().prop_map(TypedValue::Float),
            any::<u64>().prop_map(TypedValue::Double),
            Just(TypedValue::Double(f64::NAN.to_bits())),
            (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| TypedValue::Decimal { scale, value }),
            any::<String>().prop_map(TypedValue::String),
            bytes().prop_filter("not UTF-8", |bytes| str::from_utf8(bytes).is_err()).prop_map(TypedValue::StringBytes),
            bytes().prop_map(TypedValue::Bytes),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(TypedValue::Array),
                proptest::collection::btree_map(any::<String>(), inner, 0..4).prop_map(TypedValue::Table),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_comes_back_from_its_json(value in any_value()) {
            let text = serde_json::to_string(&value).unwrap();
            prop_assert_eq!(serde_json::from_str::<TypedValue>(&text).unwrap(), value);
        }
    }

    #[test]
    fn the_form_of_each_type_is_the_documented_one() {
        let shown = |value: &TypedValue| serde_json::to_string(value).unwrap();
        for (value, form) in [
            (TypedValue::Null, r#"{"type":"null","value":null}"#),
            (TypedValue::Int8(-5), r#"{"type":"int8","value":-5}"#),
            (TypedValue::Int64(i64::MIN), r#"{"type":"int64","value":"-9223372036854775808"}"#),
            (TypedValue::Double((0.1_f64 + 0.2).to_bits()), r#"{"type":"double","value":"0.30000000000000004"}"#),
            (TypedValue::Float(f32::INFINITY.to_bits()), r#"{"type":"float","value":"inf"}"#),
            (TypedValue::Float(0x7fc0_0001), r#"{"type":"float","value":"nan:7fc00001"}"#),
            (TypedValue::Bytes(vec![0, 255]), r#"{"type":"bytes","value":"AP8="}"#),
        ] {
            assert_eq!(shown(&value), form);
        }
        assert_eq!(TypedValue::parse("int64", &json!("9223372036854775807")), Ok(TypedValue::Int64(i64::MAX)));
    }

    #[test]
    fn a_wrong_value_is_named_by_its_pointer() {
        let fault = |name: &str, value: Json| {
            let TypeFault { pointer, text } = TypedValue::parse(name, &value).unwrap_err();
            (pointer, text)
        };
        assert_eq!(fault("int8", json!(300)), ("/value".into(), "must be an integer of 8 bits".into()));
        assert_eq!(fault("uint8", json!(-1)).1, "must be an integer of 8 bits, not negative");
        assert_eq!(fault("int", json!(1)), ("/type".into(), "`int` is no type of a header".into()));
        assert_eq!(fault("null", json!(1)).0, "/value");
        for (name, value) in [
            ("double", json!(0.1)),
            ("double", json!("NaN")),
            ("double", json!("nan:0")),
            ("bytes", json!("?")),
            ("decimal", json!([2, 3])),
            ("string", json!(1)),
            ("int8", json!(1.0)),
        ] {
            assert_eq!(fault(name, value.clone()).0, "/value", "{name} {value}");
        }
        let table = json!({"a/b": {"type": "array", "value": [{"type": "int8", "value": "x"}]}});
        assert_eq!(fault("table", table).0, "/value/a~1b/value/0/value");
        let nameless = json!([{ "value": 1 }]);
        assert_eq!(fault("array", nameless), ("/value/0".into(), "has no `type`".into()));
        let deep = |levels| (0..levels).fold(json!([]), |inner, _| json!([{ "type": "array", "value": inner }]));
        assert!(TypedValue::parse("array", &deep(MAX_DEPTH)).is_ok());
        assert!(fault("array", deep(MAX_DEPTH + 1)).1.contains("deeper than 32"));
    }

    #[test]
    fn numbers_that_json_cannot_hold_exactly_are_text() {
        let largest = 9_007_199_254_740_992_u64;
        let signed = i64::try_from(largest).unwrap();
        for (value, form) in [
            (TypedValue::Int64(signed), largest.to_string()),
            (TypedValue::Int64(-signed), format!("-{largest}")),
            (TypedValue::Int64(signed + 1), "\"9007199254740993\"".to_owned()),
            (TypedValue::Int64(-signed - 1), "\"-9007199254740993\"".to_owned()),
            (TypedValue::Timestamp(largest), largest.to_string()),
            (TypedValue::Timestamp(largest + 1), "\"9007199254740993\"".to_owned()),
            (TypedValue::Timestamp(7), "7".to_owned()),
        ] {
            assert_eq!(serde_json::to_value(&value).unwrap()["value"].to_string(), form);
        }
    }
}
