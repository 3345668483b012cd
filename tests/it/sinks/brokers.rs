//! Both brokers behind one program: what `check --connect` and GET /v1/sinks report of them, and routes and sinks that
//! share them.

use std::{collections::BTreeSet, time::Duration};

use lapin::options::ExchangeDeleteOptions;
use serde_json::{Value, json};

use crate::{
    program::eventually,
    support::{RabbitMq, RedisServer, answer, http, kafka, punctual::Punctual},
};

/// Far beyond what any step takes: an answer is kept for seconds, and a deleted topic is missed after some more.
const MAX_WAIT: Duration = Duration::from_secs(30);

fn configuration(redis: &str, kafka: &str, rabbitmq: u16, name: &str) -> String {
    let amqp = format!("amqp://127.0.0.1:{rabbitmq}/%2f");
    json!({
        "redis": { "url": redis },
        "sinks": {
            "topic": { "type": "kafka", "brokers": [kafka], "topic": name, "timeout": "5s" },
            "topics": { "type": "kafka", "brokers": [kafka], "topic": "{key}", "allow": ["punctual-*"], "timeout": "5s" },
            "exchange": { "type": "rabbitmq", "url": amqp, "exchange": name, "routing_key": "k", "timeout": "5s" },
            "exchanges": {
                "type": "rabbitmq", "url": amqp, "exchange": "{key}", "routing_key": "k", "allow": ["punctual-*/k"],
                "timeout": "5s",
            },
        },
        "route_defaults": { "retry": { "max_attempts": 1 } },
        "routes": {
            "one": { "sink": "topic" }, "two": { "sink": "topic" }, "many": { "sink": "topics" },
            "mq-one": { "sink": "exchange" }, "mq-two": { "sink": "exchange" }, "mq-many": { "sink": "exchanges" },
        },
    })
    .to_string()
}

async fn sink(punctual: &Punctual, name: &str) -> Value {
    let answer = answer(http::client().get(punctual.url("/v1/sinks"))).await;
    let sinks = answer.json["sinks"].as_array().expect("a list").clone();
    sinks.into_iter().find(|sink| sink["name"] == name).expect("a configured sink")
}

/// Waits until GET /v1/sinks says so of this sink.
async fn says(punctual: &Punctual, name: &str, expected: &str) {
    eventually(&format!("{name}: {expected}"), MAX_WAIT, async || {
        sink(punctual, name).await["check"].as_str().filter(|check| check.contains(expected)).map(drop)
    })
    .await;
}

