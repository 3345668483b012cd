//! Settings and checks that connectors share.

use std::{collections::BTreeSet, fs::File};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use url::Url;

use super::{
    problem::{Path, Problems},
    value::{List, Period, Real},
};
use crate::{
    retry::Backoff,
    secret::{Secret, SecretUrl},
    sink::template::{Allow, Pattern, Place, Template},
    tls::TlsFiles,
};

/// The settings that a connector's settings are checked against.
pub struct Context<'a> {
    pub key_prefix: &'a str,
    /// The names of all routes.
    pub routes: &'a BTreeSet<String>,
    /// Whether the queues are on a Redis cluster, where a script cannot reach keys of other programs.
    pub is_cluster: bool,
}

/// The settings of a sink or source, as they are read.
pub trait Settings: DeserializeOwned + JsonSchema {
    /// Reports mistakes that the types of the settings cannot detect: settings that do not fit together.
    fn check(&mut self, at: &Path, context: &Context, problems: &mut Problems);
}

/// Maximum time of one batch: 100ms to 1h.
pub type Timeout = Period<100, 3_600_000>;

/// A delay that grows.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowingDelay {
    /// Delay after the first dead-lettering: at least 1ms.
    pub initial: Period,
    /// Factor by which each further dead-lettering lengthens the delay: 1 to 100.
    pub factor: Real,
    /// Maximum delay.
    pub max: Period,
    /// Random share of the delay: 0 to 1.
    pub jitter: Real,
}

impl GrowingDelay {
    /// # Errors
    /// The name of the offending setting and the text to show.
    pub fn get(&self) -> Result<Backoff, (&'static str, String)> {
        Backoff::new(self.initial.0, self.factor.0, self.max.0, self.jitter.0)
    }

    /// As `get`, but reports the error.
    pub fn check(&self, at: &Path, problems: &mut Problems) -> Option<Backoff> {
        self.get().map_err(|(key, text)| problems.add(&at.key(key), text)).ok()
    }
}

/// Reads text through `parse`.
///
/// # Errors
/// A value that is not text; the error of `parse`.
pub fn parsed<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    String::deserialize(deserializer).and_then(|text| parse(&text).map_err(D::Error::custom))
}

/// Reads text. Empty text counts as missing.
///
/// # Errors
/// A value that is not text.
pub fn non_empty<'de, D: Deserializer<'de>, T: From<String>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|text| text.filter(|text| !text.is_empty()).map(T::from))
}

/// Reads a template of a place: a topic, an exchange or a routing key.
///
/// # Errors
/// A value that is not text; a text that cannot be a template.
pub fn template<'de, D: Deserializer<'de>>(deserializer: D, place: Place) -> Result<Template, D::Error> {
    parsed(deserializer, |text| Template::parse(text, place))
}

/// One pattern of `allow`.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct AllowPattern(Pattern);

impl TryFrom<String> for AllowPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Pattern::parse(&text).map(Self)
    }
}

impl<'de> Deserialize<'de> for Allow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let patterns = List::<AllowPattern>::deserialize(deserializer)?;
        let patterns: Vec<_> = patterns.items().map(|(_, AllowPattern(pattern))| pattern).collect();
        Allow::try_from(patterns).map_err(D::Error::custom)
    }
}

impl JsonSchema for Allow {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Allow".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        List::<String>::json_schema(generator)
    }
}

/// `shape`: the possible values of the `setting` of the sink at `at`; `None` when it is a constant.
pub fn check_allow(allow: &Allow, shape: Option<&Pattern>, (at, setting): (&Path, &str), problems: &mut Problems) {
    let at = at.key("allow");
    if problems.is_refused(&at) {
        return;
    }
    let patterns = allow.patterns();
    match shape {
        // `allow` would suggest a restriction that does not exist.
        None if !patterns.is_empty() => problems.add(&at, format!("does nothing: `{setting}` has no placeholders")),
        Some(_) if patterns.is_empty() => {
            // A path has slashes, which `*` does not match.
            let example = if setting == "url" { "/**" } else { "*" };
            problems.add(&at, format!("is missing: patterns of what `{setting}` may become, such as `{example}`"));
        }
        _ => {}
    }
    for (place, pattern) in patterns.iter().enumerate() {
        if shape.is_some_and(|shape| !pattern.meets(shape)) {
            let text = format!("`{pattern}` matches nothing that `{setting}` can become");
            problems.add(&at.key(place.to_string()), text);
        }
    }
}

/// Checks the files of `tls` at `at`. `used`: whether the URL asks for TLS.
pub fn check_tls(at: &Path, files: &TlsFiles, used: bool, problems: &mut Problems) {
    let at = at.key("tls");
    let [ca, cert, key] = ["ca_file", "cert_file", "key_file"].map(|key| at.key(key));
    for (file, at) in [(&files.ca_file, &ca), (&files.cert_file, &cert), (&files.key_file, &key)] {
        let Some(file) = file else { continue };
        if !used {
            problems.add(at, "needs a URL with TLS: rediss://, https:// or amqps://");
        } else if let Err(error) = File::open(file) {
            problems.add(at, format!("`{}` cannot be read: {error}", file.display()));
        }
    }
    match (&files.cert_file, &files.key_file) {
        (Some(_), None) => problems.add(&cert, "needs `key_file` too"),
        (None, Some(_)) => problems.add(&key, "needs `cert_file` too"),
        _ => {}
    }
}

/// Reads the URL of a running Redis.
///
/// # Errors
/// A value that is not text; a text that is not such a URL.
pub fn redis_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretUrl>, D::Error> {
    match non_empty::<D, Secret>(deserializer)? {
        Some(url) => check_redis_url(url.expose()).map(|()| Some(url.expose().into())).map_err(D::Error::custom),
        None => Ok(None),
    }
}

/// # Errors
/// The mistake in the URL of a Redis. The text does not show the URL.
pub fn check_redis_url(text: &str) -> Result<(), String> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL such as redis://127.0.0.1:6379/0: {error}"))?;
    match url.scheme() {
        "redis" | "rediss" => {
            let database = url.path().trim_start_matches('/');
            if !url.has_host() {
                Err("names no host".into())
            } else if !database.is_empty() && database.parse::<u16>().is_err() {
                // Not shown: if a password contains a slash, this is the rest of it.
                Err("has no number for its database; a `/` in a password is to be written `%2F`".into())
            } else if url.fragment().is_some() {
                Err("must not have a `#` part; a server with an own certificate needs `tls.ca_file`".into())
            } else {
                Ok(())
            }
        }
        "unix" | "redis+unix" if url.to_file_path().is_ok_and(|path| path.parent().is_some()) => Ok(()),
        "unix" | "redis+unix" => Err("names no socket: unix:///run/redis.sock".into()),
        other => Err(format!("has the scheme `{other}`; known: redis, rediss, unix")),
    }
}
