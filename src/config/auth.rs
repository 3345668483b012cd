//! `server.auth`: who may call the API, as it is written.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::value::{Flag, List, Whole};
use crate::secret::Secret;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    Schedule,
    Read,
    Admin,
}

/// Who may call the API.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// Text (all rights, all routes), or a mapping; required. `sha256:` and 64 hexadecimal digits stand for the token
    /// with this digest.
    #[serde(default)]
    pub tokens: List<ConfiguredToken>,
    /// Whether /metrics answers without a token.
    #[serde(default)]
    pub open_metrics: Flag,
}

/// One token and what it may do.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    pub token: Option<Secret>,
    /// Of the caller, in the audit log: 1 to 64 of `A-Za-z0-9._@-`; without one its place, `tokens.0`.
    pub name: Option<String>,
    /// Required: any of schedule, read, admin.
    #[serde(default)]
    pub rights: List<Right>,
    /// Route names; `*` means all, as does leaving the key out.
    #[serde(default = "all_routes")]
    pub routes: List<String>,
    #[serde(default)]
    pub limits: TokenLimits,
}

/// How much a token may do.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenLimits {
    /// Messages that it may schedule on one instance: 1 to 1000000.
    pub messages_per_second: Option<Whole<1, 1_000_000>>,
}

/// One token. Its text alone stands for all rights on all routes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, description = "")]
pub struct ConfiguredToken(
    #[serde(deserialize_with = "token")]
    #[schemars(schema_with = "token_schema")]
    pub TokenEntry,
);

fn all_routes() -> List<String> {
    List::from_iter(["*".to_owned()])
}

fn token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TokenEntry, D::Error> {
    deserializer.deserialize_any(MappingOrText {
        expected: "a text or a mapping with `token`, `name`, `rights`, `routes` and `limits`",
        mapping: |entry| entry,
        parse: |text| {
            let rights = List::from_iter([Right::Schedule, Right::Read, Right::Admin]);
            Ok(TokenEntry {
                token: Some(text.into()),
                name: None,
                rights,
                routes: all_routes(),
                limits: TokenLimits::default(),
            })
        },
    })
}

fn token_schema(generator: &mut SchemaGenerator) -> Schema {
    let entry = generator.subschema_for::<TokenEntry>();
    json_schema!({ "anyOf": [{ "type": "string", "writeOnly": true }, entry] })
}

/// `server.auth`; `None`: `none`.
///
/// # Errors
/// What is neither `none` nor a mapping; what is wrong in the mapping.
pub fn auth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Tokens>, D::Error> {
    deserializer.deserialize_any(MappingOrText {
        expected: "`none` or a mapping with `tokens`",
        mapping: Some,
        parse: |text| match text {
            "none" => Ok(None),
            // Not shown: it may well be a token.
            _ => Err("must be `none` or a mapping with `tokens`"),
        },
    })
}

pub fn auth_schema(generator: &mut SchemaGenerator) -> Schema {
    let tokens = generator.subschema_for::<Tokens>();
    json_schema!({ "anyOf": [{ "const": "none" }, tokens] })
}

/// Reads a mapping `M`, or text through `parse`.
struct MappingOrText<M, T> {
    expected: &'static str,
    parse: fn(&str) -> Result<T, &'static str>,
    mapping: fn(M) -> T,
}

impl<'de, M: Deserialize<'de>, T> Visitor<'de> for MappingOrText<M, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        M::deserialize(MapAccessDeserializer::new(map)).map(self.mapping)
    }
}
