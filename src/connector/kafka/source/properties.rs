//! From our configuration to librdkafka's properties.
//! <https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md> explains each.

use rdkafka::ClientConfig;

use crate::connector::kafka::{KafkaSourceSettings, connect};

/// What `options` may change.
const DEFAULTS: [(&str, &str); 7] = [
    ("client.id", "punctual"),
    // Once a broker is back, it is found within a second.
    ("reconnect.backoff.max.ms", "1000"),
    // Longest wait for a commit.
    ("socket.timeout.ms", "10000"),
    // A topic that is created later is found within so many ms.
    ("topic.metadata.refresh.interval.ms", "30000"),
    // KiB, and records, that are fetched before they are wanted: some batches of ours.
    ("queued.max.messages.kbytes", "16384"),
    ("queued.min.messages", "10000"),
    // Until it fetches again after that was full.
    ("fetch.queue.backoff.ms", "50"),
];

/// Those of a member of the group.
pub fn consumer(config: &KafkaSourceSettings) -> ClientConfig {
    let mut settings = client(config);
    settings
        .set("group.id", &config.group_id)
        // For what retention has removed meanwhile: `beginning` knows where to start.
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "false");
    settings
}

/// Those of a client that only asks: it joins no group.
pub fn client(config: &KafkaSourceSettings) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings.extend(DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned())));
    connect(&mut settings, config.cluster());
    settings
}
