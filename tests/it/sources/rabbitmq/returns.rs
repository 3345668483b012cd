//! Returns of messages to a broker, which counts them: RabbitMQ 4 drops a message of a quorum queue at its 21st return,
//! unless the queue has another `x-delivery-limit`.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use tokio::time::{Instant, sleep};

use super::{MAX_WAIT, arguments, configuration, declare_in, declare_with, delayed, get, publish, until, wait_for};
use crate::support::{
    RabbitMq, RedisServer, http,
    punctual::Punctual,
    scale::{rounds, seconds},
};

const MESSAGES: usize = 50;
/// The recommended limit: RabbitMQ 3.10 takes `-1` for 0.
const NO_LIMIT: AMQPValue = AMQPValue::LongInt(1_000_000);
/// Ends of punctual: more than the default delivery limit, 20.
const MANY_ENDS: usize = 25;

/// Ends of punctual, and the delivery limit that as many returns would exceed. In the plain run both are small: it is
/// their order that shows whether an end is counted. The full run has the default limit of RabbitMQ 4.
fn ends_beyond_a_limit() -> (usize, Vec<(&'static str, AMQPValue)>) {
    rounds((5, vec![("x-delivery-limit", AMQPValue::LongInt(3))]), (MANY_ENDS, Vec::new()))
}

/// How punctual ends.
#[derive(Clone, Copy, Debug)]
enum How {
    Killed,
    Stopped,
}

impl How {
    async fn end(self, punctual: &mut Punctual) {
        match self {
            Self::Killed => punctual.kill().await,
            Self::Stopped => assert_eq!(punctual.terminate().await.code, Some(0), "{}", punctual.log()),
        }
    }
}

/// Makes Redis refuse all commands that need memory, or none.
pub async fn set_full(redis: &RedisServer, full: bool) {
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg("maxmemory").arg(u8::from(full));
    command.exec_async(&mut redis.connection().await).await.unwrap();
}

async fn until_failing(punctual: &Punctual) {
    until(punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "failing").await;
}

/// Waits until this number of messages is ready in a queue.
pub async fn until_depth(server: &RabbitMq, queue: &str, depth: usize) {
    let deadline = Instant::now() + MAX_WAIT;
    while server.depth(queue).await != Some(depth.try_into().unwrap()) {
        assert!(Instant::now() < deadline, "{:?} are ready, not {depth}", server.depth(queue).await);
        sleep(Duration::from_millis(20)).await;
    }
}

/// A quorum queue with these further arguments.
fn quorum(more: &[(&str, AMQPValue)]) -> FieldTable {
    arguments(&[&[("x-queue-type", AMQPValue::LongString("quorum".into()))], more].concat())
}

/// Waits until it is counted and logged that messages come back again and again.
async fn until_warned(punctual: &Punctual) {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let page = http::client().get(punctual.url("/metrics")).send().await.unwrap().text().await.unwrap();
        let line =
            page.lines().find(|line| line.starts_with("punctual_source_near_delivery_limit_total{source=\"in\"}"));
        if line.is_some_and(|line| !line.ends_with(" 0")) && punctual.log().contains("x-delivery-limit: 1000000") {
            return;
        }
        assert!(Instant::now() < deadline, "{page}\n{}", punctual.log());
        sleep(Duration::from_millis(20)).await;
    }
}

/// As `configuration`, and a stop that waits a second, not ten, for what Redis refuses.
fn held_configuration(server: &RabbitMq, name: &str, redis: &str) -> String {
    format!("shutdown_timeout: 1s\n{}", configuration(server, name, redis, ", id_from: message_id"))
}

/// All arrive at queue `name`, each once.
async fn all_arrive(server: &RabbitMq, name: &str, punctual: &Punctual) {
    let got = wait_for(server, name, MESSAGES).await;
    until_depth(server, &format!("{name}-in"), 0).await;
    assert_eq!(got.len() + server.drain(name).await.len(), MESSAGES, "each came once\n{}", punctual.log());
}

