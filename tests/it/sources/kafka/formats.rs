//! Records that are not plain text, and records that cannot be understood.

use redis::AsyncCommands;
use serde_json::{Value, json};

use super::{Sent, delayed, into_list, produce, source, stats, status, until};
use crate::support::{RedisServer, answer, http, kafka, punctual::Punctual};

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_headers_of_any_bytes_leave_unchanged_and_broken_ones_are_kept() {
    let Some(broker) = kafka::shared().await else { return };
    let (topic, target) = (kafka::topic_name(), kafka::topic_name());
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    kafka::create_topic(&broker, &target, 1, &[]).await;
    let headers = [("a b", "1"), ("twice", "1"), ("twice", "2"), ("control", "\u{1}"), ("Host", "h"), ("X-Plain", "p")];
    let headers: Vec<_> = headers.map(|(name, value)| (name, value.as_bytes().to_vec())).into();
    let timing = |name, value: &[u8]| vec![(name, value.to_vec())];
    let value = Some(vec![0xff, 0]);
    let old = timing("punctual-deliver-at", b"2020-01-01T00:00:00Z");
    let sent = [
        Sent { key: Some(vec![0xff, 0]), value: value.clone(), headers: headers.clone() },
        Sent {
            value: value.clone(),
            headers: timing("retry_topic-backoff-timestamp", b"\x01\x8b\xcf\xe5\x68\x7b"),
            ..Sent::default()
        },
        Sent { value: value.clone(), headers: timing("punctual-delay", b"soon"), ..Sent::default() },
        Sent { value: Some(vec![0; 1_100_000 - 200_000]), ..Sent::default() },
        Sent { value: value.clone(), headers: old, ..Sent::default() },
        Sent::default(),
    ];
    produce(&broker, &topic, sent).await;
    let redis = RedisServer::start().await;
    let mut source = source(&broker, &topic, "r");
    source["max_overdue"] = "1000days".into();
    let configuration = json!({
        "redis": { "url": redis.url() }, "server": { "max_payload": "500KiB" },
        "sinks": { "out": { "type": "kafka", "brokers": [broker], "topic": target } },
        "routes": { "r": { "sink": "out" } },
        "sources": { "in": source },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    until("one is delivered and three are dead", async || {
        let stats = stats(&punctual, "r").await;
        stats["dead"] == 3 && stats["pending"] == 0 && !kafka::consume(&broker, &target).await.is_empty()
    })
    .await;
    until("all is committed", async || status(&punctual).await["depth"] == 0).await;
    assert_eq!(status(&punctual).await["state"], "running");

    let records = kafka::consume(&broker, &target).await;
    // The record of 14 November 2023 is skipped: that is more than 1000 days ago.
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(
        (records[0].key.as_deref(), records[0].payload.as_deref()),
        (Some(&[0xff, 0][..]), Some(&[0xff, 0][..]))
    );
    let expected: Vec<_> = headers.iter().map(|(name, value)| (*name, str::from_utf8(value).unwrap())).collect();
    let mut seen: Vec<_> = records[0].headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    seen.retain(|(name, _)| !name.starts_with("punctual-"));
    assert_eq!(seen, expected);

    let dead = answer(http::client().get(punctual.url("/v1/routes/r/messages?state=dead"))).await.json;
    let error = |offset: u64| {
        let id = format!("{topic}:0:{offset}");
        let found = dead["messages"].as_array().unwrap().iter().find(|message| message["id"] == id.as_str());
        found.map(|message| message["last_error"].as_str().unwrap().to_owned()).unwrap_or_default()
    };
    assert!(error(2).starts_with("invalid: punctual-delay: `soon` is neither"), "{}", error(2));
    assert!(error(3).starts_with("invalid: the payload takes 900000 bytes"), "{}", error(3));
    assert_eq!(error(5), "invalid: neither a key nor a value");
    let metrics = answer(http::client().get(punctual.url("/metrics"))).await.text;
    for line in ["punctual_source_skipped_total{source=\"in\"} 2", "punctual_source_invalid_total{source=\"in\"} 3"] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flow_and_the_group_of_a_record_are_taken_from_its_headers_and_not_passed_on() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let with = |number, flow: &str| {
        let mut sent = delayed(number, "1h");
        let own = [("punctual-flow", flow), ("punctual-group", "order:7"), ("X-Kept", "v")];
        sent.headers.extend(own.map(|(name, value)| (name, value.as_bytes().to_vec())));
        sent
    };
    produce(&broker, &topic, [with(0, "tenant:7"), with(1, "a b")]).await;
    let redis = RedisServer::start().await;
    let mut configuration = into_list(&redis.url(), &broker, &topic);
    configuration["sinks"]["jobs"]["format"] = "envelope".into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    until("one waits and one is dead", async || {
        let stats = stats(&punctual, "jobs").await;
        stats["pending"] == 1 && stats["dead"] == 1
    })
    .await;
    let message = |offset: u64| punctual.url(&format!("/v1/routes/jobs/messages/{topic}:0:{offset}"));
    let shown = answer(http::client().get(message(0))).await.json;
    assert_eq!((&shown["flow"], &shown["headers"]), (&json!("tenant:7"), &json!({ "X-Kept": "v" })));
    let group = answer(http::client().get(punctual.url("/v1/routes/jobs/groups/order:7"))).await.json;
    let states: Vec<_> = group["messages"].as_array().expect("messages").iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["pending", "dead"], "{group}");
    let dead = answer(http::client().get(message(1))).await.json;
    assert!(
        dead["last_error"]
            .as_str()
            .is_some_and(|error| error.starts_with("invalid: punctual-flow: a flow is 1 to 128")),
        "{dead}"
    );
    let delivered = punctual.command(&["deliver", "jobs", &format!("{topic}:0:0")]).await;
    assert_eq!(delivered.code, Some(0), "{delivered:?}");
    let (_, job): (String, String) = redis.connection().await.blpop("jobs", 20.0).await.expect("an element");
    let job: Value = serde_json::from_str(&job).expect("JSON");
    assert_eq!((&job["flow"], &job["group"]), (&json!("tenant:7"), &json!("order:7")));
    assert_eq!(job["headers"], json!({ "X-Kept": "v" }));
}
