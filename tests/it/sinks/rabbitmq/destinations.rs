//! An exchange and a routing key that each message names.

use std::{collections::BTreeMap, time::Duration};

use lapin::{
    ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions},
    types::FieldTable,
};
use punctual::{
    config::Period,
    connector::rabbitmq::RabbitMqSinkSettings,
    sink::{Outcome, Sink, template::Allow},
};

use super::{ids, kinds, message, messages, sink};
use crate::support::{
    RabbitMq,
    port::Port,
    rabbitmq::{self, durable, key, template},
    send, send_one,
};

fn varying(server: &RabbitMq, exchange: &str, routing_key: Option<&str>, allow: &[&str]) -> RabbitMqSinkSettings {
    let allow = Allow::new(allow).expect("valid patterns");
    RabbitMqSinkSettings { exchange: template(exchange), routing_key: routing_key.map(key), allow, ..server.config("") }
}

#[tokio::test]
async fn each_message_goes_where_it_names_and_one_that_may_not_is_rejected() {
    let server = RabbitMq::shared().await;
    server.declare("tenant.a", "r1").await;
    server.declare("tenant.b", "r1").await;
    let sink = sink(&varying(server, "tenant.{key}", Some("{header:X-Other}{header:x-kind}"), &["tenant.?/?1"]));
    let with_kind = |id: &str, key: &str, kind: &str| {
        let mut message = message(id, key);
        message.metadata.headers.insert("X-Other".into(), "r".into());
        message.metadata.headers.insert("X-Kind".into(), kind.into());
        message
    };
    let batch = vec![
        with_kind("to-a", "a", "1"),
        with_kind("to-b", "b", "1"),
        with_kind("not-allowed", "ab", "1"),
        with_kind("not-bound", "a", "11"),
        with_kind("a-slash", "a/r1", "1"),
        message("no-header", "a"),
    ];
    let outcomes = send(&sink, batch).await;
    let rejected = Some("rejected");
    assert_eq!(kinds(&outcomes), [None, None, rejected, rejected, rejected, rejected], "{outcomes:?}");
    assert!(outcomes[2].error().unwrap().contains("`tenant.ab/r1` is not allowed"), "{outcomes:?}");
    assert!(outcomes[5].error().unwrap().contains("header `x-kind`"), "{outcomes:?}");
    assert_eq!(ids(&server.drain("tenant.a").await), ["to-a"]);
    assert_eq!(ids(&server.drain("tenant.b").await), ["to-b"]);
}

#[tokio::test]
async fn a_routing_key_template_leads_to_its_queue_whatever_the_messages_key() {
    let server = RabbitMq::shared().await;
    server.declare_exchange("by-route").await;
    server.declare_queue("by-route", "by-route", "due.orders", durable()).await;
    let sink = sink(&varying(server, "by-route", Some("due.{route}"), &["due.*"]));
    assert_eq!(sink.check().await, Ok(()));
    assert_eq!(send(&sink, messages("m", 10, "anything")).await, vec![Outcome::Confirmed; 10]);
    assert_eq!(server.drain("by-route").await.len(), 10);
}

#[tokio::test]
async fn an_exchange_that_is_not_there_fails_its_own_messages_only() {
    let server = RabbitMq::shared().await;
    server.declare("there-1", "k").await;
    server.declare("there-2", "k").await;
    let sink = sink(&varying(server, "{key}", Some("k"), &["**"]));
    assert_eq!(sink.check().await, Ok(()), "the broker is there, and no exchange is asked for");
    let mut batch = messages("one-", 300, "there-1");
    batch.extend(messages("missing-", 300, "not-there"));
    batch.extend(messages("two-", 300, "there-2"));
    for (message, outcome) in batch.clone().iter().zip(send(&sink, batch).await) {
        if message.id.as_str().starts_with("missing") {
            assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
            assert!(outcome.error().unwrap().contains("no exchange 'not-there'"), "{outcome:?}");
        } else {
            assert_eq!(outcome, Outcome::Confirmed, "{}", message.id);
        }
    }
    assert_eq!((server.drain("there-1").await.len(), server.drain("there-2").await.len()), (300, 300));
}

