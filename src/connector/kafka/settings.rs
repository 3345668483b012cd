//! The settings of Kafka sinks and sources.

use std::{any::Any, collections::BTreeMap, sync::Arc, time::Duration};

use rdkafka::{ClientConfig, error::KafkaError, types::RDKafkaConfRes};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::{sink::KafkaSink, source::KafkaSource};
use crate::{
    config::{
        Context, List, Path, Period, Problems, Property, Settings, Timeout, check_allow, check_tls, non_empty, template,
    },
    secret::Secret,
    sink::{
        OpenSink, SinkSettings,
        template::{Allow, Place, Template},
    },
    source::{Source, SourceSettings, SourceSetup},
    tls::TlsFiles,
};

/// Properties of a sink that delivery guarantees depend on, under all their names, and what to do instead.
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

/// Properties of a source that delivery guarantees depend on, under all their names, and what to do instead.
const REFUSED_OF_SOURCES: [(&str, &str); 10] = [
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

const POLL_INTERVAL: &str = "max.poll.interval.ms";
/// Minimum `max.poll.interval.ms`, in milliseconds. A rebalance takes up to 20 s: 5 s for the batch in flight to Redis,
/// 5 s for the brokers' offsets, 10 s for a commit.
const MIN_POLL_INTERVAL: u64 = 30_000;

/// Maximum `max_overdue`, in milliseconds: 10,000 days.
const LONGEST_OVERDUE: u64 = 10_000 * 24 * 3_600_000;

/// Properties of librdkafka, by name.
type Options = BTreeMap<String, Property>;

/// A record in a Kafka topic.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaSinkSettings {
    /// `host:port` of one or more brokers of the cluster; required.
    #[serde(default)]
    pub brokers: List<String>,
    /// Name of the topic; required. It can contain `{key}`, `{route}`, `{header:NAME}`.
    #[serde(deserialize_with = "topic")]
    #[schemars(with = "String")]
    pub topic: Template,
    /// Patterns of topics: each topic must match one of them. Required if `topic` has placeholders. `*` is any text,
    /// `?` one character.
    pub allow: Allow,
    /// Maximum time from sending a batch to its confirmation: 100ms to 1h. Each route to the sink needs a `lease` that
    /// is at least 500ms longer.
    pub timeout: Timeout,
    pub sasl: Sasl,
    /// TLS files. Any of them enables TLS.
    pub tls: TlsFiles,
    /// Further properties of librdkafka.
    pub options: Options,
}

/// Topics of Kafka.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaSourceSettings {
    /// Route on which the messages are scheduled; required.
    pub route: Arc<str>,
    /// `host:port` of one or more brokers of the cluster; required.
    #[serde(default)]
    pub brokers: List<String>,
    /// Names of the topics; required.
    #[serde(default)]
    pub topics: List<String>,
    /// Name of the consumer group that all instances share; required.
    pub group_id: String,
    /// Where a group begins on a topic that it has not read before: `earliest` or `latest` record. Records that arrive
    /// afterwards are always read.
    pub start: Start,
    /// Maximum time by which a record can be overdue when the group starts on a topic for the first time: 1s to
    /// 10000days. Records that are overdue by more are skipped and counted. Unless set: no record is skipped.
    pub max_overdue: Option<Period<1_000, LONGEST_OVERDUE>>,
    /// Records without a value and without a timing header: `cancel` cancels the schedule of their key, `forward`
    /// forwards them as messages that are due now.
    pub tombstones: Tombstones,
    pub sasl: Sasl,
    /// TLS files. Any of them enables TLS.
    pub tls: TlsFiles,
    /// Further properties of librdkafka.
    pub options: Options,
}

/// Where a consumer group starts at its first start on a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    Earliest,
    Latest,
}

/// The meaning of a record without a value and without a timing header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tombstones {
    /// Cancels the schedule of its key. Skipped if none waits.
    #[default]
    Cancel,
    /// A message like any other.
    Forward,
}

/// Authentication of the client. Without TLS it needs `security.protocol: sasl_plaintext` in `options`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sasl {
    /// SASL mechanism.
    pub mechanism: Mechanism,
    /// User name. A user name enables SASL.
    #[serde(deserialize_with = "non_empty")]
    pub username: Option<String>,
    /// Password of `sasl.username`.
    #[serde(deserialize_with = "non_empty")]
    pub password: Option<Secret>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum Mechanism {
    #[default]
    #[serde(rename = "PLAIN")]
    Plain,
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl Mechanism {
    /// The name of the mechanism in Kafka.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

fn topic<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Template, D::Error> {
    template(deserializer, Place::Topic)
}

/// A Kafka cluster and the settings to connect to it.
#[derive(Clone, Copy)]
pub struct Cluster<'a> {
    pub brokers: &'a List<String>,
    pub sasl: &'a Sasl,
    pub tls: &'a TlsFiles,
    pub options: &'a Options,
}

impl KafkaSinkSettings {
    pub fn cluster(&self) -> Cluster<'_> {
        Cluster { brokers: &self.brokers, sasl: &self.sasl, tls: &self.tls, options: &self.options }
    }
}

impl KafkaSourceSettings {
    pub fn cluster(&self) -> Cluster<'_> {
        Cluster { brokers: &self.brokers, sasl: &self.sasl, tls: &self.tls, options: &self.options }
    }
}

impl Settings for KafkaSinkSettings {
    fn check(&mut self, at: &Path, _: &Context, problems: &mut Problems) {
        check_allow(&self.allow, self.topic.shape().as_ref(), (at, "topic"), problems);
        self.cluster().check(&REFUSED, at, problems);
    }
}

