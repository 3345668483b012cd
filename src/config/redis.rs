//! `redis`: the Redis that keeps the messages.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::{
    entries::is_name,
    problem::{Path, Problems},
    shared::{check_redis_url, check_tls, non_empty, parsed},
    value::{Flag, Period, Size},
};
use crate::{
    secret::{Secret, SecretUrl},
    tls::TlsFiles,
};

/// Least memory of the embedded Redis, in bytes: one that is empty, and one call of the largest.
const MIN_MEMORY: u64 = 16 << 20;

/// The Redis that keeps the messages.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://`, `rediss://` or `unix://`, or `embedded`: a private redis-server child.
    #[serde(deserialize_with = "url")]
    #[schemars(with = "Secret")]
    pub url: RedisUrl,
    /// ACL user, instead of in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub username: Option<String>,
    /// Instead of in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub password: Option<Secret>,
    /// For `rediss://`.
    pub tls: TlsFiles,
    /// Begins every key: 1 to 64 of A-Za-z0-9._-
    #[serde(deserialize_with = "key_prefix")]
    pub key_prefix: String,
    /// For `embedded`: its data, socket and log.
    pub data_dir: PathBuf,
    /// Longest time that one command may take: 100ms to 60s.
    pub timeout: Period<100, 60_000>,
    /// Most memory of the embedded Redis, which takes no more messages then: at least 16MiB.
    pub max_memory: Size<MIN_MEMORY, { i64::MAX as u64 }>,
    /// Start although Redis may evict keys. It will lose messages.
    pub allow_eviction: Flag,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisUrl {
    /// A private redis-server child.
    Embedded,
    /// `redis://`, `rediss://` or `unix://`.
    Url(SecretUrl),
}

fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RedisUrl, D::Error> {
    parsed(deserializer, |text| match text {
        "embedded" => Ok(RedisUrl::Embedded),
        url => check_redis_url(url).map(|()| RedisUrl::Url(url.into())),
    })
}

fn key_prefix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let wrong = |text: &str| format!("`{}` is not 1 to 64 of A-Za-z0-9._-", text.escape_debug());
    parsed(deserializer, |text| if is_name(text) { Ok(text.to_owned()) } else { Err(wrong(text)) })
}

impl RedisConfig {
    pub fn check(&self, problems: &mut Problems) {
        let at = Path::of("redis");
        if !problems.is_refused(&at.key("url")) {
            let encrypted = matches!(&self.url, RedisUrl::Url(url) if url.expose().starts_with("rediss:"));
            check_tls(&at, &self.tls, encrypted, problems);
        }
    }
}
