//! Messages that cannot be understood or kept.

use std::path::Path;

use lapin::types::AMQPValue;
use tokio::process::Command;

use super::{configuration, declare, publish, python, until, wait_for, with_headers};
use crate::support::{RabbitMq, http, punctual::Punctual};

#[tokio::test(flavor = "multi_thread")]
async fn broken_and_too_large_messages_become_dead_letters_and_the_rest_goes_on() {
    let server = RabbitMq::shared().await;
    declare(server, "refusals").await;
    let punctual = Punctual::start(&configuration(server, "refusals", "embedded", ", id_from: message_id")).await;
    let delay = |text: &str, id: &str| with_headers(&[("x-delay", AMQPValue::LongString(text.into()))], id);
    publish(
        server,
        "refusals",
        vec![
            (delay("soon", "broken"), b"kept".to_vec()),
            (delay("0", "large"), vec![b'x'; 2 << 20]),
            (delay("0", "huge"), vec![b'x'; (16 << 20) + 1]),
            (with_headers(&[("x-flow", AMQPValue::LongString("a b".into()))], "flow"), b"kept".to_vec()),
            (delay("0", "fine"), b"fine".to_vec()),
        ],
    )
    .await;
    let got = wait_for(server, "refusals", 1).await;
    assert_eq!((got.len(), &*got[0].1.id), (1, "fine"));
    until(&punctual, "/v1/routes/r", |route| route["dead"] == 3).await;
    for (id, reason) in [
        ("broken", "x-delay: `soon` is neither"),
        ("large", "the payload takes 2097152 bytes"),
        ("flow", "invalid: x-flow: a flow is 1 to 128"),
    ] {
        let dead = super::get(&punctual, &format!("/v1/routes/r/messages/{id}")).await;
        assert!(dead["last_error"].as_str().is_some_and(|error| error.contains(reason)), "{dead}");
    }
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["depth"] == 0).await;
    let page = http::client().get(punctual.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for line in ["taken_total{source=\"in\"} 1", "invalid_total{source=\"in\"} 3", "skipped_total{source=\"in\"} 1"] {
        assert!(page.contains(&format!("punctual_source_{line}")), "{line}:\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_keeps_its_producers_identity_when_it_is_redriven() {
    let server = RabbitMq::shared().await;
    declare(server, "identity").await;
    let punctual = Punctual::start(&configuration(server, "identity", "embedded", "")).await;
    let given = with_headers(&[("x-delay", AMQPValue::LongString("soon".into()))], "order 7")
        .with_timestamp(1_700_000_000)
        .with_correlation_id("c".into());
    publish(server, "identity", vec![(given, b"kept".to_vec())]).await;
    until(&punctual, "/v1/routes/r", |route| route["dead"] == 1).await;
    let dead = super::get(&punctual, "/v1/routes/r/messages?state=dead").await;
    let dead = &dead["messages"][0];
    let origin = serde_json::json!({"message_id": "order 7", "exchange": "identity-in", "timestamp": 1_700_000_000});
    assert_eq!((&dead["origin"], &dead["key"]), (&origin, &"k".into()), "{dead}");
    assert_eq!(dead["properties"]["correlation_id"], "c", "{dead}");
    let redrive = http::client().post(punctual.url("/v1/routes/r/dead/redrive")).body(r#"{"all":true}"#);
    let redriven = redrive.send().await.unwrap();
    assert!(redriven.status().is_success(), "{redriven:?}");
    let got = wait_for(server, "identity", 1).await;
    let (_, got) = &got[0];
    assert_eq!((&*got.id, &*got.payload), ("order 7", &b"kept"[..]));
    assert_eq!(*got.properties.timestamp(), Some(1_700_000_000));
    assert_eq!(got.properties.correlation_id().as_ref().unwrap().as_str(), "c");
}

/// RabbitMQ checks neither that short strings are UTF-8 nor how deeply tables are nested.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_message_becomes_a_dead_letter_and_blocks_nothing() {
    let Some(python) = python() else { return };
    let server = RabbitMq::shared().await;
    declare(server, "odd").await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/amqp/odd.py");
    let mut producer = Command::new(python);
    producer.arg(script).args([&server.port().to_string(), "odd-in", "k"]);
    assert!(producer.status().await.unwrap().success());
    let punctual = Punctual::start(&configuration(server, "odd", "embedded", ", id_from: message_id")).await;
    until(&punctual, "/v1/routes/r", |route| route["dead"] == 5).await;
    let got = wait_for(server, "odd", 10).await;
    assert_eq!(got.len(), 10, "each once");
    for (_, got) in got {
        assert_eq!(got.properties.correlation_id().as_ref().unwrap().as_str(), "café");
    }
    let dead = super::get(&punctual, "/v1/routes/r/messages?state=dead").await;
    let dead: Vec<_> = dead["messages"].as_array().unwrap().iter().map(|dead| &dead["last_error"]).collect();
    for reason in [
        r"correlation_id `caf\xe9` is no UTF-8",
        r"message_id `caf\xe9` is no UTF-8",
        r"header name `caf\xe9` is no UTF-8, type `caf\xe9` is no UTF-8",
        r"header name `caf\xe9` is no UTF-8",
        "header `deep` has arrays or tables nested deeper than 32",
    ] {
        assert!(dead.contains(&&format!("invalid: {reason}").into()), "{reason}: {dead:?}");
    }
    let kept = super::get(&punctual, "/v1/routes/r/messages/odd-header").await;
    let header = serde_json::json!({ "name": "X", "value": "kept" });
    assert_eq!((&kept["headers"][0], &kept["properties"]["type"]), (&header, &"caf?".into()), "{kept}");
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["depth"] == 0).await;
    assert!(!punctual.log().contains("cannot take messages"), "{}", punctual.log());
}
