//! Trace contexts of requests, and the spans of their messages.

use std::time::Duration;

use lapin::types::AMQPValue;
use redis::AsyncCommands;
use serde_json::{Value, json};

use super::{client::Client, eventually};
use crate::support::{
    Answer, RedisServer, answer, http, kafka,
    punctual::Punctual,
    rabbitmq::RabbitMq,
    receiver::{Behaviour, Receiver, wall_clock},
    spans::{self, SeenSpan},
};

const MAX_WAIT: Duration = Duration::from_secs(20);
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

async fn post(punctual: &Punctual, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let request = http::client().post(punctual.url(path)).body(body.to_string());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = answer(request).await;
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text);
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_a_request_leaves_with_its_messages_on_every_sink() {
    let (redis, receiver, rabbit) = (RedisServer::start().await, Receiver::start(), RabbitMq::shared().await);
    rabbit.declare("traces", "k").await;
    let mut configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": {
            "hook": { "type": "http", "url": receiver.url() },
            "list": { "type": "redis_list", "key": "jobs", "format": "envelope" },
            "far": { "type": "redis_list", "key": "far", "format": "envelope", "url": redis.url() },
            "mq": { "type": "rabbitmq", "url": format!("amqp://127.0.0.1:{}/%2f", rabbit.port()), "exchange": "traces" },
        },
        "routes": { "hook": { "sink": "hook" }, "list": { "sink": "list" }, "far": { "sink": "far" }, "mq": { "sink": "mq" } },
    });
    let broker = kafka::shared().await.filter(|_| kafka::installed());
    let topic = kafka::topic_name();
    if let Some(broker) = &broker {
        kafka::create_topic(broker, &topic, 1, &[]).await;
        configuration["sinks"]["log"] = json!({ "type": "kafka", "brokers": [broker], "topic": topic });
        configuration["routes"]["log"] = json!({ "sink": "log" });
    }
    let punctual = Punctual::start(&configuration.to_string()).await;
    let trace = [("traceparent", SAMPLED), ("tracestate", "a=1"), ("tracestate", "b=2")];
    let mut routes = vec!["hook", "list", "far", "mq"];
    routes.extend(broker.as_ref().map(|_| "log"));
    for route in routes {
        let messages = json!([{ "payload": "x", "key": "k" }, { "payload": "y", "key": "k" }]);
        post(&punctual, &format!("/v1/routes/{route}/messages"), &trace, &messages).await;
    }
    for request in receiver.wait_for(2, MAX_WAIT).await {
        assert_eq!((request.header("traceparent"), request.header("tracestate")), (SAMPLED, "a=1,b=2"));
    }
    for list in ["jobs", "far"] {
        let elements: Vec<String> = eventually("both are in the list", MAX_WAIT, async || {
            let elements: Vec<String> = redis.connection().await.lrange(list, 0, -1).await.expect("a list");
            (elements.len() == 2).then_some(elements)
        })
        .await;
        for element in elements {
            let element: Value = serde_json::from_str(&element).expect("JSON");
            assert_eq!(element["headers"], json!({ "traceparent": SAMPLED, "tracestate": "a=1,b=2" }));
        }
    }
    let client = Client::of(&punctual);
    client.drained("mq", MAX_WAIT).await;
    let got = rabbit.drain("traces").await;
    assert_eq!(got.len(), 2);
    for got in got {
        let headers = got.properties.headers().as_ref().expect("headers").inner();
        let text = |text: &str| AMQPValue::LongString(text.into());
        assert_eq!((&headers["traceparent"], &headers["tracestate"]), (&text(SAMPLED), &text("a=1,b=2")));
    }
    if let Some(broker) = broker {
        client.drained("log", MAX_WAIT).await;
        let records = kafka::consume(&broker, &topic).await;
        assert_eq!(records.len(), 2);
        for record in records {
            assert_eq!((record.header("traceparent"), record.header("tracestate")), (SAMPLED, "a=1,b=2"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_of_the_message_wins_and_an_invalid_trace_is_dropped() {
    let receiver = Receiver::start();
    let punctual = Punctual::start(&format!(
        "redis: {{ url: embedded }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ r: {{ sink: hook }} }}\n",
        receiver.url()
    ))
    .await;
    let messages = "/v1/routes/r/messages";
    let own = |id: &str, parent: &str| json!({ "id": id, "payload": "x", "headers": { "traceparent": parent } });
    post(&punctual, messages, &[("traceparent", SAMPLED), ("tracestate", "a=1")], &own("own", UNSAMPLED)).await;
    post(&punctual, messages, &[("traceparent", SAMPLED)], &own("own-invalid", "no")).await;
    post(&punctual, messages, &[("traceparent", "no"), ("tracestate", "a=1")], &json!({ "id": "no", "payload": "x" }))
        .await;
    let twice = [("traceparent", SAMPLED), ("traceparent", SAMPLED)];
    post(&punctual, messages, &twice, &json!({ "id": "twice", "payload": "x" })).await;
    post(&punctual, "/v1/routes/r/raw?id=raw", &[("traceparent", SAMPLED), ("tracestate", "a=1")], &json!(1)).await;
    let forwarded = [("traceparent", SAMPLED), ("punctual-forward-traceparent", UNSAMPLED)];
    post(&punctual, "/v1/routes/r/raw?id=raw-own", &forwarded, &json!(1)).await;
    let requests = receiver.wait_for(6, MAX_WAIT).await;
    let header = |id: &str, name: &str| {
        let request = requests.iter().find(|request| request.id() == id).expect("it arrived");
        request.headers.get(name).map(|value| value.to_str().expect("text").to_owned())
    };
    for (id, parent, state) in [
        ("own", Some(UNSAMPLED), None),
        ("own-invalid", Some(SAMPLED), None),
        ("no", None, None),
        ("twice", None, None),
        ("raw", Some(SAMPLED), Some("a=1")),
        ("raw-own", Some(UNSAMPLED), None),
    ] {
        let seen = (header(id, "traceparent"), header(id, "tracestate"));
        assert_eq!((seen.0.as_deref(), seen.1.as_deref()), (parent, state), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_is_logged_and_shown_with_its_trace() {
    let receiver = Receiver::start();
    receiver.behave(Behaviour::Status(400));
    let punctual = Punctual::start(&format!(
        "redis: {{ url: embedded }}\nlog: {{ format: json }}\n\
         sinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ r: {{ sink: hook }}, s: {{ sink: hook }} }}\n",
        receiver.url()
    ))
    .await;
    let client = Client::of(&punctual);
    let message = json!({ "id": "m", "payload": "x" });
    post(&punctual, "/v1/routes/r/messages", &[("traceparent", SAMPLED)], &message).await;
    // Expires while the route is paused.
    client.call("POST", "/v1/routes/s/pause", "").await;
    let expires_at = wall_clock() + 1000;
    let message = json!({ "id": "m", "payload": "x", "expires_at": expires_at, "headers": { "traceparent": SAMPLED } });
    client.schedule("s", &message.to_string()).await;
    eventually("it has expired", MAX_WAIT, async || (wall_clock() > expires_at + 200).then_some(())).await;
    client.call("POST", "/v1/routes/s/resume", "").await;
    for route in ["r", "s"] {
        let shown = eventually("it is dead", MAX_WAIT, async || {
            let shown = client.call("GET", &format!("/v1/routes/{route}/messages/m"), "").await.json;
            (shown["state"] == "dead").then_some(shown)
        })
        .await;
        assert_eq!(shown["trace_id"], TRACE);
        let log = punctual.log();
        let line = log
            .lines()
            .find(|line| line.contains("dead letters now") && line.contains(&format!(r#""route":"{route}""#)));
        assert!(line.is_some_and(|line| line.contains(&format!(r#""trace_id":"{TRACE}""#))), "{log}");
    }
}

/// Exports everything to `collector`.
fn exporting(collector: &Receiver, receiver: &Receiver, delivery: &str) -> String {
    json!({
        "redis": { "url": "embedded" },
        "tracing": {
            "otlp": { "endpoint": collector.url(), "sample": 1, "headers": { "x-key": "a secret" } }, "delivery": delivery,
        },
        "sinks": { "hook": { "type": "http", "url": receiver.url() } },
        "routes": { "r": { "sink": "hook", "retry": { "initial": "50ms", "factor": 1 } } },
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_has_a_span_that_is_linked_to_the_creation() {
    let (collector, receiver) = (Receiver::start(), Receiver::start());
    let mut punctual = Punctual::start(&exporting(&collector, &receiver, "link")).await;
    receiver.behave(Behaviour::Status(500));
    post(&punctual, "/v1/routes/r/messages", &[], &json!({ "id": "m", "payload": "four" })).await;
    receiver.wait_for(1, MAX_WAIT).await;
    receiver.behave(Behaviour::Status(200));
    receiver.wait_for(2, MAX_WAIT).await;
    let exit = punctual.terminate().await;
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    // The last spans are exported at the stop.
    let spans = spans::exported(&collector);
    let named = |name: &str| spans.iter().filter(|span| span.name == name).cloned().collect::<Vec<SeenSpan>>();
    let creations = named("create r");
    let [creation] = &creations[..] else { panic!("{spans:#?}") };
    assert_eq!((creation.parent.as_str(), creation.links.len(), creation.status.0), ("", 0, 0));
    for (name, value) in [
        ("messaging.system", "punctual"),
        ("messaging.destination.name", "r"),
        ("messaging.operation.name", "create"),
        ("messaging.operation.type", "create"),
        ("messaging.message.id", "m"),
        ("messaging.message.body.size", "4"),
        ("punctual.via", "api"),
        ("punctual.outcome", "scheduled"),
    ] {
        assert_eq!(creation.attribute(name), value);
    }
    assert_eq!((&*creation.resource["service.name"], &*creation.resource["service.version"]), ("punctual", "0.1.0"));
    let mut attempts = named("send r");
    attempts.sort_by_key(|span| span.attribute("punctual.attempt").to_owned());
    let requests = receiver.requests();
    assert!(attempts.len() == requests.len() && requests.len() >= 2, "{attempts:#?}");
    let last = attempts.len() - 1;
    for (n, (attempt, request)) in attempts.iter().zip(&requests).enumerate() {
        assert_eq!(attempt.links, [(creation.trace.clone(), creation.span.clone())]);
        assert_eq!(attempt.parent, "");
        assert_ne!(attempt.trace, creation.trace);
        assert_eq!(request.header("traceparent"), attempt.traceparent(), "the next hop continues this trace");
        assert_eq!(attempt.attribute("punctual.attempt"), (n + 1).to_string());
        assert!(attempt.attribute("punctual.lateness_ms").parse::<u64>().unwrap() < 20_000);
        assert_eq!(attempt.attribute("messaging.operation.type"), "send");
        assert!(attempt.millis < 20_000, "{attempt:?}");
        let (outcome, status) = if n < last { ("failed", (2, "HTTP 500")) } else { ("confirmed", (0, "")) };
        assert_eq!(attempt.attribute("punctual.outcome"), outcome);
        assert_eq!((attempt.status.0, attempt.status.1.as_str()), status);
        assert_eq!(attempt.attributes.get("error.type").map(String::as_str), (n < last).then_some("failed"));
    }
    assert!(collector.requests().iter().all(|request| request.header("x-key") == "a secret"));
    assert!(!punctual.log().contains("a secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_can_be_a_child_in_the_trace_of_the_caller() {
    let (collector, receiver) = (Receiver::start(), Receiver::start());
    let punctual = Punctual::start(&exporting(&collector, &receiver, "parent")).await;
    let trace = [("traceparent", SAMPLED), ("tracestate", "a=1")];
    post(&punctual, "/v1/routes/r/messages", &trace, &json!({ "id": "m", "payload": "x" })).await;
    post(&punctual, "/v1/routes/r/messages", &[("traceparent", UNSAMPLED)], &json!({ "id": "n", "payload": "x" }))
        .await;
    let requests = receiver.wait_for(2, MAX_WAIT).await;
    let attempts = spans::wait_for(&collector, "send r", 1, MAX_WAIT).await;
    let creations = spans::wait_for(&collector, "create r", 1, MAX_WAIT).await;
    let ([attempt], [creation]) = (&attempts[..], &creations[..]) else { panic!("{attempts:#?} {creations:#?}") };
    assert_eq!(
        (creation.trace.as_str(), creation.parent.as_str(), creation.state.as_str()),
        (TRACE, "b7ad6b7169203331", "a=1")
    );
    assert_eq!(
        (attempt.trace.as_str(), attempt.parent.as_str(), attempt.state.as_str()),
        (TRACE, &*creation.span, "a=1")
    );
    assert!(attempt.links.is_empty() && attempt.id() == "m");
    let of = |id: &str| requests.iter().find(|request| request.id() == id).expect("it arrived");
    assert_eq!((of("m").header("traceparent"), of("m").header("tracestate")), (&*attempt.traceparent(), "a=1"));
    assert_eq!(of("n").header("traceparent"), UNSAMPLED, "the caller does not sample");
}
