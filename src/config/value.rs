//! The types of settings. Each also reads text, because the environment and `${VAR}` give only text.

use std::{fmt, marker::PhantomData, time::Duration};

use figment::{error::Actual, value::Value};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{
        self, Error, SeqAccess, Visitor,
        value::{SeqAccessDeserializer, SeqDeserializer},
    },
};

use super::deserialize::kind_of;
use crate::secret::Secret;

/// A duration, as humantime text, from `MIN` to `MAX` milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Period<const MIN: u64 = 0, const MAX: u64 = { u64::MAX }>(pub Duration);

/// A number of bytes, from `MIN` to `MAX`: a whole number, or text with a unit.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Size<const MIN: u64 = 0, const MAX: u64 = { u64::MAX }>(pub u64);

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Whole<const MIN: u64 = 0, const MAX: u64 = { u64::MAX }>(pub u64);

/// Any finite number.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Real(pub f64);

/// The value of a property of another program: text, even if it looks like a number. It can be a secret.
#[derive(Clone, Debug)]
pub struct Property(pub Secret);

/// True or false.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flag(pub bool);

/// A list, or one text with commas between its items. `None` is an item that was refused.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(inline, description = "", bound = "T: JsonSchema")]
pub struct List<T>(#[schemars(schema_with = "list_schema::<T>")] Vec<Option<T>>);

impl<T> List<T> {
    /// Whether the list has no items, not even refused ones.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The items with their places in the list.
    pub fn items(self) -> impl Iterator<Item = (usize, T)> {
        self.0.into_iter().enumerate().filter_map(|(place, item)| Some((place, item?)))
    }

    /// The items with their places in the list.
    pub fn places(&self) -> impl Iterator<Item = (usize, &T)> {
        self.0.iter().enumerate().filter_map(|(place, item)| Some((place, item.as_ref()?)))
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
}

/// Units of sizes, in bytes.
const UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// `value`, if it is from `min` to `max`.
fn within<T: PartialOrd + fmt::Display>(value: T, min: &T, max: &T) -> Result<T, String> {
    if value < *min || value > *max {
        return Err(format!("`{value}` is not within {min} .. {max}"));
    }
    Ok(value)
}

impl<const MIN: u64, const MAX: u64> Period<MIN, MAX> {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &dyn fmt::Display| format!("`{text}` is not a duration such as `30s`: {why}");
        let period = humantime::parse_duration(text).map(Self).map_err(|error| wrong(&error))?;
        let [min, max] = [MIN, MAX].map(|millis| Self(Duration::from_millis(millis)));
        within(period, &min, &max)
    }
}

impl<const MIN: u64, const MAX: u64> Size<MIN, MAX> {
    fn parse(text: &str) -> Result<Self, String> {
        let unit = UNITS.iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes)));
        let (number, bytes) = unit.unwrap_or((text, 1));
        let size = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(bytes));
        let size = size.ok_or_else(|| format!("`{text}` is not a size such as `65536`, `64KiB` or `1MiB`"))?;
        within(Self(size), &Self(MIN), &Self(MAX))
    }
}

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    fn parse(text: &str) -> Result<Self, String> {
        let number = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
        within(Self(number), &Self(MIN), &Self(MAX))
    }
}

impl Real {
    fn parse(text: &str) -> Result<Self, String> {
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.map(Self).ok_or_else(|| format!("`{text}` is not a number"))
    }
}

