//! From our configuration to librdkafka's properties.
//! <https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md> explains each.

use std::time::Duration;

use rdkafka::ClientConfig;

use crate::connector::kafka::{KafkaSinkSettings, connect};

/// How much earlier than the sink librdkafka gives a message up, so that its report still arrives: it looks
/// for such messages once a second.
const REPORT_MARGIN: Duration = Duration::from_secs(2);

/// What `options` may change.
const DEFAULTS: [(&str, &str); 7] = [
    ("client.id", "punctual"),
    // A batch is gathered already when it gets here.
    ("linger.ms", "0"),
    // A key lands in the partition where Java's producer puts it.
    ("partitioner", "murmur2_random"),
    // Above punctual's largest payload with its metadata: how large a record may be is for the topic to say.
    ("message.max.bytes", "4194304"),
    // KiB that wait to be sent or confirmed; beyond, sending waits.
    ("queue.buffering.max.kbytes", "65536"),
    // Once a broker is back, it is found within a second.
    ("reconnect.backoff.max.ms", "1000"),
    // How long a topic may be missing, counted from its first use, before messages to it fail.
    ("topic.metadata.propagation.max.ms", "1000"),
];

/// Those of a producer. `options` win over all but what the promises rest on.
pub fn producer(config: &KafkaSinkSettings) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings.extend(DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned())));
    connect(&mut settings, config.cluster());
    settings
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.timeout.ms", message_timeout(config.timeout.0).as_millis().to_string());
    settings
}

/// Those of a producer that puts every record into a batch of its own.
pub fn solo_producer(config: &KafkaSinkSettings) -> ClientConfig {
    let mut settings = producer(config);
    settings.set("batch.num.messages", "1");
    settings
}

/// Half of it at least is left for the way to the broker.
fn message_timeout(timeout: Duration) -> Duration {
    timeout.saturating_sub(REPORT_MARGIN).max(timeout / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Period, Property},
        connector::kafka::Sasl,
        sink::template::{Allow, Place, Template},
        tls::TlsFiles,
    };

    #[test]
    fn a_message_is_given_up_while_its_report_still_counts() {
        let millis = Duration::from_millis;
        assert_eq!(message_timeout(millis(10_000)), millis(8_000));
        assert_eq!(message_timeout(millis(4_000)), millis(2_000));
        assert_eq!(message_timeout(millis(100)), millis(50));
    }

    #[test]
    fn options_win_except_where_the_promises_rest() {
        let config = KafkaSinkSettings {
            brokers: ["one:1".to_owned(), "two:2".to_owned()].into_iter().collect(),
            topic: Template::parse("t", Place::Topic).unwrap(),
            allow: Allow::default(),
            timeout: Period(Duration::from_secs(10)),
            sasl: Sasl { username: Some("u".into()), password: Some("p".into()), ..Sasl::default() },
            tls: TlsFiles { ca_file: Some("/ca.pem".into()), ..TlsFiles::default() },
            options: [("linger.ms", "3"), ("acks", "0"), ("sasl.mechanism", "SCRAM-SHA-512")]
                .map(|(name, value)| (name.to_owned(), Property(value.into())))
                .into(),
        };
        let settings = producer(&config);
        for (name, value) in [
            ("bootstrap.servers", "one:1,two:2"),
            ("linger.ms", "3"),
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("message.timeout.ms", "8000"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "u"),
            ("sasl.password", "p"),
            ("ssl.ca.location", "/ca.pem"),
        ] {
            assert_eq!(settings.get(name), Some(value), "{name}");
        }
        settings.create_native_config().expect("librdkafka knows all of them");
    }
}
