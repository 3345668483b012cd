//! Brokers and topics that go down and come back.

use std::{collections::BTreeMap, time::Duration};

use punctual::sink::{Outcome, Sink};
use tokio::time::{Instant, timeout};

use super::{TIMEOUT, Topic, load::Load, sink};
use crate::support::{
    delivery,
    kafka::{self, Broker, Record},
    send, send_one,
};

/// Timeout of a sink without its broker or its topic.
const SHORT: Duration = Duration::from_secs(3);
/// A broker on a busy machine, and a topic that was created, are found after seconds.
const RECOVERY: Duration = Duration::from_secs(30);

/// Sends until a message is confirmed. Every other outcome must be `unavailable`.
async fn delivers_again(sink: &dyn Sink) {
    let again = async {
        loop {
            match send_one(sink).await {
                Outcome::Confirmed => return,
                outcome => assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}"),
            }
        }
    };
    timeout(RECOVERY, again).await.expect("it delivers again");
}

/// Messages of the load that are sent only once the deleted topic was created again.
const HELD: usize = 500;

/// How often each id arrived.
fn counts(records: &[Record]) -> BTreeMap<&str, usize> {
    records.iter().fold(BTreeMap::new(), |mut counts, record| {
        *counts.entry(record.id()).or_default() += 1;
        counts
    })
}

#[tokio::test]
async fn a_missing_topic_is_unavailable_until_created_and_stops_no_other_sink() {
    let Some(topic) = Topic::missing().await else { return };
    let (missing, other) = (topic.sink(SHORT, &[]), Topic::create(1, &[]).await.expect("a broker"));
    let other = other.sink(TIMEOUT, &[]);
    for _ in 0..2 {
        let (outcome, beside) = tokio::join!(send_one(&missing), send_one(&other));
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
        assert!(outcome.error().expect("a text").contains(&topic.name), "{outcome:?}");
        assert_eq!(beside, Outcome::Confirmed);
    }
    let error = missing.check().await.expect_err("it is not there");
    assert!(error.contains("UnknownTopic"), "{error}");
    let (broker, name) = (&topic.broker, &topic.name);
    let command = format!("kafka-topics.sh --bootstrap-server {broker} --create --topic {name}");
    assert!(error.ends_with(&format!(": create it with `{command}`")), "{error}");

    kafka::create_topic(&topic.broker, &topic.name, 1, &[]).await;
    delivers_again(&missing).await;
    assert_eq!(missing.check().await, Ok(()));
}

#[tokio::test]
async fn a_topic_that_is_deleted_under_load_and_created_again_costs_time_only() {
    let Some(topic) = Topic::create(1, &[]).await else { return };
    let (load, sink) = (Load::held_back(HELD, 2000), topic.sink(SHORT, &[]));
    let deleting = async {
        load.reached(300).await;
        kafka::delete_topic(&topic.broker, &topic.name).await;
        let lost_sight = async { while send_one(&sink).await == Outcome::Confirmed {} };
        timeout(RECOVERY, lost_sight).await.expect("it notices");
        kafka::create_topic(&topic.broker, &topic.name, 1, &[]).await;
        load.release(HELD);
    };
    let running = timeout(2 * RECOVERY, load.run(&sink));
    let (ran, ()) = tokio::join!(running, deleting);
    ran.expect("all are confirmed in the end");
    let records = topic.records().await;
    let arrived = counts(&records);
    let lost: Vec<_> = (2000 - HELD..2000).filter(|n| !arrived.contains_key(&*Load::id(*n))).collect();
    assert_eq!(lost, [0; 0]);
}

#[tokio::test]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_stopped_broker_is_unavailable_within_the_timeout_until_it_is_back() {
    let Some(mut broker) = Broker::start().await else { return };
    kafka::create_topic(&broker.address(), "t", 1, &[]).await;
    let sink = sink(&broker.address(), "t", SHORT, &[]);
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);

    broker.stop().await;
    for _ in 0..2 {
        let started = Instant::now();
        let outcome = send_one(&sink).await;
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
        assert!(started.elapsed() <= SHORT + Duration::from_millis(200), "{:?}", started.elapsed());
        assert!(outcome.error().expect("a text").contains("Connect"), "{outcome:?}");
    }
    assert!(sink.check().await.is_err());

    broker.restart().await;
    delivers_again(&sink).await;
    assert_eq!(sink.check().await, Ok(()));
}

#[tokio::test]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn nothing_is_lost_when_the_broker_is_killed_under_load() {
    let Some(mut broker) = Broker::start().await else { return };
    kafka::create_topic(&broker.address(), "t", 3, &[]).await;
    let (load, sink) = (Load::new(2000), sink(&broker.address(), "t", Duration::from_secs(5), &[]));
    let killing = async {
        load.reached(300).await;
        broker.kill();
        let outstanding = 2000 - load.confirmed().len();
        assert!(outstanding > 0, "it was killed too late");
        broker.restart().await;
        outstanding.min(400)
    };
    let (ran, outstanding) = tokio::join!(timeout(4 * RECOVERY, load.run(&sink)), killing);
    ran.expect("all are confirmed in the end");
    let records = kafka::consume(&broker.address(), "t").await;
    let arrived = counts(&records);
    assert_eq!(arrived.len(), 2000);
    let duplicates = records.len() - arrived.len();
    assert!(duplicates <= outstanding, "{duplicates} duplicates of {outstanding} that were on their way");
}

#[tokio::test]
async fn a_full_queue_holds_back_and_fails_nothing() {
    let Some(topic) = Topic::create(3, &[]).await else { return };
    let sink = topic.sink(TIMEOUT, &[("queue.buffering.max.messages", "10")]);
    let batch = |name: &str| (0..1000).map(|n| delivery(&format!("{name}{n}"), "x")).collect();
    let (one, two) = tokio::join!(send(&sink, batch("one")), send(&sink, batch("two")));
    assert!(one.iter().chain(&two).all(|outcome| *outcome == Outcome::Confirmed));
    let records = topic.records().await;
    assert_eq!((records.len(), counts(&records).len()), (2000, 2000));
}