/// A delivery limit, and a Redis that is full for as long as punctual ends again and again.
async fn full_redis(name: &str, how: How) {
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    server.declare(name, "k").await;
    let (ends, limit) = ends_beyond_a_limit();
    declare_with(server, name, quorum(&limit)).await;
    let mut punctual = Punctual::start(&held_configuration(server, name, &redis.url())).await;
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "running").await;
    set_full(&redis, true).await;
    publish(server, name, delayed(MESSAGES, 0)).await;
    until_depth(server, &format!("{name}-in"), 0).await;
    for _ in 0..ends {
        until_failing(&punctual).await;
        how.end(&mut punctual).await;
        punctual.restart().await;
    }
    until_failing(&punctual).await;
    set_full(&redis, false).await;
    all_arrive(server, name, &punctual).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_costs_one_return_however_often_punctual_is_killed() {
    full_redis("full-killed", How::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_costs_one_return_however_often_punctual_is_stopped() {
    full_redis("full-stopped", How::Stopped).await;
}

/// With what cannot be noticed before messages are taken: Redis accepts all writes but those of the bodies.
async fn ends_with_messages_held(name: &str, how: How, (ends, limit): (usize, Vec<(&str, AMQPValue)>)) {
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    server.declare(name, "k").await;
    declare_with(server, name, quorum(&limit)).await;
    let acl = async |rules: &[&str]| {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("p").arg(rules).exec_async(&mut redis.connection().await).await.unwrap();
    };
    acl(&["on", "nopass", "allcommands", "allchannels", "allkeys"]).await;
    let url = redis.url().replace("//", "//p:any@");
    let mut punctual = Punctual::start(&held_configuration(server, name, &url)).await;
    let mut keys = vec!["resetkeys".to_owned(), "~punctual:*".to_owned()];
    for key in ["pending", "unack", "attempts", "errors", "dead", "remembered", "records", "paused", "route", "rights"]
    {
        keys.push(format!("~{{punctual:r:0/1}}:{key}"));
    }
    acl(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    publish(server, name, delayed(MESSAGES, 0)).await;
    let queue = format!("{name}-in");
    for _ in 0..ends {
        until_depth(server, &queue, 0).await;
        how.end(&mut punctual).await;
        until_depth(server, &queue, MESSAGES).await;
        punctual.restart().await;
    }
    until_depth(server, &queue, 0).await;
    if matches!(how, How::Killed) {
        until_warned(&punctual).await;
    }
    acl(&["allkeys"]).await;
    all_arrive(server, name, &punctual).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_recommended_limit_no_number_of_kills_drops_a_message() {
    // Not fewer in the plain run: the warning comes shortly before the default limit.
    ends_with_messages_held("held-killed", How::Killed, (MANY_ENDS, vec![("x-delivery-limit", NO_LIMIT)])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_recommended_limit_no_number_of_stops_drops_a_message() {
    // The kills beside this exceed the default limit in every run; a few stops show that each returns all of them.
    let ends = rounds(5, MANY_ENDS);
    ends_with_messages_held("held-stopped", How::Stopped, (ends, vec![("x-delivery-limit", NO_LIMIT)])).await;
}

/// RabbitMQ from 4.3 on counts nothing on `basic.nack`. Before 4.0 it has no default limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_returns_what_is_held_and_the_broker_counts_nothing() {
    let version = RabbitMq::shared().await.version().await;
    if ((4, 0)..(4, 3)).contains(&version) {
        eprintln!("skipped: RabbitMQ {version:?} counts every return");
        return;
    }
    let (ends, limit) = ends_beyond_a_limit();
    // Before 4.0 each return counts, but nothing is dropped without an explicit limit.
    let limit = if version < (4, 0) { Vec::new() } else { limit };
    ends_with_messages_held("stopped-uncounted", How::Stopped, (ends, limit)).await;
}

/// While Redis is full, the consumer timeout is over again and again: half an hour each by default.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_timeout_is_met_once_in_an_outage_of_redis() {
    let (server, redis) = (RabbitMq::troubled().await, RedisServer::start().await);
    let name = "timed-out";
    server.declare(name, "k").await;
    declare_in(&server, name, "quorum").await;
    server.set_consumer_timeout(1000).await;
    let punctual = Punctual::start(&configuration(&server, name, &redis.url(), "")).await;
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["state"] == "running").await;
    set_full(&redis, true).await;
    publish(&server, name, delayed(MESSAGES, 0)).await;
    let queue = format!("{name}-in");
    until_depth(&server, &queue, 0).await;
    until_depth(&server, &queue, MESSAGES).await;
    // Two timeouts more, or five, had they been taken again.
    let end = Instant::now() + seconds(3, 5);
    while Instant::now() < end {
        assert_eq!(server.depth(&queue).await, Some(MESSAGES.try_into().unwrap()), "{}", punctual.log());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(punctual.log().contains("consumer timeout") || punctual.log().contains("timed out"), "{}", punctual.log());
    set_full(&redis, false).await;
    all_arrive(&server, name, &punctual).await;
    server.set_consumer_timeout(1_800_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_refused_with_the_reason() {
    let server = RabbitMq::shared().await;
    server.declare("streamed", "k").await;
    declare_in(server, "streamed", "stream").await;
    let configuration = configuration(server, "streamed", "embedded", "");
    let punctual = Punctual::start(&configuration).await;
    let refused = |text: &str| text.contains("queue 'streamed-in' is a stream");
    let sources =
        until(&punctual, "/v1/sources", |sources| sources["sources"][0]["last_error"].as_str().is_some_and(refused))
            .await;
    assert_eq!(sources["sources"][0]["state"], "failing");
    std::fs::write(punctual.path("other.yaml"), configuration).unwrap();
    let ended = punctual.command(&["--json", "check", "--connect", "-c", "other.yaml"]).await;
    assert!(ended.code == Some(1) && refused(&ended.out), "{ended:?}");
    assert!(get(&punctual, "/v1/routes/r").await["pending"] == 0);
}
