//! `send-test`: one message to a sink of each type, without an instance.

use serde_json::{Value, json};

use crate::support::{
    RedisServer,
    command::Workplace,
    kafka,
    rabbitmq::RabbitMq,
    receiver::{Behaviour, Receiver},
};

fn workplace(sink: &str) -> Workplace {
    Workplace::with(&format!("sinks: {{ out: {sink} }}\nroutes: {{ web: {{ sink: out }} }}\n"))
}

/// The code and the answer.
async fn sent(workplace: &Workplace, more: &[&str]) -> (Option<i32>, Value) {
    let ended = workplace.run(&[&["send-test", "out", "--json"], more].concat()).await;
    let json = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    (ended.code, json)
}

#[tokio::test]
async fn an_endpoint_gets_a_marked_message_and_its_answer_is_shown() {
    let mut receiver = Receiver::start();
    let workplace = workplace(&format!("{{ type: http, url: '{}' }}", receiver.url()));
    let given = ["--payload", r#"{"a":1}"#, "--header", "X-A: b", "--key", "k"];
    let (code, answer) = sent(&workplace, &given).await;
    assert_eq!((code, &answer["outcome"], &answer["status"]), (Some(0), &json!("confirmed"), &json!(200)), "{answer}");
    let request = receiver.requests().pop().expect("a request");
    assert_eq!(&request.body[..], br#"{"a":1}"#);
    let header = |name| request.header(name);
    assert_eq!([header("punctual-test"), header("x-a"), header("punctual-route")], ["true", "b", "web"]);
    assert_eq!([header("content-type"), header("punctual-id")], ["application/json", answer["id"].as_str().unwrap()]);

    receiver.behave(Behaviour::Echo(422));
    let (code, answer) = sent(&workplace, &[]).await;
    assert_eq!((code, &answer["outcome"], &answer["status"]), (Some(1), &json!("rejected"), &json!(422)), "{answer}");
    assert!(answer["answer"].as_str().is_some_and(|text| text.contains("test")), "{answer}");
    receiver.refuse();
    let (code, answer) = sent(&workplace, &[]).await;
    assert_eq!((code, &answer["outcome"]), (Some(1), &json!("unavailable")), "{answer}");
    let shown = workplace.run(&["send-test", "out"]).await;
    assert!(shown.out.contains("outcome      unavailable\n") && shown.error.contains("did not confirm"), "{shown:?}");
    for (arguments, code) in [
        (&["none"][..], 3),
        (&["out", "--header", "Punctual-Id: no"], 2),
        (&["out", "--header", "x"], 2),
        (&["out", "--payload", "-"], 2),
    ] {
        assert_eq!(workplace.run(&[&["send-test"], arguments].concat()).await.code, Some(code), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_list_gets_a_test_on_the_queues_redis_and_on_another() {
    let (own, other) = (RedisServer::start().await, RedisServer::start().await);
    for (server, url) in [(&own, String::new()), (&other, format!(", url: '{}'", other.url()))] {
        let sink = format!("sinks: {{ out: {{ type: redis_list, key: jobs, format: envelope{url} }} }}");
        let workplace = Workplace::with(&format!("redis: {{ url: '{}' }}\n{sink}\n", own.url()));
        let (code, answer) = sent(&workplace, &["--payload", "hi"]).await;
        assert_eq!((code, &answer["outcome"]), (Some(0), &json!("confirmed")), "{answer}");
        let mut connection = server.connection().await;
        let pushed: Vec<String> =
            redis::cmd("LRANGE").arg("jobs").arg(0).arg(-1).query_async(&mut connection).await.expect("a list");
        let [pushed] = &pushed[..] else { panic!("{pushed:?}") };
        let pushed: Value = serde_json::from_str(pushed).expect("an envelope");
        assert_eq!((&pushed["payload"], &pushed["headers"]["Punctual-Test"]), (&json!("hi"), &json!("true")));
        assert_eq!(pushed["route"], "send-test", "no route has the sink");
        let () = redis::cmd("SET").arg("jobs").arg("x").query_async(&mut connection).await.expect("an answer");
        let (code, answer) = sent(&workplace, &[]).await;
        assert!(code == Some(1) && answer["error"].is_string(), "{answer}");
    }
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("*").query_async(&mut own.connection().await).await.expect("an answer");
    assert_eq!(keys, ["jobs"], "the queue stays as it is");
}

#[tokio::test]
async fn an_exchange_gets_a_test() {
    let broker = RabbitMq::shared().await;
    broker.declare("send-test", "k").await;
    let sink = format!("{{ type: rabbitmq, url: 'amqp://127.0.0.1:{}/%2f', exchange: send-test }}", broker.port());
    let workplace = workplace(&sink);
    let (code, answer) = sent(&workplace, &["--key", "k", "--header", "X-A: b"]).await;
    assert_eq!((code, &answer["outcome"]), (Some(0), &json!("confirmed")), "{answer}");
    let got = broker.drain("send-test").await;
    assert_eq!((got.len(), &got[0].payload[..]), (1, &b"test"[..]));
    let headers = got[0].properties.headers().clone().expect("headers");
    assert!(headers.inner().contains_key("Punctual-Test"), "{headers:?}");
    let (code, answer) = sent(&workplace, &["--key", "nowhere"]).await;
    assert_eq!(code, Some(1), "it is unroutable: {answer}");
}

#[tokio::test]
async fn a_topic_gets_a_test() {
    let Some(brokers) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&brokers, &topic, 1, &[]).await;
    let workplace = workplace(&format!("{{ type: kafka, brokers: ['{brokers}'], topic: '{topic}' }}"));
    let (code, answer) = sent(&workplace, &["--key", "k"]).await;
    assert_eq!((code, &answer["outcome"]), (Some(0), &json!("confirmed")), "{answer}");
    assert!(answer["destination"].as_str().is_some_and(|domain| domain.contains(&topic)), "{answer}");
    let records = kafka::consume(&brokers, &topic).await;
    assert_eq!((records.len(), records[0].header("Punctual-Test")), (1, "true"));
}
