//! Routes take turns for what a broker's sink has few of: the channels of RabbitMQ, room in the queue of Kafka's producer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use punctual::sink::{Delivery, Outcome, Report, Sink};
use tokio::time::sleep;

use crate::support::{RabbitMq, delivery, kafka};

/// Sends batches of one route at once, and `few` messages of another route in sequence. Returns for each of these the
/// part of the backlog, in percent, that was confirmed while it waited.
async fn beside_a_backlog(
    sink: &dyn Sink,
    batches: usize,
    batch: impl Fn(usize) -> Vec<Delivery>,
    few: usize,
) -> Vec<usize> {
    let confirmed = Arc::new(AtomicUsize::new(0));
    let total = batches * batch(0).len();
    let backlog = join_all((0..batches).map(|n| {
        let (deliveries, confirmed) = (batch(n), Arc::clone(&confirmed));
        async move {
            let (report, mut outcomes) = Report::channel();
            let counting = async {
                while let Some(reported) = outcomes.recv().await {
                    assert_eq!(reported.outcome, Outcome::Confirmed);
                    confirmed.fetch_add(1, Ordering::SeqCst);
                }
            };
            tokio::join!(sink.send(deliveries, report), counting);
        }
    }));
    let other = async {
        let mut waited = Vec::new();
        while confirmed.load(Ordering::SeqCst) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        for n in 0..few {
            let mut one = delivery(&format!("few{n}"), "x");
            (one.route, one.metadata.key) = ("other".into(), Some("k".into()));
            let (before, (report, mut outcomes)) = (confirmed.load(Ordering::SeqCst), Report::channel());
            sink.send(vec![one], report).await;
            assert_eq!(outcomes.recv().await.expect("an outcome").outcome, Outcome::Confirmed);
            waited.push((confirmed.load(Ordering::SeqCst) - before) * 100 / total);
        }
        waited
    };
    tokio::join!(backlog, other).1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_does_not_wait_for_the_backlog_of_another_route_in_rabbitmq() {
    let server = RabbitMq::shared().await;
    server.declare("turns", "k").await;
    let sink = punctual::connector::rabbitmq::sink::RabbitMqSink::new(&server.config("turns")).expect("valid");
    let payload = bytes::Bytes::from(vec![0; 64 * 1024]);
    let batch = |n: usize| {
        let message = |m| {
            let mut one = delivery(&format!("many{n}-{m}"), payload.clone());
            one.metadata.key = Some("k".into());
            one
        };
        (0..50).map(message).collect()
    };
    let waited = beside_a_backlog(&sink, 20, batch, 1).await;
    println!("rabbitmq: {waited:?} percent of the backlog went first");
    assert!(waited[0] <= 60, "{waited:?}");
    sink.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_does_not_wait_for_the_backlog_of_another_route_in_kafka() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    // Ten records every 20 ms.
    let options = [("queue.buffering.max.messages", "10"), ("linger.ms", "20")];
    let config = kafka::sink_config(&broker, &topic, Duration::from_secs(20), &options);
    let sink = punctual::connector::kafka::sink::KafkaSink::new(&config).expect("valid");
    let batch = |n: usize| (0..50).map(|m| delivery(&format!("many{n}-{m}"), "x")).collect();
    let waited = beside_a_backlog(&sink, 40, batch, 5).await;
    println!("kafka: {waited:?} percent of the backlog went first");
    // One of 41 that tries at random is late by a fifth of the backlog each time.
    assert!(waited.iter().sum::<usize>() <= 40, "{waited:?}");
    sink.close().await;
}
