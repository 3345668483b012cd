//! Checks of sinks. A new type of sink is a struct in `raw`, a function here, and its defaults in the YAML.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderName, HeaderValue};
use url::Url;

use super::{
    HttpSinkConfig, RedisListConfig, RemoteRedis, Secret, SecretUrl, SinkConfig,
    check::{check_tls, millis, redis_server},
    problem::{Path, Problems},
    raw::{RawHttp, RawRedisList, RawSink},
    value::Period,
};
use crate::message::is_reserved_header;

pub fn sink(raw: RawSink, at: &Path, key_prefix: &str, problems: &mut Problems) -> Option<SinkConfig> {
    match raw {
        RawSink::Http(raw) => http(raw, at, problems).map(SinkConfig::Http),
        RawSink::RedisList(raw) => redis_list(raw, at, key_prefix, problems).map(SinkConfig::RedisList),
    }
}

/// As it was written, whether or not it is in range.
pub fn timeout(raw: &RawSink) -> Option<Duration> {
    let (RawSink::Http(RawHttp { timeout, .. }) | RawSink::RedisList(RawRedisList { timeout, .. })) = raw;
    timeout.map(|timeout| timeout.0)
}

fn check_timeout(at: &Path, timeout: Option<Period>, problems: &mut Problems) -> Option<Duration> {
    problems.within(&at.key("timeout"), timeout, millis(100)..=millis(3_600_000)).map(|timeout| timeout.0)
}

fn http(raw: RawHttp, at: &Path, problems: &mut Problems) -> Option<HttpSinkConfig> {
    let tls = [raw.ca_file, raw.cert_file, raw.key_file];
    let url = problems.require(&at.key("url"), raw.url).and_then(|url| {
        let secure = problems.check(&at.key("url"), http_url(url.expose()))?;
        check_tls(at, &tls, secure, problems);
        Some(SecretUrl::from(url.expose()))
    });
    let timeout = check_timeout(at, raw.timeout, problems);
    let mut signing_secrets = Vec::new();
    for (place, secret) in raw.signing_secrets.items() {
        if is_signing_secret(&secret) {
            signing_secrets.push(secret);
        } else {
            let at = at.key("signing_secrets").key(place.to_string());
            problems.add(&at, "is not `whsec_` followed by base64, as Standard Webhooks has it");
        }
    }
    check_headers(&at.key("headers"), &raw.headers, problems);
    let [ca_file, cert_file, key_file] = tls;
    let (headers, timeout) = (raw.headers, timeout?);
    Some(HttpSinkConfig { url: url?, timeout, signing_secrets, headers, ca_file, cert_file, key_file })
}

/// Whether it asks for TLS.
fn http_url(text: &str) -> Result<bool, String> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL such as https://example.org/due: {error}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url.scheme() == "https"),
        other => Err(format!("has the scheme `{other}`; known: http, https")),
    }
}

fn is_signing_secret(secret: &Secret) -> bool {
    let key = secret.expose().strip_prefix("whsec_").and_then(|key| BASE64_STANDARD.decode(key).ok());
    key.is_some_and(|key| !key.is_empty())
}

fn check_headers(at: &Path, headers: &BTreeMap<String, Secret>, problems: &mut Problems) {
    for (name, value) in headers {
        let at = at.key(name);
        if HeaderName::try_from(name).is_err() {
            problems.add(&at, format!("`{}` is not a header name", name.escape_debug()));
        } else if is_reserved_header(name) && !name.eq_ignore_ascii_case("authorization") {
            problems.add(&at, "is a header that punctual or HTTP itself sets");
        }
        if HeaderValue::try_from(value.expose()).is_err() {
            problems.add(&at, "has a value with control characters");
        }
    }
}

fn redis_list(raw: RawRedisList, at: &Path, key_prefix: &str, problems: &mut Problems) -> Option<RedisListConfig> {
    let tls = [raw.ca_file, raw.cert_file, raw.key_file];
    let username = raw.username.filter(|name| !name.is_empty());
    let password = raw.password.filter(|password| !password.expose().is_empty());
    let url = raw.url.filter(|url| !url.expose().is_empty());
    let key = problems.require(&at.key("key"), raw.key);
    if key.as_ref().is_some_and(String::is_empty) {
        problems.add(&at.key("key"), "is empty");
    }
    let own = |key: &String| key.starts_with(&format!("{{{key_prefix}:")) || *key == format!("{key_prefix}:routes");
    if let Some(key) = key.as_ref().filter(|key| url.is_none() && own(key)) {
        problems.add(&at.key("key"), format!("`{}` is among punctual's own keys", key.escape_debug()));
    }
    if url.is_none() {
        let given = [username.is_some(), password.is_some(), tls.iter().any(Option::is_some)];
        for (key, _) in ["username", "password", "ca_file"].iter().zip(given).filter(|(_, given)| *given) {
            problems.add(&at.key(*key), "needs an own `url`; without one the queue's Redis is meant");
        }
    }
    let remote = url.as_ref().map(|url| redis_server(at, url, &tls, problems));
    let format = problems.require(&at.key("format"), raw.format);
    let timeout = check_timeout(at, raw.timeout, problems);
    let [ca_file, cert_file, key_file] = tls;
    let server = match remote {
        Some(url) => Some(RemoteRedis { url: url?, username, password, ca_file, cert_file, key_file }),
        None => None,
    };
    Some(RedisListConfig { key: key?, format: format?, server, timeout: timeout? })
}