async fn schedule(punctual: &Punctual, route: &str, messages: Vec<Value>) {
    let url = punctual.url(&format!("/v1/routes/{route}/messages"));
    let answer = answer(http::client().post(url).body(Value::from(messages).to_string())).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// Waits until nothing is in flight. Returns how many are dead.
async fn dead(punctual: &Punctual, route: &str) -> u64 {
    eventually(&format!("{route} is drained"), MAX_WAIT, async || {
        let stats = answer(http::client().get(punctual.url(&format!("/v1/routes/{route}")))).await.json;
        (stats["pending"] == 0 && stats["unack"] == 0).then(|| stats["dead"].as_u64().expect("a number"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sinks_report_missing_topics_and_exchanges_before_any_message() {
    let Some(broker) = kafka::shared().await else { return };
    let (rabbitmq, redis, name) = (RabbitMq::shared().await, RedisServer::start().await, kafka::topic_name());
    let yaml = configuration(&redis.url(), &broker, rabbitmq.port(), &name);
    let punctual = Punctual::start(&yaml).await;
    says(&punctual, "topic", &name).await;
    says(&punctual, "exchange", &format!("no exchange '{name}'")).await;
    for several in ["topics", "exchanges"] {
        says(&punctual, several, "ok").await;
    }
    assert_eq!(sink(&punctual, "exchange").await["breaker"], "closed", "no message was sent");

    kafka::create_topic(&broker, &name, 1, &[]).await;
    rabbitmq.declare(&name, "k").await;
    for name in ["topic", "exchange"] {
        says(&punctual, name, "ok").await;
    }
    let checked = punctual.command(&["check", "--connect", "-c", "punctual.yaml"]).await;
    assert_eq!(checked.code, Some(0), "{}", checked.out);
    let row = |name: &str| checked.out.lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
    assert!(
        row("sinks.topics ").ends_with("ok, `topic` depends on the message, partitioner murmur2_random"),
        "{}",
        checked.out
    );
    assert!(row("sinks.exchanges ").ends_with("ok, `exchange` depends on the message"), "{}", checked.out);
    assert!(row("sinks.topic ").ends_with(" ok, partitioner murmur2_random"), "{}", checked.out);

    kafka::delete_topic(&broker, &name).await;
    rabbitmq.channel().await.exchange_delete((&*name).into(), ExchangeDeleteOptions::default()).await.unwrap();
    says(&punctual, "topic", &name).await;
    says(&punctual, "exchange", &format!("no exchange '{name}'")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_routes_with_the_same_ids_and_two_sinks_on_each_broker_do_not_mix() {
    const COUNT: usize = 500;
    let Some(broker) = kafka::shared().await else { return };
    let (rabbitmq, redis, name) = (RabbitMq::shared().await, RedisServer::start().await, kafka::topic_name());
    let (other, missing) = (kafka::topic_name(), kafka::topic_name());
    for name in [&name, &other] {
        kafka::create_topic(&broker, name, 1, &[]).await;
        rabbitmq.declare(name, "k").await;
    }
    let punctual = Punctual::start(&configuration(&redis.url(), &broker, rabbitmq.port(), &name)).await;
    let messages = |route: &str, key: &str| -> Vec<Value> {
        (0..COUNT).map(|n| json!({ "id": format!("m{n}"), "payload": route, "key": key, "delay": n % 200 })).collect()
    };
    let all = ["one", "two", "mq-one", "mq-two"].map(|route| schedule(&punctual, route, messages(route, "any")));
    let many = ["many", "mq-many"].map(|route| async {
        let mut half: Vec<Value> = messages(route, &other);
        half.iter_mut().step_by(2).for_each(|message| message["key"] = json!(missing));
        schedule(&punctual, route, half).await;
    });
    tokio::join!(futures::future::join_all(all), futures::future::join_all(many));
    for route in ["one", "two", "mq-one", "mq-two"] {
        assert_eq!(dead(&punctual, route).await, 0, "{route}");
    }
    // Messages to the missing destination are dead after their one attempt. The sink continues.
    for route in ["many", "mq-many"] {
        assert_eq!(dead(&punctual, route).await, COUNT as u64 / 2, "{route}");
    }
    for name in ["topics", "exchanges"] {
        assert_eq!(sink(&punctual, name).await["breaker"], "closed", "{name}");
    }
    let ids = |route: &str| (0..COUNT).map(|n| (route.to_owned(), format!("m{n}"))).collect::<Vec<_>>();
    let expected: BTreeSet<_> = [ids("one"), ids("two")].concat().into_iter().collect();
    let records = kafka::consume(&broker, &name).await;
    assert_eq!(records.len(), 2 * COUNT);
    let of = |record: &kafka::Record| (record.header("punctual-route").to_owned(), record.id().to_owned());
    assert_eq!(records.iter().map(of).collect::<BTreeSet<_>>(), expected);
    assert!(records.iter().all(|record| record.payload.as_deref() == Some(record.header("punctual-route").as_bytes())));
    assert_eq!(kafka::consume(&broker, &other).await.len(), COUNT / 2);

    let got = rabbitmq.drain(&name).await;
    assert_eq!(got.len(), 2 * COUNT);
    let expected: BTreeSet<_> = [ids("mq-one"), ids("mq-two")].concat().into_iter().collect();
    let of = |route: Vec<u8>, id: &str| (String::from_utf8(route).expect("UTF-8"), id.to_owned());
    assert_eq!(got.into_iter().map(|got| of(got.payload, &got.id)).collect::<BTreeSet<_>>(), expected);
    assert_eq!(rabbitmq.drain(&other).await.len(), COUNT / 2);
}
