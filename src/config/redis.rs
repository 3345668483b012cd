//! `redis`: the Redis that stores the messages.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use url::Url;

use super::{
    connectors::{check_redis_url, check_tls, non_empty, parsed},
    entries::is_name,
    problem::{Path, Problems, SettingOrigin},
    source::DEFAULT_PREFIX,
    value::{Flag, List, Period, Size, Whole},
};
use crate::{
    secret::{Secret, SecretUrl},
    tls::TlsFiles,
};

/// Minimum memory of the embedded Redis, in bytes: an empty Redis and one call of maximum size.
const MIN_MEMORY: u64 = 16 << 20;

/// The Redis that stores the messages.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://`, `rediss://`, `unix://`, or `embedded`: a private redis-server child process.
    #[serde(deserialize_with = "url")]
    #[schemars(with = "Secret")]
    pub url: RedisUrl,
    /// In place of `url`: the sentinels that name the primary.
    pub sentinel: SentinelConfig,
    /// In place of `url`: a cluster.
    pub cluster: ClusterConfig,
    /// ACL user, if it is not in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub username: Option<String>,
    /// Password, if it is not in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub password: Option<Secret>,
    /// TLS files for `rediss://`: of the primary with `sentinel`, of all servers with `cluster`.
    pub tls: TlsFiles,
    /// Prefix of every key: 1 to 64 of A-Za-z0-9._-
    #[serde(deserialize_with = "key_prefix")]
    pub key_prefix: String,
    /// Directory of the embedded Redis: its data, its socket, its log.
    pub data_dir: PathBuf,
    /// Maximum time of one Redis command: 100ms to 60s.
    pub timeout: Period<100, 60_000>,
    /// Maximum memory of the embedded Redis: at least 16MiB. At the maximum new messages are refused.
    pub max_memory: Size<MIN_MEMORY, { i64::MAX as u64 }>,
    /// When a schedule, reschedule or cancel is answered with success.
    pub durability: DurabilityConfig,
    /// Whether to start although Redis can evict keys. **Messages will be lost.**
    pub allow_eviction: Flag,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisUrl {
    /// A private redis-server child process.
    Embedded,
    /// `redis://`, `rediss://` or `unix://`.
    Url(SecretUrl),
}

/// The sentinels that name the primary. `username`, `password` and `tls` of `redis` itself are for the primary.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SentinelConfig {
    /// Addresses of the sentinels, with ports: all `redis://` or all `rediss://`. The sentinels are asked in turn.
    pub urls: List<SentinelUrl>,
    /// Name of the primary, as in `sentinel monitor`.
    #[serde(default, deserialize_with = "non_empty")]
    pub master: Option<String>,
    /// ACL user of the sentinels, if it is not in the URLs.
    #[serde(default, deserialize_with = "non_empty")]
    pub username: Option<String>,
    /// Password of the sentinels, if it is not in the URLs.
    #[serde(default, deserialize_with = "non_empty")]
    pub password: Option<Secret>,
    /// TLS files for sentinels with `rediss://`.
    pub tls: TlsFiles,
}

/// A cluster. `username`, `password` and `tls` of `redis` itself are for all its servers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Addresses of some servers of the cluster, with ports: all `redis://` or all `rediss://`. Further servers are
    /// found through them.
    pub urls: List<ClusterUrl>,
}

/// When a write counts as durable.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DurabilityConfig {
    /// Number of replicas that must have a message before the API answers 2xx: 0 to 100. With fewer replicas it answers
    /// 503.
    pub replicas: Whole<0, 100>,
    /// Maximum time to wait for `durability.replicas`: 10ms to 30s, and with `replicas` of 1 or more at most
    /// half of `redis.timeout`.
    pub timeout: Period<10, 30_000>,
}

/// The address of one sentinel.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transparent, inline)]
pub struct SentinelUrl(#[schemars(with = "Secret")] pub SecretUrl);

impl<'de> Deserialize<'de> for SentinelUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, |text| check_sentinel_url(text).map(|()| Self(text.into())))
    }
}

/// The address of one server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(transparent, inline)]
pub struct ClusterUrl(#[schemars(with = "Secret")] pub SecretUrl);

impl<'de> Deserialize<'de> for ClusterUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, |text| check_cluster_url(text).map(|()| Self(text.into())))
    }
}

fn check_cluster_url(text: &str) -> Result<(), String> {
    check_redis_url(text)?;
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "redis" | "rediss") || url.port().is_none() {
        Err("is no address of a server of a cluster, such as redis://10.0.0.1:6379".into())
    } else if !matches!(url.path().trim_matches('/'), "" | "0") {
        Err("names a database: a cluster has only database 0".into())
    } else if !url.username().is_empty() || url.password().is_some() {
        Err("names a user: `redis.username` and `redis.password` are for all servers".into())
    } else {
        Ok(())
    }
}

