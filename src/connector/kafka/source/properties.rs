//! The properties of librdkafka for a configured source.
//! <https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md> explains each.

use rdkafka::ClientConfig;

use crate::connector::kafka::{KafkaSourceSettings, client_config};

/// Properties that `options` can change.
const DEFAULTS: [(&str, &str); 7] = [
    ("client.id", "punctual"),
    // The client reconnects within a second after a broker has recovered.
    ("reconnect.backoff.max.ms", "1000"),
    // Maximum wait for a commit.
    ("socket.timeout.ms", "10000"),
    // A topic that is created later is found within this time.
    ("topic.metadata.refresh.interval.ms", "30000"),
    // KiB and records that are fetched ahead: some batches of the intake.
    ("queued.max.messages.kbytes", "16384"),
    ("queued.min.messages", "10000"),
    // Pause before the next fetch after that queue was full.
    ("fetch.queue.backoff.ms", "50"),
];

/// The properties of a member of the group.
pub fn consumer(config: &KafkaSourceSettings) -> ClientConfig {
    let mut settings = client(config);
    settings
        .set("group.id", &config.group_id)
        // Applies only if retention has removed a committed offset. `start_position` decides otherwise.
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "false");
    settings
}

/// The properties of a client that queries the brokers and joins no group.
pub fn client(config: &KafkaSourceSettings) -> ClientConfig {
    client_config(&DEFAULTS, config.cluster())
}