impl Flag {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("`{text}` is neither true nor false"))
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Period<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Size<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS[..3].iter().rev().find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes));
        match unit {
            Some((name, bytes)) => write!(f, "{}{name}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Whole<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads text, numbers and booleans through `parse`. Refuses other types with a text that names what is `expected`.
pub fn read_scalar<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, String>,
    expected: &str,
) -> Result<T, D::Error> {
    let text = match <Value as Deserialize>::deserialize(deserializer)?.to_actual() {
        Actual::Str(text) => text,
        Actual::Bool(value) => value.to_string(),
        Actual::Unsigned(number) => number.to_string(),
        Actual::Signed(number) => number.to_string(),
        Actual::Float(number) => number.to_string(),
        other => return Err(D::Error::custom(format!("must be {expected}, not {}", kind_of(&other)))),
    };
    parse(&text).map_err(D::Error::custom)
}

/// `Deserialize` and `JsonSchema` of a type that is read through `$parse`.
macro_rules! scalar {
    ($type:ident $(<$($bound:ident),*>)?, $parse:expr, $expected:literal, $schema:tt) => {
        impl<'de $($(, const $bound: u64)*)?> Deserialize<'de> for $type $(<$($bound),*>)? {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::config::value::read_scalar(deserializer, $parse, $expected)
            }
        }

        impl $(<$(const $bound: u64),*>)? JsonSchema for $type $(<$($bound),*>)? {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

pub(super) use scalar;

// Text in place of a number allows `${VAR}`.
scalar!(Period<MIN, MAX>, Self::parse, "a duration such as `30s`",
    { "type": "string", "examples": ["500ms", "30s", "10m"] });
scalar!(Size<MIN, MAX>, Self::parse, "a size such as `1MiB`",
    { "type": ["integer", "string"], "minimum": MIN, "maximum": MAX, "examples": ["64KiB", "1MiB"] });
scalar!(Whole<MIN, MAX>, Self::parse, "a whole number",
    { "type": ["integer", "string"], "minimum": MIN, "maximum": MAX });
scalar!(Real, Self::parse, "a number", { "type": ["number", "string"] });
scalar!(Flag, Self::parse, "true or false", { "type": ["boolean", "string"] });
scalar!(Property, |text| Ok(Self(text.into())), "text or a number", { "type": ["string", "number", "boolean"] });

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(items.into_iter().map(Some).collect())
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text.trim_start().starts_with('[') {
                    return Err(E::custom("is to be one text with commas between, without brackets"));
                }
                let items = SeqDeserializer::<_, E>::new(text.split(',').map(str::trim));
                Vec::<T>::deserialize(items).map(List::from_iter)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(items)).map(List)
            }
        }

        deserializer.deserialize_any(Items(PhantomData))
    }
}

fn list_schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let items = generator.subschema_for::<T>();
    json_schema!({ "anyOf": [{ "type": "array", "items": items }, { "type": "string" }] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        for (text, size) in [
            ("0", 0),
            ("8080", 8080),
            ("64KiB", 65_536),
            ("1 MiB", 1 << 20),
            ("2GiB", 2 << 30),
            ("3kB", 3000),
            ("5B", 5),
        ] {
            assert_eq!(Size::<0, { u64::MAX }>::parse(text), Ok(Size(size)));
        }
        for bad in ["", "1.5MiB", "-1", "1mib", "MiB", "99999999999GiB", "1e3"] {
            assert!(Size::<0, { u64::MAX }>::parse(bad).is_err(), "{bad}");
        }
        let bounded = |text| Size::<2, 10>::parse(text).ok();
        assert_eq!(["1", "2", "10", "11"].map(bounded), [None, Some(Size(2)), Some(Size(10)), None]);
        assert_eq!([3 << 20, 1025, 0].map(|size| Size::<0, { u64::MAX }>(size).to_string()), ["3MiB", "1025", "0"]);
    }

    #[test]
    fn a_list_is_also_a_text_with_commas() {
        let read = |json: serde_json::Value| {
            serde_json::from_value::<List<Whole>>(json)
                .map(|list| list.items().map(|(_, item)| item).collect::<Vec<_>>())
        };
        assert_eq!(read("1, 2".into()).unwrap(), [Whole(1), Whole(2)]);
        assert_eq!(read(serde_json::json!([1, "2"])).unwrap(), [Whole(1), Whole(2)]);
        assert!(read("".into()).is_err());
    }
}