fn check_sentinel_url(text: &str) -> Result<(), String> {
    check_redis_url(text)?;
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "redis" | "rediss") {
        Err("is no address of a sentinel, such as redis://10.0.0.1:26379".into())
    } else if url.port().is_none() {
        Err("names no port: that of a sentinel is 26379, unless its file says otherwise".into())
    } else if !url.path().trim_matches('/').is_empty() {
        Err("names a database: sentinels have none, and messages are in database 0 of the primary".into())
    } else {
        Ok(())
    }
}

/// Where the messages are stored.
#[derive(Clone, Copy, Debug)]
pub enum RedisTopology<'a> {
    /// On a private redis-server child process.
    Embedded,
    /// At one address.
    Url(&'a SecretUrl),
    /// On the primary that sentinels name.
    Sentinel(&'a SentinelConfig),
    Cluster(&'a ClusterConfig),
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
    pub fn topology(&self) -> RedisTopology<'_> {
        match &self.url {
            _ if self.sentinel.is_set() => RedisTopology::Sentinel(&self.sentinel),
            _ if !self.cluster.urls.is_empty() => RedisTopology::Cluster(&self.cluster),
            RedisUrl::Embedded => RedisTopology::Embedded,
            RedisUrl::Url(url) => RedisTopology::Url(url),
        }
    }

    /// Whether the primary that sentinels name is reached over TLS: if a sentinel is, or if `tls` has a file.
    pub fn is_master_tls(&self) -> bool {
        self.sentinel.urls.iter().any(|url| is_tls(&url.0)) || !self.tls.is_empty()
    }

    fn check_durability(&self, at: &Path, problems: &mut Problems) {
        let DurabilityConfig { replicas, timeout } = self.durability;
        if replicas.0 == 0 {
            return;
        }
        if matches!(self.topology(), RedisTopology::Embedded) {
            problems.add(&at.key("replicas"), "needs a Redis with replicas: the embedded one has none");
        }
        // WAIT delays the next write, which also waits for its own replicas.
        if timeout.0 > self.timeout.0 / 2 {
            problems.add(&at.key("timeout"), "is more than half of `redis.timeout`");
        }
    }

    pub fn check(&self, problems: &mut Problems) {
        let at = Path::of("redis");
        self.check_durability(&at.key("durability"), problems);
        let is_cluster = !self.cluster.urls.is_empty();
        if self.sentinel.is_set() {
            check_alone(&at.key("sentinel"), &at.key("url"), problems);
            if is_cluster {
                problems.add(
                    &at.key("cluster"),
                    "stands in place of `redis.sentinel`, which is set too: leave out one of them",
                );
            }
            self.sentinel.check(&at, problems);
            check_tls(&at, &self.tls, true, problems);
        } else if is_cluster {
            check_alone(&at.key("cluster"), &at.key("url"), problems);
            let urls = at.key("cluster").key("urls");
            let encrypted = check_schemes(&urls, self.cluster.urls.iter().map(|url| &url.0), problems);
            check_tls(&at, &self.tls, encrypted, problems);
        } else if !problems.is_refused(&at.key("url")) {
            let encrypted = matches!(&self.url, RedisUrl::Url(url) if url.expose().starts_with("rediss:"));
            check_tls(&at, &self.tls, encrypted, problems);
        }
    }
}

impl SentinelConfig {
    fn is_set(&self) -> bool {
        let Self { urls, master, username, password, tls } = self;
        !urls.is_empty() || master.is_some() || username.is_some() || password.is_some() || !tls.is_empty()
    }

    fn check(&self, redis: &Path, problems: &mut Problems) {
        let at = redis.key("sentinel");
        let urls = at.key("urls");
        problems.require(&urls, (!self.urls.is_empty()).then_some(()));
        problems.require(&at.key("master"), self.master.as_ref());
        let encrypted = check_schemes(&urls, self.urls.iter().map(|url| &url.0), problems);
        if !problems.is_refused(&urls) {
            check_tls(&at, &self.tls, encrypted, problems);
        }
    }
}

/// Reports a mistake at `at` if `redis.url` is set too.
fn check_alone(at: &Path, url: &Path, problems: &mut Problems) {
    // A default of the image or the service is overridden without a report.
    let of_defaults =
        |origin: &SettingOrigin| matches!(origin, SettingOrigin::Variable(name) if name.starts_with(DEFAULT_PREFIX));
    if let Some(origin) = problems.origins.get(url).filter(|origin| !of_defaults(origin)) {
        let text = format!("stands in place of `redis.url`, which is set too ({origin}): leave out one of them");
        problems.add(at, text);
    }
}

/// Whether the servers are reached over TLS. Reports a mix of both schemes.
fn check_schemes<'a>(at: &Path, urls: impl Iterator<Item = &'a SecretUrl>, problems: &mut Problems) -> bool {
    let (encrypted, plain): (Vec<_>, Vec<_>) = urls.partition(|url| is_tls(url));
    if !encrypted.is_empty() && !plain.is_empty() {
        problems.add(at, "mixes redis:// and rediss://");
    }
    !encrypted.is_empty()
}

fn is_tls(url: &SecretUrl) -> bool {
    url.expose().starts_with("rediss:")
}
