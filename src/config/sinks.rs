//! Checks of sinks. A new type of sink is a struct in `raw`, a function here, and its defaults in the YAML.

use std::{path::PathBuf, time::Duration};

use super::{
    RabbitMqConfig, RabbitMqServer, RedisListConfig, SinkConfig,
    check::{check_tls, millis, redis_server},
    http, kafka,
    problem::{Path, Problems},
    raw::{RawHttp, RawKafka, RawRabbitMq, RawRedisList, RawSink},
    value::{List, Period},
};
use crate::secret::{Secret, SecretUrl};
use crate::sink::template::{Address, Allow, Pattern, Place, Template};
use crate::store::redis::connection::RedisEndpoint;
use url::Url;

pub fn sink(raw: RawSink, at: &Path, key_prefix: &str, problems: &mut Problems) -> Option<SinkConfig> {
    match raw {
        RawSink::Http(raw) => http::sink(raw, at, problems).map(SinkConfig::Http),
        RawSink::Kafka(raw) => {
            let timeout = check_timeout(at, raw.timeout, problems);
            kafka::sink(raw, at, timeout, problems).map(SinkConfig::Kafka)
        }
        RawSink::RedisList(raw) => redis_list(raw, at, key_prefix, problems).map(SinkConfig::RedisList),
        RawSink::RabbitMq(raw) => rabbitmq(raw, at, problems).map(SinkConfig::RabbitMq),
    }
}

/// As it was written, whether or not it is in range.
pub fn timeout(raw: &RawSink) -> Option<Duration> {
    let (RawSink::Http(RawHttp { timeout, .. })
    | RawSink::Kafka(RawKafka { timeout, .. })
    | RawSink::RedisList(RawRedisList { timeout, .. })
    | RawSink::RabbitMq(RawRabbitMq { timeout, .. })) = raw;
    timeout.map(|timeout| timeout.0)
}

pub fn check_timeout(at: &Path, timeout: Option<Period>, problems: &mut Problems) -> Option<Duration> {
    problems.within(&at.key("timeout"), timeout, millis(100)..=millis(3_600_000)).map(|timeout| timeout.0)
}

/// `shape`: what the `setting` of the sink at `at` can become; `None` when it is a constant.
pub fn check_allow(
    raw: List<String>,
    shape: Option<&Pattern>,
    (at, setting): (&Path, &str),
    problems: &mut Problems,
) -> Option<Allow> {
    let at = at.key("allow");
    match shape {
        None if raw.is_empty() => return Some(Allow::default()),
        // Whoever wrote it thinks that it keeps something out.
        None => {
            problems.add(&at, format!("does nothing: `{setting}` has no placeholders"));
            return None;
        }
        Some(_) if raw.is_empty() => {
            // A path has slashes, over which `*` does not reach.
            let example = if setting == "url" { "/**" } else { "*" };
            problems.add(&at, format!("is missing: patterns of what `{setting}` may become, such as `{example}`"));
            return None;
        }
        Some(_) => {}
    }
    let mut patterns = Vec::new();
    for (place, text) in raw.items() {
        let at = at.key(place.to_string());
        let Some(pattern) = problems.check(&at, Pattern::parse(&text)) else { continue };
        if shape.is_some_and(|shape| !pattern.meets(shape)) {
            problems.add(&at, format!("`{}` matches nothing that `{setting}` can become", text.escape_debug()));
        }
        patterns.push(pattern);
    }
    problems.check(&at, Allow::try_from(patterns))
}

