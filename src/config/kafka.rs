//! Checks of what leads to Kafka.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use rdkafka::{ClientConfig, error::KafkaError, types::RDKafkaConfRes};

use super::{
    KafkaServer, KafkaSinkConfig,
    check::check_tls,
    problem::{Path, Problems},
    raw::RawKafka,
    sinks::check_allow,
    value::{List, Property},
};
use crate::secret::Secret;
use crate::sink::template::{Place, Template};

/// Properties that the promises rest on, under all their names, and what to do instead.
const REFUSED: [(&str, &str); 10] = [
    ("bootstrap.servers", "set `brokers` instead"),
    ("metadata.broker.list", "set `brokers` instead"),
    ("message.timeout.ms", "it follows from `timeout`"),
    ("delivery.timeout.ms", "it follows from `timeout`"),
    ("acks", "every in-sync replica must confirm: it is always `all`"),
    ("request.required.acks", "every in-sync replica must confirm: it is always `all`"),
    ("enable.idempotence", "it is always on"),
    ("delivery.report.only.error", "every delivery must be confirmed"),
    ("transactional.id", "punctual uses no transactions"),
    ("test.mock.num.brokers", "messages would go nowhere"),
];

/// The same for sources.
pub const REFUSED_OF_SOURCES: [(&str, &str); 10] = [
    ("bootstrap.servers", "set `brokers` instead"),
    ("metadata.broker.list", "set `brokers` instead"),
    ("group.id", "set `group_id` instead"),
    ("group.instance.id", "instances that share a file would shut each other out"),
    ("auto.offset.reset", "set `start` instead"),
    ("enable.auto.commit", "an offset is committed once Redis has its message"),
    ("enable.auto.offset.store", "an offset is committed once Redis has its message"),
    ("auto.commit.enable", "an offset is committed once Redis has its message"),
    ("enable.partition.eof", "punctual does not need it"),
    ("test.mock.num.brokers", "messages would come from nowhere"),
];

/// How to be let into a cluster, as it was written.
pub struct Access<'a> {
    pub brokers: List<String>,
    pub username: Option<String>,
    pub password: Option<Secret>,
    /// `ca_file`, `cert_file`, `key_file`
    pub tls: [Option<PathBuf>; 3],
    pub options: BTreeMap<String, Property>,
    /// Properties that cannot be set, and what to do instead.
    pub refused: &'a [(&'a str, &'a str)],
}

pub fn sink(raw: RawKafka, at: &Path, timeout: Option<Duration>, problems: &mut Problems) -> Option<KafkaSinkConfig> {
    let topic = problems
        .require(&at.key("topic"), raw.topic)
        .and_then(|topic| problems.check(&at.key("topic"), Template::parse(&topic, Place::Topic)));
    let shape = topic.as_ref().map(Template::shape);
    let allow = shape.and_then(|shape| check_allow(raw.allow, shape.as_ref(), (at, "topic"), problems));
    let access = Access {
        brokers: raw.brokers,
        username: raw.username,
        password: raw.password,
        tls: [raw.ca_file, raw.cert_file, raw.key_file],
        options: raw.options,
        refused: &REFUSED,
    };
    let server = server(access, at, problems);
    Some(KafkaSinkConfig { server, topic: topic?, allow: allow?, timeout: timeout? })
}

pub fn server(access: Access, at: &Path, problems: &mut Problems) -> KafkaServer {
    let Access { brokers: given, username, password, tls, options, refused } = access;
    if given.is_empty() {
        problems.require::<()>(&at.key("brokers"), None);
    }
    let mut brokers = Vec::new();
    for (place, broker) in given.items() {
        if !is_broker(&broker) {
            let text = format!("`{}` is not a host and port such as localhost:9092", broker.escape_debug());
            problems.add(&at.key("brokers").key(place.to_string()), text);
        }
        brokers.push(broker);
    }
    check_tls(at, &tls, true, problems);
    let options: BTreeMap<_, _> = options.into_iter().map(|(name, Property(value))| (name, value)).collect();
    check_options(&at.key("options"), &options, refused, problems);
    let username = username.filter(|name| !name.is_empty());
    let password = password.filter(|password| !password.expose().is_empty());
    if let (None, Some(_)) = (&username, &password) {
        problems.add(&at.key("password"), "needs `username` too");
    }
    if let Some(protocol) = options.get("security.protocol").map(|protocol| protocol.expose().to_lowercase()) {
        for (key, used, part) in [
            ("ca_file", tls[0].is_some(), "ssl"),
            ("cert_file", tls[1].is_some(), "ssl"),
            ("username", username.is_some(), "sasl"),
        ] {
            if used && !protocol.contains(part) {
                problems.add(&at.key(key), format!("needs a `security.protocol` with {part} in it"));
            }
        }
    } else if username.is_some() && tls[0].is_none() && tls[1].is_none() {
        let text = "would leave without TLS, with its password: set `ca_file` or, in `options`, \
                    `security.protocol: sasl_ssl`; `sasl_plaintext` there means it";
        problems.add(&at.key("username"), text);
    }
    let [ca_file, cert_file, key_file] = tls;
    KafkaServer { brokers, options, username, password, ca_file, cert_file, key_file }
}

fn check_options(at: &Path, options: &BTreeMap<String, Secret>, refused: &[(&str, &str)], problems: &mut Problems) {
    for (name, value) in options {
        if let Some((_, instead)) = refused.iter().find(|(refused, _)| refused == name) {
            problems.add(&at.key(name), format!("cannot be set: {instead}"));
            continue;
        }
        match ClientConfig::new().set(name, value.expose()).create_native_config() {
            Ok(_) => {}
            Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
                problems.add(&at.key(name), format!("`{}` is no property of librdkafka", name.escape_debug()));
            }
            Err(KafkaError::ClientConfig(_, text, ..)) => problems.add(&at.key(name), text),
            // It holds a NUL.
            Err(other) => problems.add(&at.key(name), other.to_string()),
        }
    }
}

/// `host:port`, `[::1]:port`
fn is_broker(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b".-_:%".contains(&b);
    !host.is_empty() && host.bytes().all(allowed) && port.parse::<u16>().is_ok_and(|port| port > 0)
}
