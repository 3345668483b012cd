//! A topic that each message names.

use std::time::Duration;

use punctual::{
    connector::kafka::sink::KafkaSink,
    sink::{
        Delivery, Outcome, Sink,
        template::{Allow, Place, Template},
    },
};
use tokio::time::Instant;

use super::TIMEOUT;
use crate::support::{delivery, kafka, scale::rounds, send};

fn varying(broker: &str, topic: &str, timeout: Duration, allow: &[&str]) -> KafkaSink {
    let mut config = kafka::sink_config(broker, "unused", timeout, &[]);
    config.topic = Template::parse(topic, Place::Topic).expect("a valid template");
    config.allow = Allow::new(allow).expect("valid patterns");
    KafkaSink::new(&config).expect("a valid configuration")
}

fn message(id: &str, key: &str) -> Delivery {
    let mut delivery = delivery(id, "x");
    delivery.metadata.key = Some(key.to_owned());
    delivery
}

#[tokio::test]
async fn each_record_goes_where_it_names_and_one_that_may_not_is_rejected() {
    let Some(broker) = kafka::shared().await else { return };
    let prefix = kafka::topic_name();
    for name in ["a", "b"] {
        kafka::create_topic(&broker, &format!("{prefix}.orders.{name}"), 1, &[]).await;
    }
    let allow = [format!("{prefix}.*.a"), format!("{prefix}.*.b")];
    let sink = varying(&broker, &format!("{prefix}.{{route}}.{{key}}"), TIMEOUT, &allow.each_ref().map(String::as_str));
    assert_eq!(sink.check().await, Ok(()), "the broker is there, and no topic is asked for");
    let batch = vec![message("1", "a"), message("2", "b"), message("3", "c"), message("4", "a b"), message("5", "a")];
    let outcomes = send(&sink, batch).await;
    let kinds: Vec<_> = outcomes.iter().map(Outcome::failure_kind).collect();
    assert_eq!(kinds, [None, None, Some("rejected"), Some("rejected"), None], "{outcomes:?}");
    let refusal = format!("the topic `{prefix}.orders.c` is not allowed: no pattern of `allow` matches");
    assert_eq!(outcomes[2].error(), Some(&*refusal));
    for (name, expected) in [("a", &["1", "5"][..]), ("b", &["2"])] {
        let records = kafka::consume(&broker, &format!("{prefix}.orders.{name}")).await;
        assert_eq!(records.iter().map(kafka::Record::id).collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn a_missing_topic_fails_its_own_records_only_and_delays_no_others() {
    let Some(broker) = kafka::shared().await else { return };
    let prefix = kafka::topic_name();
    kafka::create_topic(&broker, &format!("{prefix}.there"), 1, &[]).await;
    let sink = varying(&broker, &format!("{prefix}.{{key}}"), TIMEOUT, &["**"]);
    for round in 0..2 {
        let (report, mut outcomes) = punctual::sink::Report::channel();
        let names = ["there", "missing", "there", "missing-too"];
        let batch = names.map(|name| message(&format!("{round}-{name}"), name)).to_vec();
        let started = Instant::now();
        let watching = async {
            let mut seen = Vec::new();
            while let Some(punctual::sink::Reported { index, outcome, .. }) = outcomes.recv().await {
                seen.push((index, outcome, started.elapsed()));
            }
            seen
        };
        let ((), mut seen) = tokio::join!(sink.send(batch, report), watching);
        println!("round {round}: {seen:?}");
        seen.sort_by_key(|(index, ..)| *index);
        assert_eq!(seen.len(), 4);
        for (index, outcome, _) in &seen {
            if index % 2 == 0 {
                assert_eq!(*outcome, Outcome::Confirmed);
            } else {
                assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
                assert!(outcome.error().unwrap().contains(&format!("{prefix}.{}", names[*index])), "{outcome:?}");
            }
        }
        assert!(seen[0].2.max(seen[2].2) < seen[1].2.min(seen[3].2) || round > 0, "the others wait for none: {seen:?}");
    }
    assert_eq!(kafka::consume(&broker, &format!("{prefix}.there")).await.len(), 4);
    kafka::create_topic(&broker, &format!("{prefix}.missing"), 1, &[]).await;
    let appears = async { while send(&sink, vec![message("later", "missing")]).await != [Outcome::Confirmed] {} };
    tokio::time::timeout(Duration::from_secs(30), appears).await.expect("a topic that was created is found");
}

#[tokio::test]
async fn more_topics_than_a_producer_keeps_are_all_reached() {
    let topics = rounds(1500, 2500);
    let broker = kafka::mock_broker();
    let sink = varying(&broker.address, "t.{key}", TIMEOUT, &["t.*"]);
    for round in 0..2 {
        for from in (0..topics).step_by(500) {
            let batch = (from..from + 500).map(|n| message(&format!("m{round}-{n}"), &format!("{n}"))).collect();
            let started = Instant::now();
            let outcomes = send(&sink, batch).await;
            assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Confirmed), "{outcomes:?}");
            println!("500 topics: {:?}", started.elapsed());
        }
    }
}

#[tokio::test]
async fn a_broker_that_is_down_is_unavailable_whatever_a_message_names() {
    let port = crate::support::port::Port::reserve();
    let sink = varying(&port.address().to_string(), "{key}", Duration::from_secs(3), &["**"]);
    let outcomes = send(&sink, vec![message("1", "a"), message("2", "b")]).await;
    assert!(outcomes.iter().all(|outcome| outcome.failure_kind() == Some("unavailable")), "{outcomes:?}");
    assert!(sink.check().await.is_err());
}
