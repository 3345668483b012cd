//! `server.auth`: who may call the API, as it is written.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    tokens::Right,
    value::{Flag, List, Whole},
};
use crate::secret::Secret;

/// Who may call the API.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// Text (all rights, all routes), or a mapping; required. `sha256:` and 64 hexadecimal digits stand for the token
    /// with this digest.
    #[serde(default)]
    pub tokens: List<ConfiguredToken>,
    /// Whether /metrics answers without a token.
    #[serde(default = "no")]
    pub open_metrics: Flag,
}

/// `none`, or tokens.
#[derive(Debug)]
pub struct Auth(pub Option<Tokens>);

/// One token and what it may do.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenEntry {
    pub token: Option<Secret>,
    /// Required: any of schedule, read, admin.
    pub rights: List<Right>,
    /// Route names; `*` means all, as does leaving the key out.
    #[serde(deserialize_with = "given")]
    pub routes: Option<List<String>>,
    pub limits: TokenLimits,
}

/// How much a token may do.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenLimits {
    /// Messages that it may schedule on one instance: 1 to 1000000.
    pub messages_per_second: Option<Whole<1, 1_000_000>>,
}

/// A token that may do all, or one with rights.
#[derive(Debug)]
pub enum ConfiguredToken {
    Plain(Secret),
    Entry(TokenEntry),
}

fn no() -> Flag {
    Flag(false)
}

/// Of a list that may be left out, but not be left empty.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<List<T>>, D::Error> {
    List::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Auth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NoneOrTokens;

        impl<'de> Visitor<'de> for NoneOrTokens {
            type Value = Auth;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("`none` or a mapping with `tokens`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Auth, E> {
                match text {
                    "none" => Ok(Auth(None)),
                    // Not shown: it may well be a token.
                    _ => Err(E::custom("must be `none` or a mapping with `tokens`")),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Auth, A::Error> {
                Tokens::deserialize(MapAccessDeserializer::new(map)).map(|tokens| Auth(Some(tokens)))
            }
        }

        deserializer.deserialize_any(NoneOrTokens)
    }
}

impl JsonSchema for Auth {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Auth".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let tokens = generator.subschema_for::<Tokens>();
        json_schema!({ "anyOf": [{ "const": "none" }, tokens] })
    }
}

impl<'de> Deserialize<'de> for ConfiguredToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlainOrEntry;

        impl<'de> Visitor<'de> for PlainOrEntry {
            type Value = ConfiguredToken;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a text or a mapping with `token`, `rights`, `routes` and `limits`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ConfiguredToken, E> {
                Ok(ConfiguredToken::Plain(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ConfiguredToken, A::Error> {
                TokenEntry::deserialize(MapAccessDeserializer::new(map)).map(ConfiguredToken::Entry)
            }
        }

        deserializer.deserialize_any(PlainOrEntry)
    }
}

impl JsonSchema for ConfiguredToken {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ConfiguredToken".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let entry = generator.subschema_for::<TokenEntry>();
        json_schema!({ "anyOf": [{ "type": "string", "writeOnly": true }, entry] })
    }
}