fn redis_list(raw: RawRedisList, at: &Path, key_prefix: &str, problems: &mut Problems) -> Option<RedisListConfig> {
    let tls = [raw.ca_file, raw.cert_file, raw.key_file];
    let username = raw.username.filter(|name| !name.is_empty());
    let password = raw.password.filter(|password| !password.expose().is_empty());
    let url = raw.url.filter(|url| !url.expose().is_empty());
    let key = problems.require(&at.key("key"), raw.key).and_then(|key| {
        // On another Redis too: it may well be another name of the queue's.
        let place = Place::ListKey { key_prefix: key_prefix.into() };
        problems.check(&at.key("key"), Template::parse(&key, place))
    });
    let shape = key.as_ref().map(Template::shape);
    let allow = shape.and_then(|shape| check_allow(raw.allow, shape.as_ref(), (at, "key"), problems));
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
        Some(url) => Some(RedisEndpoint { url: url?, username, password, ca_file, cert_file, key_file }),
        None => None,
    };
    Some(RedisListConfig { key: key?, allow: allow?, format: format?, server, timeout: timeout? })
}

fn rabbitmq(raw: RawRabbitMq, at: &Path, problems: &mut Problems) -> Option<RabbitMqConfig> {
    let tls = [raw.ca_file, raw.cert_file, raw.key_file];
    let server = rabbitmq_server(raw.url, raw.username, raw.password, tls, at, problems);
    let exchange = problems
        .require(&at.key("exchange"), raw.exchange)
        .and_then(|text| problems.check(&at.key("exchange"), Template::parse(&text, Place::Exchange)));
    let routing_key = raw
        .routing_key
        .filter(|key| !key.is_empty())
        .map(|text| problems.check(&at.key("routing_key"), Template::parse(&text, Place::RoutingKey)));
    let varies = exchange.as_ref().is_some_and(|exchange| exchange.as_constant().is_none());
    let address = match routing_key {
        // It was reported.
        Some(None) => None,
        key => exchange.and_then(|exchange| problems.check(&at.key("exchange"), Address::new(exchange, key.flatten()))),
    };
    let setting = if varies { "exchange/routing_key" } else { "routing_key" };
    let shape = address.as_ref().map(Address::shape);
    let allow = shape.and_then(|shape| check_allow(raw.allow, shape.as_ref(), (at, setting), problems));
    let timeout = check_timeout(at, raw.timeout, problems);
    Some(RabbitMqConfig { server: server?, address: address?, allow: allow?, timeout: timeout? })
}

/// `tls`: `ca_file`, `cert_file`, `key_file`
pub fn rabbitmq_server(
    url: Option<Secret>,
    username: Option<String>,
    password: Option<Secret>,
    tls: [Option<PathBuf>; 3],
    at: &Path,
    problems: &mut Problems,
) -> Option<RabbitMqServer> {
    let url = problems.require(&at.key("url"), url)?;
    let secure = problems.check(&at.key("url"), amqp_url(url.expose()))?;
    check_tls(at, &tls, secure, problems);
    let [ca_file, cert_file, key_file] = tls;
    Some(RabbitMqServer {
        url: SecretUrl::from(url.expose()),
        username: username.filter(|name| !name.is_empty()),
        password: password.filter(|password| !password.expose().is_empty()),
        ca_file,
        cert_file,
        key_file,
    })
}

/// Whether it asks for TLS.
fn amqp_url(text: &str) -> Result<bool, String> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL such as amqp://localhost:5672/%2f: {error}"))?;
    if !matches!(url.scheme(), "amqp" | "amqps") {
        return Err(format!("has the scheme `{}`; known: amqp, amqps", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("names no host".into());
    }
    let vhost = url.path().strip_prefix('/');
    if vhost == Some("") {
        return Err("names the empty virtual host; the default one is `/%2f`".into());
    }
    if vhost.is_some_and(|vhost| vhost.contains('/')) {
        return Err("has a `/` in its virtual host, which is to be written `%2f`".into());
    }
    for (key, value) in url.query_pairs() {
        match &*key {
            "heartbeat" if value.parse::<u16>().is_ok() => {}
            "auth_mechanism" if matches!(&*value, "plain" | "external") => {}
            "heartbeat" => return Err("has a `heartbeat` that is not 0 to 65535 seconds".into()),
            "auth_mechanism" => return Err("has an `auth_mechanism` other than plain, external".into()),
            _ => return Err("has a parameter other than heartbeat, auth_mechanism".into()),
        }
    }
    Ok(url.scheme() == "amqps")
}
