//! Content and destination of delivered messages.

use lapin::types::{AMQPValue, LongString};
use punctual::{
    message::{Metadata, Properties},
    sink::{Delivery, Outcome, Sink},
};

use super::{id, ids, message, messages, sink};
use crate::support::{
    RabbitMq,
    rabbitmq::{durable, key, template},
    send,
};

#[tokio::test]
async fn a_message_arrives_byte_for_byte_with_headers_and_properties() {
    let server = RabbitMq::shared().await;
    server.declare("whole", "k").await;
    let mut sent = message("whole-1", "k");
    sent.payload = (0..=255).collect::<Vec<u8>>().into();
    sent.metadata.properties = Some(Box::new(Properties {
        content_encoding: Some("gzip".into()),
        correlation_id: Some("c-1".into()),
        reply_to: Some("answers".into()),
        r#type: Some("invoice".into()),
        priority: Some(7),
        app_id: Some("shop".into()),
    }));
    let sink = sink(&server.config("whole"));
    assert_eq!(send(&sink, vec![sent.clone()]).await, [Outcome::Confirmed]);
    sink.close().await;

    let got = server.drain("whole").await.remove(0);
    assert_eq!(got.payload, sent.payload);
    let text = |value: &str| AMQPValue::LongString(LongString::from(value));
    let headers = got.properties.headers().as_ref().unwrap().inner();
    let shown: Vec<(&str, AMQPValue)> = headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    assert_eq!(
        shown,
        [
            ("X-Other", text("1")),
            ("X-Trace", text("abc é")),
            ("punctual-attempt", AMQPValue::LongLongInt(3)),
            ("punctual-due", AMQPValue::LongLongInt(1_700_000_000_123)),
            ("punctual-id", text("whole-1")),
            ("punctual-route", text("orders")),
        ]
    );
    let short = |value: &Option<lapin::types::ShortString>| value.as_ref().map(ToString::to_string);
    let properties = &got.properties;
    for (value, expected) in [
        (properties.message_id(), Some("whole-1")),
        (properties.content_type(), Some("application/x-test")),
        (properties.content_encoding(), Some("gzip")),
        (properties.correlation_id(), Some("c-1")),
        (properties.reply_to(), Some("answers")),
        (properties.kind(), Some("invoice")),
        (properties.app_id(), Some("shop")),
        (properties.user_id(), None),
        (properties.expiration(), None),
    ] {
        assert_eq!(short(value).as_deref(), expected);
    }
    assert_eq!(
        (*properties.priority(), *properties.delivery_mode(), *properties.timestamp()),
        (Some(7), Some(2), None)
    );
}

#[tokio::test]
async fn the_routing_key_is_the_sinks_else_the_messages_key() {
    let server = RabbitMq::shared().await;
    server.declare("keys", "of-the-message").await;
    server.declare_queue("keys-fixed", "keys", "of-the-sink", durable()).await;
    let mut fixed = server.config("keys");
    fixed.exchange = template("keys");
    fixed.routing_key = Some(key("of-the-sink"));
    assert_eq!(send(&sink(&fixed), messages("fixed", 1, "of-the-message")).await, [Outcome::Confirmed]);
    assert_eq!(send(&sink(&server.config("keys")), messages("own", 1, "of-the-message")).await, [Outcome::Confirmed]);
    assert_eq!(ids(&server.drain("keys-fixed").await), ["fixed0"]);
    assert_eq!(ids(&server.drain("keys").await), ["own0"]);
}

#[tokio::test]
async fn the_default_exchange_leads_to_the_queue_that_the_key_names() {
    let server = RabbitMq::shared().await;
    server.declare("named", "unused").await;
    let sink = sink(&server.config(""));
    assert_eq!(sink.check().await, Ok(()));
    assert_eq!(send(&sink, messages("default", 1, "named")).await, [Outcome::Confirmed]);
    assert_eq!(ids(&server.drain("named").await), ["default0"]);
    let without_key = Delivery { metadata: Metadata::default(), ..message("keyless", "") };
    assert_eq!(send(&sink, vec![without_key]).await[0].failure_kind(), Some("failed"));
}

#[tokio::test]
async fn two_routes_on_one_sink_with_the_same_ids_do_not_mix() {
    let server = RabbitMq::shared().await;
    server.declare("routes", "here").await;
    let sink = &sink(&server.config("routes"));
    let route = |name: &str, key: &str| -> Vec<Delivery> {
        messages("same", 2000, key).into_iter().map(|one| Delivery { route: name.into(), ..one }).collect()
    };
    let (good, bad) = tokio::join!(send(sink, route("good", "here")), send(sink, route("bad", "nowhere")));
    assert!(good.iter().all(|outcome| *outcome == Outcome::Confirmed));
    assert!(bad.iter().all(|outcome| outcome.failure_kind() == Some("failed")));
    let got = server.drain("routes").await;
    assert_eq!(got.len(), 2000);
    for one in got {
        let headers = one.properties.headers().as_ref().unwrap().inner();
        assert_eq!(headers["punctual-route"], AMQPValue::LongString("good".into()));
    }
}

/// The ids of a batch may be the same while its routes differ: a batch comes from one route today, but nothing
/// in the interface says so.
#[tokio::test]
async fn one_batch_may_hold_the_same_id_of_two_routes() {
    let server = RabbitMq::shared().await;
    server.declare("batch", "here").await;
    let batch: Vec<Delivery> = (0..400)
        .map(|n| {
            let (route, key) = if n % 2 == 0 { ("even", "here") } else { ("odd", "nowhere") };
            Delivery { route: route.into(), id: id(&format!("m{}", n / 2)), ..message("x", key) }
        })
        .collect();
    for (index, outcome) in send(&sink(&server.config("batch")), batch).await.iter().enumerate() {
        assert_eq!(outcome.failure_kind(), if index % 2 == 0 { None } else { Some("failed") }, "{index}");
    }
    assert_eq!(server.drain("batch").await.len(), 200);
}

#[tokio::test]
async fn two_sinks_share_a_broker() {
    let server = RabbitMq::shared().await;
    server.declare("left", "k").await;
    server.declare("right", "k").await;
    let missing = sink(&server.config("no-such"));
    let (left, right) = (sink(&server.config("left")), sink(&server.config("right")));
    let (a, b, c) = tokio::join!(
        send(&left, messages("l", 1000, "k")),
        send(&right, messages("r", 1000, "k")),
        send(&missing, messages("m", 10, "k"))
    );
    assert!(a.iter().chain(&b).all(|outcome| *outcome == Outcome::Confirmed));
    assert!(c.iter().all(|outcome| outcome.failure_kind() == Some("unavailable")));
    assert_eq!((server.drain("left").await.len(), server.drain("right").await.len()), (1000, 1000));
}
