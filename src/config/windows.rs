//! Delivery windows of a route.

use std::sync::Arc;

use jiff::tz::TimeZone;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{
        Error, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};

use super::{connectors::parsed, value::List};
use crate::calendar::{self, Calendar, DAY, Window};

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// One window, or a list of windows.
#[derive(Clone, Debug)]
pub struct Windows(Option<Arc<Calendar>>);

impl Windows {
    /// `None` if every window was refused.
    pub fn calendar(self) -> Option<Arc<Calendar>> {
        self.0
    }
}

/// A time of each week in which messages are delivered.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WindowEntry {
    /// Days on which the window opens, `mon` to `sun`. Unless set: every day.
    days: Option<List<Day>>,
    /// Time of day at which it opens: 00:00 to 23:59; required.
    from: TimeOfDay,
    /// Time of day at which it closes: 00:00 to 24:00. A time before `from` is on the next day; required.
    to: TimeOfDay,
    /// IANA name of the time zone. Unless set: UTC.
    time_zone: Option<Zone>,
}

#[derive(Clone, Copy, Debug)]
struct Day(usize);

/// Minutes since midnight.
#[derive(Clone, Copy, Debug)]
struct TimeOfDay(u16);

#[derive(Clone, Debug)]
struct Zone(TimeZone);

impl WindowEntry {
    fn check(self) -> Result<Window, String> {
        let Self { days, from: TimeOfDay(from), to: TimeOfDay(to), time_zone } = self;
        if from == to {
            return Err("has no length: `from` and `to` are equal. All day is from 00:00 to 24:00".into());
        }
        if from == DAY {
            return Err("begins at 24:00: write `from: \"00:00\"` and the next day".into());
        }
        if days.as_ref().is_some_and(List::is_empty) {
            return Err("has no days".into());
        }
        // A list of which each day was refused has that mistake alone.
        let mut begins = [days.iter().flat_map(List::iter).next().is_none(); 7];
        for Day(day) in days.iter().flat_map(List::iter) {
            begins[*day] = true;
        }
        Ok(Window { days: begins, from, to, zone: time_zone.map_or(TimeZone::UTC, |zone| zone.0) })
    }
}

impl<'de> Deserialize<'de> for Windows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            // `None`: a window that was refused.
            type Value = Vec<Option<WindowEntry>>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a mapping or a list of mappings")
            }

            fn visit_map<A: MapAccess<'de>>(self, one: A) -> Result<Self::Value, A::Error> {
                WindowEntry::deserialize(MapAccessDeserializer::new(one)).map(|one| vec![Some(one)])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, many: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(many))
            }
        }

        let entries = deserializer.deserialize_any(OneOrMany)?;
        if entries.is_empty() {
            return Err(D::Error::custom("is an empty list"));
        }
        let windows = entries.into_iter().flatten().map(WindowEntry::check).collect::<Result<Vec<_>, _>>();
        Ok(Self(Calendar::new(windows.map_err(D::Error::custom)?).map(Arc::new)))
    }
}

impl JsonSchema for Windows {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Windows".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<WindowEntry>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

/// `Deserialize` and `JsonSchema` of a text.
macro_rules! text {
    ($type:ident, $parse:expr, $schema:tt) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                parsed(deserializer, $parse)
            }
        }

        impl JsonSchema for $type {
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

text!(Day, day, { "type": "string", "enum": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"] });
text!(TimeOfDay, time_of_day, { "type": "string", "pattern": "^([01][0-9]|2[0-4]):[0-5][0-9]$" });
text!(Zone, zone, { "type": "string", "examples": ["Europe/Berlin", "UTC"] });

fn day(text: &str) -> Result<Day, String> {
    let place = DAYS.iter().position(|day| *day == text);
    place.map(Day).ok_or_else(|| format!("`{}` is none of {}", text.escape_debug(), DAYS.join(", ")))
}

fn time_of_day(text: &str) -> Result<TimeOfDay, String> {
    let two = |digits: &str| {
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| digits.parse::<u16>().ok())
            .flatten()
    };
    let parts = text.split_once(':').and_then(|(hour, minute)| Some((two(hour)?, two(minute)?)));
    let minutes = parts.filter(|(_, minute)| *minute < 60).map(|(hour, minute)| hour * 60 + minute);
    let wrong = || format!("`{}` is not a time of day such as \"08:00\", from 00:00 to 24:00", text.escape_debug());
    minutes.filter(|minutes| *minutes <= DAY).map(TimeOfDay).ok_or_else(wrong)
}

fn zone(text: &str) -> Result<Zone, String> {
    calendar::zone(text).map(Zone)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refused_day_leaves_no_other_mistake() {
        let windows = |days| serde_json::from_value::<Windows>(json!({ "days": days, "from": "08:00", "to": "09:00" }));
        assert!(windows(json!([null])).is_ok(), "the mistake of the day was reported");
        assert!(windows(json!([])).unwrap_err().to_string().contains("has no days"));
    }
}
