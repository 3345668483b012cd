//! Records that are refused, and only those. A broker refuses a batch as a whole, so their neighbours are at risk.

use punctual::{
    connector::kafka::sink::KafkaSink,
    sink::{Delivery, Outcome},
};

use super::{TIMEOUT, Topic};
use crate::support::{delivery, kafka, send};

/// As many as fit well into one batch of librdkafka.
const NEIGHBOURS: usize = 300;

/// Sends `odd` among others of `size` bytes; expects that it alone is rejected, and the others arrive once each.
async fn only_one_is_rejected(topic: &Topic, size: usize, odd: Delivery) {
    let mut batch: Vec<_> = (0..NEIGHBOURS).map(|n| delivery(&format!("m{n}"), vec![b'x'; size])).collect();
    batch.insert(NEIGHBOURS / 2, odd);
    let outcomes = send(&topic.sink(TIMEOUT, &[]), batch.clone()).await;
    let mut confirmed = Vec::new();
    for (delivery, outcome) in batch.iter().zip(outcomes) {
        if delivery.id.as_str() == "odd" {
            assert_eq!(outcome.failure_kind(), Some("rejected"), "{outcome:?}");
        } else {
            assert_eq!(outcome, Outcome::Confirmed, "{}", delivery.id);
            confirmed.push(delivery.id.to_string());
        }
    }
    let mut arrived: Vec<_> = topic.records().await.iter().map(|record| record.id().to_owned()).collect();
    arrived.sort();
    confirmed.sort();
    assert!(arrived == confirmed, "{} arrived", arrived.len());
}

#[tokio::test]
async fn a_record_too_large_for_the_topic_is_rejected_and_the_others_arrive() {
    let Some(topic) = Topic::create(1, &[("max.message.bytes", "20000")]).await else { return };
    only_one_is_rejected(&topic, 1000, delivery("odd", vec![b'x'; 30_000])).await;
}

#[tokio::test]
async fn a_compacted_topic_rejects_a_record_without_a_key_and_no_other() {
    let Some(topic) = Topic::create(1, &[("cleanup.policy", "compact")]).await else { return };
    let mut odd = delivery("odd", "x");
    odd.metadata.key = None;
    only_one_is_rejected(&topic, 1, odd).await;
}

#[tokio::test]
async fn a_record_that_librdkafka_itself_does_not_take_is_rejected() {
    let Some(topic) = Topic::create(1, &[]).await else { return };
    let sink = topic.sink(TIMEOUT, &[("message.max.bytes", "10000")]);
    let batch = vec![delivery("small", "x"), delivery("large", vec![b'x'; 10_001])];
    let kinds: Vec<_> = send(&sink, batch).await.iter().map(Outcome::failure_kind).collect();
    assert_eq!(kinds, [None, Some("rejected")]);
}

#[tokio::test]
async fn options_reach_librdkafka() {
    let Some(topic) = Topic::create(1, &[("max.message.bytes", "20000")]).await else { return };
    let large = || vec![delivery("large", vec![b'x'; 500_000])];
    assert_eq!(send(&topic.sink(TIMEOUT, &[]), large()).await[0].failure_kind(), Some("rejected"));
    for codec in ["gzip", "lz4", "snappy", "zstd"] {
        let sink = topic.sink(TIMEOUT, &[("compression.type", codec)]);
        // Snappy does not get it below the limit, and lz4 just does.
        let small_enough = if codec == "snappy" { vec![delivery("large", vec![b'x'; 200_000])] } else { large() };
        assert_eq!(send(&sink, small_enough).await, [Outcome::Confirmed], "{codec}");
    }
}

#[test]
fn options_that_do_not_fit_together_are_refused() {
    let refused = |options: &[(&str, &str)]| {
        let config = kafka::sink_config("127.0.0.1:1", "t", TIMEOUT, options);
        KafkaSink::new(&config).err().expect("it is refused")
    };
    assert!(refused(&[("linger.ms", "900000")]).contains("linger.ms"));
    assert!(refused(&[("max.in.flight", "6")]).contains("max.in.flight"));
    let error = refused(&[("security.protocol", "ssl"), ("ssl.ca.location", "/none")]);
    assert!(error.contains("ssl.ca.location"), "{error}");
}
