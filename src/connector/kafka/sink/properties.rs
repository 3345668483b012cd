//! The properties of librdkafka for a configured sink.
//! <https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md> explains each.

use std::time::Duration;

use rdkafka::ClientConfig;

use crate::connector::kafka::{KafkaSinkSettings, client_config};

/// Time before the sink's timeout at which librdkafka fails a message, so that the report arrives before the timeout.
/// librdkafka checks for timeouts once a second.
const REPORT_MARGIN: Duration = Duration::from_secs(2);

/// Properties that `options` can change.
const DEFAULTS: [(&str, &str); 8] = [
    ("client.id", "punctual"),
    // With 0, librdkafka sends a record as soon as it can. Then a batch of the scheduler becomes many small requests,
    // and the thread of librdkafka spins while the maximum number of requests has no answer.
    ("linger.ms", "1"),
    // Records without a key go to one partition for this time in ms, then to another, so that batches fill.
    // librdkafka's own default depends on `linger.ms`.
    ("sticky.partitioning.linger.ms", "10"),
    // The partition of a key is the one that the Java producer chooses.
    ("partitioner", "murmur2_random"),
    // Above punctual's largest payload with its metadata. The topic limits the size of a record.
    ("message.max.bytes", "4194304"),
    // KiB in the queue. While it is full, the sink waits.
    ("queue.buffering.max.kbytes", "65536"),
    // The client reconnects within a second after a broker has recovered.
    ("reconnect.backoff.max.ms", "1000"),
    // Time from the first use of a topic in which it can be missing. After that its messages fail.
    ("topic.metadata.propagation.max.ms", "1000"),
];

/// The properties of a producer. `options` override all but those that delivery guarantees depend on.
pub fn producer(config: &KafkaSinkSettings) -> ClientConfig {
    let mut settings = client_config(&DEFAULTS, config.cluster());
    settings
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.timeout.ms", message_timeout(config.timeout.0).as_millis().to_string());
    settings
}

/// The properties of a producer that puts each record into a batch of its own.
pub fn solo_producer(config: &KafkaSinkSettings) -> ClientConfig {
    let mut settings = producer(config);
    settings.set("batch.num.messages", "1");
    settings
}

/// At least half of the sink's timeout.
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
    fn a_message_times_out_before_the_sink_does() {
        let millis = Duration::from_millis;
        assert_eq!(message_timeout(millis(10_000)), millis(8_000));
        assert_eq!(message_timeout(millis(4_000)), millis(2_000));
        assert_eq!(message_timeout(millis(100)), millis(50));
    }

    #[test]
    fn options_win_except_over_delivery_guarantees() {
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
