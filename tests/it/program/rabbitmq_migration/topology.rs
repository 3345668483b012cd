//! Every type of delayed exchange, seen from queues that are bound as before.

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

use super::{Migrated, table};
use crate::support::{command::Workplace, receiver::wall_clock};

/// Milliseconds.
const DELAY: i32 = 700;

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn message(id: &str, headers: FieldTable) -> BasicProperties {
    BasicProperties::default().with_message_id(id.into()).with_headers(headers)
}

/// Messages reach the queues behind direct, topic, fanout and headers exchanges, also through the alternate exchange of
/// an argument and of a policy, and from an exchange that is bound to a delayed one.
#[tokio::test(flavor = "multi_thread")]
async fn delayed_messages_reach_the_queues_they_reached_before_and_never_early() {
    let migrated = Migrated::shared().await;
    let punctual = migrated.punctual().await;
    let tags = [("n", AMQPValue::LongInt(5)), ("s", text("five")), ("b", AMQPValue::Boolean(true))];
    let no_tags: [(&str, AMQPValue); 0] = [];
    let cases = [
        ("orders", "paid", &no_tags[..], vec!["orders.paid", "orders.all"]),
        ("orders", "new", &no_tags, vec!["orders.all"]),
        ("orders", "lost", &no_tags, vec!["unrouted"]),
        ("events", "a.eu", &no_tags, vec!["events.eu"]),
        ("events", "all.x", &no_tags, vec!["unrouted"]),
        ("events", "lost", &no_tags, vec!["unrouted"]),
        ("front", "ev.eu", &no_tags, vec!["events.eu"]),
        ("mails", "whatever", &no_tags, vec!["mails.out"]),
        ("tagged", "", &tags, vec!["tagged"]),
    ];
    let mut expected = Vec::new();
    for (exchange, key, headers, queues) in &cases {
        for (kind, delay) in [("delayed", Some(DELAY)), ("at once", None)] {
            let id = format!("{exchange} {key} {kind}");
            let mut headers = table(headers);
            headers.insert("sent".into(), AMQPValue::LongLongInt(wall_clock().cast_signed()));
            if let Some(delay) = delay {
                headers.insert("x-delay".into(), AMQPValue::LongInt(delay));
            }
            migrated.publish(exchange, key, message(&id, headers)).await;
            expected.extend(queues.iter().map(|queue| ((*queue).to_owned(), id.clone())));
        }
    }
    expected.sort();
    let mut got = Vec::new();
    for queue in ["orders.paid", "orders.all", "events.eu", "mails.out", "tagged", "unrouted"] {
        let count = expected.iter().filter(|(of, _)| of == queue).count();
        for (arrived, delivery) in migrated.consume(queue, count).await {
            let id = delivery.properties.message_id().as_ref().unwrap().to_string();
            let AMQPValue::LongLongInt(sent) = delivery.properties.headers().as_ref().unwrap().inner()["sent"] else {
                panic!("not sent")
            };
            if id.ends_with("delayed") {
                let waited = arrived.cast_signed() - sent;
                assert!(waited >= DELAY.into(), "{id} came to {queue} after {waited} ms");
            }
            got.push((queue.to_owned(), id));
        }
    }
    got.sort();
    assert_eq!(got, expected);
    for queue in ["orders.paid", "orders.all", "events.eu", "mails.out", "tagged", "unrouted"] {
        assert_eq!(migrated.broker.drain(queue).await.len(), 0, "nothing else came to {queue}");
    }
    let status = punctual.command(&["--json", "status", "-c", "punctual.yaml"]).await;
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
    let routes = &status["routes"];
    assert!(routes.as_array().unwrap().iter().all(|route| route["dead"] == 0 && route["pending"] == 0), "{routes}");
}

/// The user of the import may do what punctual needs, in each virtual host, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_privilege_user_can_do_its_work_and_nothing_else() {
    let migrated = Migrated::shared().await;
    let punctual = migrated.punctual().await;
    let ended = punctual.command(&["--json", "check", "--connect", "-c", "punctual.yaml"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for route in ["default-orders", "default-events", "default-mails", "default-tagged", "tenant-eu-orders"] {
        assert!(ended.out.contains(&format!("sources.{route}")), "{route}: {}", ended.out);
    }
    let port = migrated.broker.port();
    let password = super::PASSWORD;
    let other = format!(
        "redis: {{ url: embedded }}\nroutes: {{ r: {{ sink: mq }} }}\n\
         sinks: {{ mq: {{ type: rabbitmq, url: 'amqp://127.0.0.1:{port}/%2f', username: punctual, password: '{password}', \
         exchange: orders }} }}\n\
         sources: {{ in: {{ type: rabbitmq, url: 'amqp://127.0.0.1:{port}/%2f', username: punctual, password: '{password}', \
         queue: orders.paid, route: r }} }}\n"
    );
    let ended = Workplace::with(&other).run(&["--json", "check", "--connect"]).await;
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.out.matches("refused for user 'punctual'").count(), 2, "{}", ended.out);
}
