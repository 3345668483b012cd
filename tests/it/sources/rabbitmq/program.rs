//! Unchanged producers and consumers.

use std::{collections::HashSet, path::Path, time::Duration};

use lapin::{
    options::{BasicConsumeOptions, BasicPublishOptions, BasicRejectOptions},
    types::{AMQPValue, DecimalValue, FieldTable},
};
use tokio::{
    process::Command,
    time::{Instant, timeout},
};

use super::{
    MAX_WAIT, configuration, consume, declare, declare_in, delayed, header, python, until, wait_for, with_headers,
};
use crate::support::{
    RabbitMq,
    command::Workplace,
    punctual::Punctual,
    rabbitmq::{Got, durable},
};

/// Maximum lateness of a message while other tests keep the machine busy.
const LATEST_MS: u64 = 5000;

fn table(entries: &[(&str, AMQPValue)]) -> AMQPValue {
    with_headers(entries, "").headers().clone().map(AMQPValue::FieldTable).unwrap()
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_python_producer_arrive_once_in_time_and_unchanged() {
    let Some(python) = python() else { return };
    let server = RabbitMq::shared().await;
    declare(server, "python").await;
    let mut punctual = Punctual::start(&configuration(server, "python", "embedded", "")).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/amqp/publish.py");
    let mut producer = Command::new(python);
    producer.arg(script).args([&server.port().to_string(), "python-in", "k", "1000"]).kill_on_drop(true);
    let (status, got) = tokio::join!(producer.status(), consume(server, "python", 1000));
    assert!(status.unwrap().success());
    let exit = punctual.terminate().await;
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    assert!(server.drain("python").await.is_empty(), "nothing came twice");
    let ids: HashSet<&str> = got.iter().map(|(_, got)| &*got.id).collect();
    assert_eq!(ids.len(), 1000, "each once");
    let mut own_ids = HashSet::new();
    for (arrived, got) in &got {
        let n: i64 = got.id.strip_prefix('m').unwrap().parse().unwrap();
        check(got, n);
        let AMQPValue::LongLongInt(due) = header(got, "punctual-due") else { panic!("no due time") };
        let AMQPValue::LongLongInt(sent) = header(got, "sent") else { panic!("not sent") };
        assert!(due >= sent + 500 + n * 2, "{n}: due {} ms after it was sent", due - sent);
        let late = arrived.cast_signed() - due;
        assert!((0..LATEST_MS.cast_signed()).contains(&late), "{n} came {late} ms late");
        assert!(own_ids.insert(format!("{:?}", header(got, "punctual-id"))));
    }
}

fn check(got: &Got, n: i64) {
    assert_eq!(got.payload, format!("body {n}").into_bytes());
    let properties = &got.properties;
    for (property, value) in [
        (properties.content_type(), "application/x-test".to_owned()),
        (properties.content_encoding(), "identity".into()),
        (properties.correlation_id(), format!("c{n}")),
        (properties.reply_to(), "an\nswers".into()),
        (properties.kind(), "order".into()),
        (properties.app_id(), "shop".into()),
        (properties.cluster_id(), "cluster".into()),
    ] {
        assert_eq!(property.as_ref().map(ToString::to_string), Some(value));
    }
    assert_eq!(properties.priority().map(i64::from), Some(n % 10));
    assert_eq!(*properties.timestamp(), Some((1_700_000_000 + n).cast_unsigned()));
    assert_eq!((*properties.delivery_mode(), properties.user_id(), properties.expiration()), (Some(2), &None, &None));
    let deep = table(&[("deep", AMQPValue::Boolean(true))]);
    let list = vec![AMQPValue::LongInt(1), text("two"), AMQPValue::Void, deep];
    for (name, value) in [
        ("X-Text", text(&format!("text {n} é"))),
        ("two words", text("an odd name")),
        ("control", text("a\r\nb")),
        ("number", AMQPValue::LongInt(n.try_into().unwrap())),
        ("large", AMQPValue::LongLongInt((1 << 40) + n)),
        ("table", table(&[("inner", AMQPValue::FieldArray(list.into()))])),
        ("bytes", AMQPValue::ByteArray(vec![0, 255].into())),
        ("at", AMQPValue::Timestamp(1_795_253_400)),
        ("price", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
        ("nothing", AMQPValue::Void),
    ] {
        assert_eq!(header(got, name), value, "{name}");
    }
    let names: Vec<&str> =
        properties.headers().as_ref().unwrap().inner().keys().map(lapin::types::ShortString::as_str).collect();
    assert!(!names.contains(&"x-delay") && !names.contains(&"CC"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_topology_waits_longer_with_every_round_and_changes_no_more() {
    use futures::StreamExt;
    let server = RabbitMq::shared().await;
    declare_in(server, "retry", "classic").await;
    server.declare_exchange("retry").await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), text("retry-in"));
    server.declare_queue_with("retry", "retry", "k", durable(), arguments).await;
    let settings = ", id_from: message_id, delay_from: x_death, backoff: { initial: 300ms, factor: 3, jitter: 0 }";
    let punctual = Punctual::start(&configuration(server, "retry", "embedded", settings)).await;
    let channel = server.channel().await;
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = channel.basic_consume("retry".into(), "".into(), options, none).await.unwrap();
    let properties = with_headers(&[("X-Kept", text("v"))], "job 7");
    channel
        .basic_publish("retry".into(), "k".into(), BasicPublishOptions::default(), b"work", properties)
        .await
        .unwrap();
    // RabbitMQ 4 begins anew with every message that is published.
    let counts_on = server.version().await < (4, 0);
    let mut rejected = Instant::now();
    for (round, least) in [0, 300, 900, 2700].into_iter().enumerate() {
        let got = timeout(MAX_WAIT, consumer.next()).await.unwrap_or_else(|_| panic!("{}", punctual.log()));
        let got = got.unwrap().unwrap();
        let waited = rejected.elapsed();
        assert!(waited >= Duration::from_millis(least), "round {round}: {waited:?}");
        assert!(waited < Duration::from_millis(least + LATEST_MS), "round {round}: {waited:?}");
        assert_eq!(got.data, b"work");
        assert_eq!(got.properties.message_id().as_ref().unwrap().as_str(), "job 7");
        let headers = got.properties.headers().as_ref().unwrap().inner();
        assert_eq!(headers["X-Kept"], text("v"));
        let deaths = headers.get("x-death").map(|deaths| deaths.as_array().expect("an array").as_slice().to_vec());
        let counts: Vec<_> = deaths
            .unwrap_or_default()
            .iter()
            .map(|death| death.as_field_table().unwrap().inner()["count"].as_long_long_int().unwrap())
            .collect();
        let counted = if counts_on { round } else { round.min(1) };
        assert_eq!(counts, [counted.try_into().unwrap()].into_iter().filter(|n| *n > 0).collect::<Vec<i64>>());
        rejected = Instant::now();
        got.acker.reject(BasicRejectOptions { requeue: false }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_and_check_report_the_queue_and_its_depth() {
    let server = RabbitMq::shared().await;
    declare(server, "told").await;
    let configuration = configuration(server, "told", "embedded", ", prefetch: 1");
    let punctual = Punctual::start(&configuration).await;
    let sources = until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "running").await;
    assert_eq!((&sources["sources"][0]["type"], &sources["sources"][0]["depth"]), (&"rabbitmq".into(), &0.into()));
    super::publish(server, "told", delayed(1, 0)).await;
    assert_eq!(wait_for(server, "told", 1).await.len(), 1);
    let check = async |configuration: &str| {
        std::fs::write(punctual.path("other.yaml"), configuration).unwrap();
        let ended = punctual.command(&["--json", "check", "--connect", "-c", "other.yaml"]).await;
        (ended.code, format!("{ended:?}"))
    };
    let (code, text) = check(&configuration).await;
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = check(&configuration.replace("told-in", "nowhere")).await;
    assert!(code == Some(1) && text.contains("no queue 'nowhere'"), "{text}");
    assert!(
        text.contains("create it with `rabbitmqadmin --vhost=/ declare queue name=nowhere durable=true`"),
        "{text}"
    );
}

/// They become headers of AMQP 0-9-1: an annotation in whole milliseconds, and a timestamp that has lost its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_delays_of_amqp_1_0_producers_are_kept_and_not_passed_on() {
    let server = RabbitMq::shared().await;
    declare(server, "annotated").await;
    let _punctual = Punctual::start(&configuration(server, "annotated", "embedded", "")).await;
    let now = crate::support::receiver::wall_clock();
    let seconds = now / 1000 + 1;
    let cases = [
        ("delay", "x-opt-delivery-delay", AMQPValue::LongLongInt(1500), now + 1500),
        ("millis", "x-opt-delivery-time", AMQPValue::LongLongInt((now + 1200).cast_signed()), now + 1200),
        ("seconds", "x-opt-delivery-time", AMQPValue::Timestamp(seconds), seconds * 1000 + 999),
        ("ours", "x-deliver-at", AMQPValue::Timestamp(seconds), seconds * 1000 + 999),
    ];
    let messages = cases.iter().map(|(id, name, value, _)| (with_headers(&[(*name, value.clone())], id), Vec::new()));
    super::publish(server, "annotated", messages.collect()).await;
    for (arrived, got) in consume(server, "annotated", cases.len()).await {
        let (_, name, _, due) = cases.iter().find(|(id, ..)| *id == got.id).expect("one of them");
        assert!(
            (*due..due + LATEST_MS).contains(&arrived),
            "{} came {} ms off",
            got.id,
            arrived.cast_signed() - due.cast_signed()
        );
        assert!(!got.properties.headers().as_ref().unwrap().inner().contains_key(*name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flow_and_the_group_of_a_message_are_taken_from_its_headers_and_not_passed_on() {
    let server = RabbitMq::shared().await;
    declare(server, "flowing").await;
    let punctual = Punctual::start(&configuration(server, "flowing", "embedded", ", id_from: message_id")).await;
    let delay = AMQPValue::LongInt(3_600_000);
    let waiting =
        [("x-flow", text("tenant:7")), ("x-group", text("order:7")), ("x-delay", delay), ("X-Kept", text("v"))];
    let message = (with_headers(&waiting, "m"), b"body".to_vec());
    super::publish(server, "flowing", vec![message]).await;
    until(&punctual, "/v1/routes/r", |route| route["pending"] == 1).await;
    let shown = super::get(&punctual, "/v1/routes/r/messages/m").await;
    assert_eq!((&shown["flow"], &shown["headers"]), (&"tenant:7".into(), &serde_json::json!({ "X-Kept": "v" })));
    let delivered = punctual.command(&["group", "deliver", "r", "order:7"]).await;
    assert_eq!((delivered.code, &*delivered.out), (Some(0), "moved 1 of group order:7 of r\n"), "{delivered:?}");
    let (_, got) = wait_for(server, "flowing", 1).await.remove(0);
    let headers = got.properties.headers().as_ref().expect("headers").inner();
    assert!(headers.contains_key("X-Kept"), "{headers:?}");
    assert!(!headers.contains_key("x-flow") && !headers.contains_key("x-group"), "{headers:?}");
}

/// RabbitMQ answers a passive declare for any user before 4.3.
#[tokio::test(flavor = "multi_thread")]
async fn check_reports_whether_the_user_may_read_the_queue_and_takes_nothing() {
    let server = RabbitMq::shared().await;
    declare(server, "rights").await;
    super::publish(server, "rights", delayed(3, 0)).await;
    for (user, read) in [("stranger", "^$"), ("reader", "^rights-in$")] {
        server.create_user(user, "secret").await;
        server.permit(user, "^$", "^$", read).await;
    }
    let configuration = configuration(server, "rights", "embedded", "");
    let (sinks, sources) = configuration.split_once("sources:").unwrap();
    for (user, allowed) in [("stranger", false), ("reader", true)] {
        let sources = sources.replace("amqp://", &format!("amqp://{user}:secret@"));
        let workplace = Workplace::with(&format!("{sinks}sources:{sources}"));
        let ended = workplace.run(&["--json", "check", "--connect"]).await;
        let refused = ended.out.contains("access to queue 'rights-in' in vhost '/' refused for user 'stranger'");
        assert_eq!((ended.code, refused), (Some(i32::from(!allowed)), !allowed), "{user}: {ended:?}");
    }
    assert_eq!(server.depth("rights-in").await, Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn check_recommends_a_delivery_limit_for_quorum_queues_only() {
    let server = RabbitMq::shared().await;
    for kind in ["classic", "quorum"] {
        server.declare(&format!("advised-{kind}"), "k").await;
        declare_in(server, &format!("advised-{kind}"), kind).await;
        let workplace = Workplace::with(&configuration(server, &format!("advised-{kind}"), "embedded", ""));
        let ended = workplace.run(&["check", "--connect"]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let row = ended.out.lines().find(|line| line.starts_with("sources.in")).expect("a row");
        assert_eq!(row.contains("x-delivery-limit: 1000000"), kind == "quorum", "{row}");
    }
}