#[tokio::test]
async fn an_exchange_that_is_not_for_us_fails_its_own_messages_only() {
    let server = RabbitMq::shared().await;
    server.declare("ours", "k").await;
    server.declare("theirs", "k").await;
    server.create_user("limited", "limited").await;
    server.permit("limited", "", "ours", "").await;
    let mut config = varying(server, "{key}", Some("k"), &["**"]);
    config.username = Some("limited".into());
    config.password = Some("limited".into());
    let batch = vec![message("a", "ours"), message("b", "theirs"), message("c", "ours")];
    let outcomes = send(&sink(&config), batch).await;
    assert_eq!(kinds(&outcomes), [None, Some("failed"), None]);
    assert!(outcomes[1].error().unwrap().contains("ACCESS_REFUSED"), "{outcomes:?}");
    assert_eq!(ids(&server.drain("ours").await), ["a", "c"]);
}

#[tokio::test]
async fn a_broker_that_is_down_is_unavailable_whatever_a_message_names() {
    // As where a broker was killed, nothing listens there.
    let port = Port::reserve();
    let (exchange, routing_key) = (template("{key}"), Some(key("k")));
    let (allow, timeout) = (Allow::new(["**"]).expect("valid patterns"), Period(Duration::from_secs(3)));
    let sink =
        sink(&RabbitMqSinkSettings { exchange, routing_key, allow, timeout, ..rabbitmq::config(port.number(), "") });
    assert_eq!(send_one(&sink).await.failure_kind(), Some("unavailable"));
    assert!(sink.check().await.is_err());
}

#[tokio::test]
async fn many_exchanges_of_which_half_are_missing_share_a_few_channels() {
    const EXCHANGES: usize = 400;
    let server = RabbitMq::shared().await;
    let (channel, fanout) = (server.channel().await, ExchangeKind::Fanout);
    channel.queue_declare("many".into(), durable(), FieldTable::default()).await.unwrap();
    for n in (0..EXCHANGES).step_by(2) {
        let (name, options) = (format!("many-{n}"), ExchangeDeclareOptions::default());
        channel.exchange_declare((&*name).into(), fanout.clone(), options, FieldTable::default()).await.unwrap();
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind("many".into(), (&*name).into(), "".into(), options, none).await.unwrap();
    }
    // A user of its own, because other tests use this broker.
    server.add_user("many-user", "many-.*", ".*").await;
    let mut config = varying(server, "{key}", Some("k"), &["many-*/k"]);
    (config.username, config.password) = (Some("many-user".into()), Some("many-user".into()));
    let sink = sink(&config);
    let batch: Vec<_> = (0..EXCHANGES).map(|n| message(&format!("m{n}"), &format!("many-{n}"))).collect();
    let started = tokio::time::Instant::now();
    let outcomes = send(&sink, batch.clone()).await;
    println!("{EXCHANGES} exchanges in one batch, half of them missing: {:?}", started.elapsed());
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.failure_kind(), if n % 2 == 0 { None } else { Some("failed") }, "{n}: {outcome:?}");
    }
    let channels = server.ctl(&["list_channels", "user", "connection"]).await;
    let mut counts = BTreeMap::new();
    for connection in channels.lines().filter_map(|line| line.strip_prefix("many-user\t")) {
        *counts.entry(connection).or_insert(0) += 1;
    }
    assert!((1..=4).contains(counts.values().max().unwrap_or(&0)), "{channels}");
    // Another time, over the channels that were left.
    let again = send(&sink, batch).await;
    assert_eq!(kinds(&again), kinds(&outcomes));
    assert_eq!(server.drain("many").await.len(), EXCHANGES);
}
