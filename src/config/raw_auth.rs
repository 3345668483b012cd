//! Who may call the API, as it is written, see `raw`.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    Right,
    value::{Flag, List, Whole},
};
use crate::secret::Secret;

/// Who may call the API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawTokens {
    /// Text (all rights, all routes), or a mapping; required. `sha256:` and 64 hexadecimal digits stand for the token
    /// with this digest.
    pub tokens: List<RawToken>,
    /// Whether /metrics answers without a token.
    pub open_metrics: Option<Flag>,
}

/// `none`, or tokens.
#[derive(Debug, Default)]
pub struct RawAuth(pub Option<RawTokens>);

/// One token and what it may do.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawTokenEntry {
    pub token: Option<Secret>,
    /// Required: any of schedule, read, admin.
    pub rights: List<Right>,
    /// Route names; `*` means all, as does leaving the key out.
    #[serde(deserialize_with = "given")]
    pub routes: Option<List<String>>,
    pub limits: RawTokenLimits,
}

/// How much a token may do.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawTokenLimits {
    /// Messages that it may schedule on one instance: 1 to 1000000.
    pub messages_per_second: Option<Whole>,
}

/// A token that may do all, or one with rights.
#[derive(Debug)]
pub enum RawToken {
    Plain(Secret),
    Entry(RawTokenEntry),
}

/// Of a list that may be left out, but not be left empty.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<List<T>>, D::Error> {
    List::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for RawAuth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NoneOrTokens;

        impl<'de> Visitor<'de> for NoneOrTokens {
            type Value = RawAuth;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("`none` or a mapping with `tokens`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawAuth, E> {
                match text {
                    "none" => Ok(RawAuth(None)),
                    // Not shown: it may well be a token.
                    _ => Err(E::custom("must be `none` or a mapping with `tokens`")),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawAuth, A::Error> {
                RawTokens::deserialize(MapAccessDeserializer::new(map)).map(|tokens| RawAuth(Some(tokens)))
            }
        }

        deserializer.deserialize_any(NoneOrTokens)
    }
}

impl JsonSchema for RawAuth {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RawAuth".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let tokens = generator.subschema_for::<RawTokens>();
        json_schema!({ "anyOf": [{ "const": "none" }, tokens] })
    }
}

impl<'de> Deserialize<'de> for RawToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlainOrEntry;

        impl<'de> Visitor<'de> for PlainOrEntry {
            type Value = RawToken;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a text or a mapping with `token`, `rights`, `routes` and `limits`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawToken, E> {
                Ok(RawToken::Plain(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawToken, A::Error> {
                RawTokenEntry::deserialize(MapAccessDeserializer::new(map)).map(RawToken::Entry)
            }
        }

        deserializer.deserialize_any(PlainOrEntry)
    }
}

impl JsonSchema for RawToken {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RawToken".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let entry = generator.subschema_for::<RawTokenEntry>();
        json_schema!({ "anyOf": [{ "type": "string", "writeOnly": true }, entry] })
    }
}
