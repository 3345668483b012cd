//! `server.auth` as it is written: who is allowed to call the API.

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

/// Who is allowed to call the API.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// Each token is a text (all rights, all routes) or a mapping; required. The text `sha256:` with 64 hexadecimal
    /// digits is the digest of a token, in place of the token itself.
    #[serde(default)]
    pub tokens: List<ConfiguredToken>,
    /// Whether /metrics answers without a token.
    #[serde(default)]
    pub open_metrics: Flag,
}

/// One token and its rights.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    pub token: Option<Secret>,
    /// Name of the caller in the audit log: 1 to 64 of `A-Za-z0-9._@-`. Default: the place of the token, such as
    /// `tokens.0`.
    pub name: Option<String>,
    /// Required: any of schedule, read, admin.
    #[serde(default)]
    pub rights: List<Right>,
    /// Route names. `*`, or no `routes` at all, means all routes.
    #[serde(default = "all_routes")]
    pub routes: List<String>,
    #[serde(default)]
    pub limits: TokenLimits,
}

/// Limits of a token.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenLimits {
    /// Maximum messages that the token can schedule per second on one instance: 1 to 1000000.
    pub messages_per_second: Option<Whole<1, 1_000_000>>,
}

/// One token. A token that is a text has all rights on all routes.
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

/// Reads `server.auth`. `None` means `none`.
///
/// # Errors
/// A value that is neither `none` nor a mapping; a mistake in the mapping.
pub fn auth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Tokens>, D::Error> {
    deserializer.deserialize_any(MappingOrText {
        expected: "`none` or a mapping with `tokens`",
        mapping: Some,
        parse: |text| match text {
            "none" => Ok(None),
            // Not shown: the text can be a token.
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