impl SinkSettings for KafkaSinkSettings {
    fn kind(&self) -> &'static str {
        "kafka"
    }

    fn timeout(&self) -> Duration {
        self.timeout.0
    }

    fn varying(&self) -> Option<&'static str> {
        self.topic.as_constant().is_none().then_some("topic")
    }

    fn remark(&self) -> Option<String> {
        Some(format!("partitioner {}", KafkaSink::partitioner(self)))
    }

    fn open(&self) -> Result<OpenSink, String> {
        KafkaSink::new(self).map(OpenSink::new)
    }
}

impl Settings for KafkaSourceSettings {
    fn check(&mut self, at: &Path, _: &Context, problems: &mut Problems) {
        if self.topics.is_empty() {
            problems.require::<()>(&at.key("topics"), None);
        }
        for (place, topic) in self.topics.places() {
            problems.check(&at.key("topics").key(place.to_string()), Place::Topic.check(topic));
        }
        if self.group_id.is_empty() {
            problems.require::<()>(&at.key("group_id"), None);
        }
        self.cluster().check(&REFUSED_OF_SOURCES, at, problems);
        let given = self.options.get(POLL_INTERVAL).map(|given| given.0.expose());
        let too_short = |given: &&str| given.trim().parse().is_ok_and(|millis: u64| millis < MIN_POLL_INTERVAL);
        if let Some(given) = given.filter(too_short) {
            let text = format!("`{given}` is below {MIN_POLL_INTERVAL}: a rebalance waits for Redis and for a commit");
            problems.add(&at.key("options").key(POLL_INTERVAL), text);
        }
    }
}

impl SourceSettings for KafkaSourceSettings {
    fn kind(&self) -> &'static str {
        "kafka"
    }

    fn route(&self) -> &Arc<str> {
        &self.route
    }

    /// A topic is read again from the last committed offset.
    fn reads_again(&self) -> bool {
        true
    }

    /// A group assigns each partition to one of its members. If members had different routes, the assignment would
    /// decide the route of a record. Also, ids are `topic:partition:offset`: ids of two clusters must not meet on one
    /// route.
    fn conflict(&self, other: &dyn SourceSettings, other_name: &str) -> Option<(&'static str, String)> {
        let other = (other as &dyn Any).downcast_ref::<Self>()?;
        let topic = self.topics.iter().find(|topic| other.topics.iter().any(|other| other == *topic))?;
        let one_cluster = self.brokers.iter().any(|broker| other.brokers.iter().any(|other| other == broker));
        let one_route = self.route == other.route;
        if one_cluster && !one_route && self.group_id == other.group_id {
            let group = self.group_id.escape_debug();
            let text = format!("`{group}` reads topic {topic} for another route too: sources.{other_name}");
            return Some(("group_id", text));
        }
        (!one_cluster && one_route).then(|| {
            let text = format!(
                "{topic} of other brokers leads to this route too (sources.{other_name}), with the same ids: give it \
                 another route; if they are one cluster, name a common broker"
            );
            ("topics", text)
        })
    }

    fn open(&self, _: SourceSetup<'_>) -> Result<Arc<dyn Source>, String> {
        KafkaSource::new(self).map(|source| Arc::new(source) as _)
    }
}

impl Cluster<'_> {
    /// The brokers' addresses with commas between.
    pub fn addresses(&self) -> String {
        self.brokers.iter().map(String::as_str).collect::<Vec<_>>().join(",")
    }

    /// `refused`: properties that cannot be set, and what to do instead.
    fn check(&self, refused: &[(&str, &str)], at: &Path, problems: &mut Problems) {
        if self.brokers.is_empty() {
            problems.require::<()>(&at.key("brokers"), None);
        }
        for (place, broker) in self.brokers.places().filter(|(_, broker)| !is_broker(broker)) {
            let text = format!("`{}` is not a host and port such as localhost:9092", broker.escape_debug());
            problems.add(&at.key("brokers").key(place.to_string()), text);
        }
        check_tls(at, self.tls, true, problems);
        check_options(&at.key("options"), self.options, refused, problems);
        let Sasl { mechanism, username, password } = self.sasl;
        let sasl_at = at.key("sasl");
        if let (None, Some(_)) = (username, password) {
            problems.add(&sasl_at.key("password"), "needs `username` too");
        }
        if *mechanism != Mechanism::Plain && !has_scram() {
            let text = format!("this build's librdkafka has no {}, only PLAIN", mechanism.name());
            problems.add(&sasl_at.key("mechanism"), text);
        }
        if let Some(protocol) = self.options.get("security.protocol").map(|protocol| protocol.0.expose().to_lowercase())
        {
            for (at, used, part) in [
                (at.key("tls").key("ca_file"), self.tls.ca_file.is_some(), "ssl"),
                (at.key("tls").key("cert_file"), self.tls.cert_file.is_some(), "ssl"),
                (sasl_at.key("username"), username.is_some(), "sasl"),
            ] {
                if used && !protocol.contains(part) {
                    problems.add(&at, format!("needs a `security.protocol` with {part} in it"));
                }
            }
        } else if username.is_some() && self.tls.is_empty() {
            let text = "would leave without TLS, with its password: set `tls.ca_file` or, in `options`, \
                        `security.protocol: sasl_ssl`; `sasl_plaintext` there means it";
            problems.add(&sasl_at.key("username"), text);
        }
    }
}

/// Whether librdkafka was built with SCRAM.
fn has_scram() -> bool {
    let features = ClientConfig::new().create_native_config().and_then(|native| native.get("builtin.features"));
    features.is_ok_and(|features| features.split(',').any(|feature| feature.trim() == "sasl_scram"))
}

fn check_options(at: &Path, options: &Options, refused: &[(&str, &str)], problems: &mut Problems) {
    for (name, Property(value)) in options {
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
            // The value contains a NUL.
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
