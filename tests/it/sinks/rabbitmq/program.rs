//! Through the whole program: from the API and from `lua/produce.lua` to a queue of RabbitMQ.

use std::time::Duration;

use lapin::types::AMQPValue;
use serde_json::{Value, json};
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use super::ids;
use crate::support::{RabbitMq, http, punctual::Punctual, rabbitmq::Got};

const MAX_WAIT: Duration = Duration::from_secs(30);

fn configuration(server: &RabbitMq, exchange: &str) -> String {
    format!(
        "redis: {{ url: embedded }}\nsinks:\n  mq: {{ type: rabbitmq, url: 'amqp://127.0.0.1:{}/%2f', exchange: {exchange} }}\n\
         routes:\n  r: {{ sink: mq }}\n",
        server.port()
    )
}

async fn wait_for(server: &RabbitMq, queue: &str, count: usize) -> Vec<Got> {
    let (deadline, mut got) = (Instant::now() + MAX_WAIT, Vec::new());
    loop {
        got.extend(server.drain(queue).await);
        if got.len() >= count {
            return got;
        }
        assert!(Instant::now() < deadline, "{} of {count} arrived", got.len());
        sleep(Duration::from_millis(20)).await;
    }
}

async fn post(punctual: &Punctual, body: Value) -> u16 {
    let post = http::client().post(punctual.url("/v1/routes/r/messages")).header("Content-Type", "application/json");
    post.body(body.to_string()).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_thousand_messages_arrive_once_each_with_their_properties() {
    let server = RabbitMq::shared().await;
    server.declare("program", "k").await;
    let mut punctual = Punctual::start(&configuration(server, "program")).await;
    let messages: Vec<Value> = (0..1000)
        .map(|n| {
            let properties = json!({"correlation_id": format!("c{n}"), "priority": 3});
            json!({"id": format!("m{n}"), "payload": n, "delay": 200, "key": "k", "properties": properties})
        })
        .collect();
    assert_eq!(post(&punctual, json!(messages)).await, 200);
    let got = wait_for(server, "program", 1000).await;
    let mut expected: Vec<String> = (0..1000).map(|n| format!("m{n}")).collect();
    expected.sort();
    assert_eq!(ids(&got), expected);
    for one in &got {
        let number = one.id.strip_prefix('m').unwrap();
        assert_eq!(one.payload, number.as_bytes());
        assert_eq!(one.properties.correlation_id().as_ref().unwrap().as_str(), format!("c{number}"));
        assert_eq!(*one.properties.priority(), Some(3));
        assert_eq!(one.properties.content_type().as_ref().unwrap().as_str(), "application/json");
    }
    let exit = punctual.terminate().await;
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    assert!(server.drain("program").await.is_empty(), "nothing came twice");
}

#[tokio::test]
async fn properties_set_through_produce_lua_are_checked_and_survive() {
    let server = RabbitMq::shared().await;
    server.declare("produced", "k").await;
    let punctual = Punctual::start(&configuration(server, "produced")).await;
    let client = redis::Client::open(format!("unix://{}", punctual.path("data/redis.sock").display())).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let script = redis::Script::new(include_str!("../../../../lua/produce.lua"));
    let mut produce = async |id: &str, options: &str| {
        let mut call = script.key("{punctual:r:0/1}:pending");
        call.arg("1").arg(id).arg("+0").arg("payload").arg(options);
        call.invoke_async::<redis::Value>(&mut connection).await.map_err(|error| error.to_string())
    };
    let options = r#"{"key":"k","properties":{"type":"é","reply_to":"q","priority":255,"app_id":null}}"#;
    produce("right", options).await.unwrap();
    for wrong in [
        r#"{"priority":256}"#,
        r#"{"priority":"1"}"#,
        r#"{"user_id":"guest"}"#,
        r#"{"type":5}"#,
        r#"{"app_id":"a\nb"}"#,
        r#"["type"]"#,
        r#""gzip""#,
        &format!(r#"{{"type":"{}"}}"#, "x".repeat(256)),
    ] {
        let error = produce("wrong", &format!(r#"{{"key":"k","properties":{wrong}}}"#)).await.unwrap_err();
        assert!(error.contains("invalid-options"), "{wrong}: {error}");
    }
    let got = wait_for(server, "produced", 1).await;
    assert_eq!(ids(&got), ["right"]);
    let properties = &got[0].properties;
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "é");
    assert_eq!(properties.reply_to().as_ref().unwrap().as_str(), "q");
    assert_eq!((*properties.priority(), properties.app_id()), (Some(255), &None));
    let headers = properties.headers().as_ref().unwrap().inner();
    assert_eq!(headers["punctual-attempt"], AMQPValue::LongLongInt(1));
}

#[tokio::test]
async fn check_connect_reports_broker_and_exchange_and_logs_no_payload() {
    let server = RabbitMq::shared().await;
    server.declare_exchange("checked").await;
    let mut punctual = Punctual::start(&configuration(server, "checked")).await;
    let check = async |exchange: &str| {
        let file = punctual.path(exchange);
        std::fs::write(&file, configuration(server, exchange)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        command
            .args(["--json", "check", "--connect", "-c"])
            .arg(&file)
            .env("PUNCTUAL__REDIS__DATA_DIR", punctual.path("data"));
        let output = command.output().await.unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), answer["answers"]["sinks.mq"].as_str().unwrap().to_owned())
    };
    assert_eq!(check("checked").await, (Some(0), "ok".into()));
    let (code, text) = check("nowhere").await;
    assert_eq!(code, Some(1));
    assert!(text.contains("no exchange 'nowhere'"), "{text}");
    let command = "rabbitmqadmin --vhost=/ declare exchange name=nowhere type=direct durable=true";
    assert!(text.ends_with(&format!(": create it with `{command}`")), "{text}");

    // Nothing is bound: what comes back must not end up in the log.
    assert_eq!(post(&punctual, json!({"id": "back", "payload": "a-secret-payload", "key": "k"})).await, 201);
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let look = http::client().get(punctual.url("/v1/routes/r/messages/back"));
        let shown = look.send().await.unwrap().text().await.unwrap();
        if shown.contains("no queue for the routing key `k`") {
            break;
        }
        assert!(Instant::now() < deadline, "{shown}");
        sleep(Duration::from_millis(20)).await;
    }
    punctual.terminate().await;
    assert!(
        !punctual.log().contains("a-secret-payload") && !punctual.log().contains("97, 45, 115"),
        "{}",
        punctual.log()
    );
}
