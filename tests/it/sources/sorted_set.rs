//! Sorted sets of any producer, through the whole program.

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::program::Program;
use crate::{
    program::{alone, client::Client, eventually, p99},
    support::{
        RedisServer,
        punctual::Punctual,
        receiver::{Receiver, Request, wall_clock},
        scale::seconds,
    },
};

const MESSAGES: usize = 1000;
const CANCELLED: usize = 100;
const MAX_WAIT: Duration = Duration::from_secs(20);
/// A debug build keeps this beside all the other tests; the printed number is the one that counts.
const LATENESS_P99: u64 = 1000;

pub struct World {
    pub redis: RedisServer,
    pub receiver: Receiver,
    punctual: Punctual,
    pub client: Client,
    pub raw: MultiplexedConnection,
}

impl World {
    /// A source on the set `delayed`.
    pub async fn start(redis: &[&str], source: Value) -> Self {
        Self::start_with(redis, source, &[]).await
    }

    /// A source on the set `delayed`, with environment variables of punctual.
    async fn start_with(redis: &[&str], source: Value, environment: &[(&str, &str)]) -> Self {
        let redis = RedisServer::start_with(redis).await;
        let receiver = Receiver::start();
        let punctual = Punctual::start_with(&configuration(&redis, &receiver, source), environment).await;
        let (client, raw) = (Client::of(&punctual), redis.connection().await);
        Self { redis, receiver, punctual, client, raw }
    }

    pub async fn add(&mut self, due: u64, member: &str) {
        let score = format!("{}.{:03}", due / 1000, due % 1000);
        let () = redis::cmd("ZADD").arg("delayed").arg(score).arg(member).query_async(&mut self.raw).await.unwrap();
    }

    pub async fn count(&mut self) -> usize {
        redis::cmd("ZCARD").arg("delayed").query_async(&mut self.raw).await.expect("a sorted set")
    }

    /// Commands that clients send to Redis in this period, without the commands of scripts.
    pub async fn commands(&self, period: Duration) -> Vec<String> {
        let monitor = redis::Client::open(self.redis.url()).unwrap().get_async_monitor().await.unwrap();
        let (mut lines, end) = (monitor.into_on_message::<String>(), Instant::now() + period);
        let mut commands = Vec::new();
        while let Ok(Some(line)) = timeout_at(end, lines.next()).await {
            if !line.contains(" lua]") {
                commands.push(line);
            }
        }
        commands
    }

    pub async fn source(&self) -> Value {
        self.client.call("GET", "/v1/sources", "").await.json["sources"][0].clone()
    }
}

pub fn configuration(redis: &RedisServer, receiver: &Receiver, mut source: Value) -> String {
    let defaults = json!({ "type": "sorted_set", "key": "delayed", "route": "web" });
    for (name, value) in defaults.as_object().expect("an object") {
        source.as_object_mut().expect("an object").entry(name).or_insert(value.clone());
    }
    json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": { "type": "http", "url": receiver.url() } },
        // So few in flight that a slow machine answers each within its timeout.
        "routes": { "web": { "sink": "hook", "partitions": 2, "max_in_flight": 200 } },
        "sources": { "theirs": source },
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_python_program_adds_comes_in_time_and_what_it_cancels_does_not() {
    let Some(python) = Program::python() else { return };
    let world = World::start(&["--notify-keyspace-events", "Kz"], json!({})).await;
    external_producer(world, &python).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_program_adds_comes_in_time_without_notifications_too() {
    let Some(node) = Program::node() else { return };
    external_producer(World::start(&[], json!({ "poll": "200ms" })).await, &node).await;
}

async fn external_producer(mut world: World, program: &Program) {
    let _alone = alone().await;
    let (port, messages, cancelled) = (world.redis.port().to_string(), MESSAGES.to_string(), CANCELLED.to_string());
    program.run(&[&port, "delayed", &messages, &cancelled]).await;
    world.receiver.wait_for(MESSAGES, MAX_WAIT).await;
    world.client.drained("web", MAX_WAIT).await;
    // Beyond the time at which the cancelled ones would have been due.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let requests = world.receiver.requests();
    assert_eq!(requests.len(), MESSAGES);
    let (mut seen, mut lateness) = (BTreeSet::new(), Vec::new());
    for request in &requests {
        let body: Value = serde_json::from_slice(&request.body).expect("as it was added");
        assert!(seen.insert(body["n"].as_u64().expect("none that was cancelled")), "twice: {body}");
        let due = due_millis(body["due"].as_f64().expect("seconds"));
        assert_eq!(request.due(), due, "{body}");
        assert!(request.arrived >= due, "{} ms early", due - request.arrived);
        lateness.push(request.arrived - due);
    }
    let late = p99(lateness);
    println!("sorted set: p99 lateness {late} ms");
    assert!(late < LATENESS_P99, "{late} ms");
    assert_eq!(world.count().await, 0);
    let metrics = world.client.metrics().await;
    assert_eq!(metrics.sum("punctual_source_taken_total", &["source=\"theirs\""]), 1000);
    assert_eq!(metrics.sum("punctual_source_up", &["source=\"theirs\""]), 1);
    assert_eq!(metrics.sum("punctual_messages_scheduled_total", &["via=\"theirs\""]), 1000);
    assert_eq!(metrics.sum("punctual_messages_delivered_total", &["route=\"web\""]), 1000);
}

/// Rounded up, but for what a float adds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn due_millis(seconds: f64) -> u64 {
    (seconds * 1000.0 - 0.001).ceil() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn details_arrive_as_an_object_and_missing_ones_are_a_dead_letter() {
    let mut world =
        World::start(&["--notify-keyspace-events", "Kz"], json!({ "payload": "hash", "hash_prefix": "task" })).await;
    let mut pipe = redis::pipe();
    pipe.hset_multiple("task:abc123", &[("type", "mail"), ("to", "a@example.org")]).ignore();
    pipe.hset("task/2", "type", "\u{e9}").ignore();
    pipe.set("task:text", "no hash").ignore();
    pipe.exec_async(&mut world.raw).await.expect("written");
    for member in ["task:abc123", "task/2", "task:lost", "task:text"] {
        world.add(wall_clock() + 300, member).await;
    }
    world.receiver.wait_for(2, MAX_WAIT).await;
    eventually("two dead letters", MAX_WAIT, async || {
        (world.client.drained("web", MAX_WAIT).await["dead"] == 2).then_some(())
    })
    .await;
    let body = |request: &Request| serde_json::from_slice::<Value>(&request.body).expect("JSON");
    let mut found: Vec<_> = world.receiver.requests().iter().map(|one| (one.id().to_owned(), body(one))).collect();
    found.sort_by_key(|one| one.0.clone());
    assert_eq!(
        found[0],
        ("task/2".into(), json!({ "type": "\u{e9}" })),
        "a name that is no valid id is passed on all the same"
    );
    assert_eq!(found[1], ("task:abc123".into(), json!({ "type": "mail", "to": "a@example.org" })));
    let dead = world.client.call("GET", "/v1/routes/web/messages?state=dead", "").await.json;
    let dead = dead["messages"].as_array().unwrap().iter().find(|one| one["id"] == "task:lost").expect("listed");
    assert_eq!((&dead["id"], &dead["payload"]), (&json!("task:lost"), &json!("task:lost")));
    assert!(dead["last_error"].as_str().unwrap().starts_with("invalid: its details are missing"), "{dead}");
    let left: Vec<String> = redis::cmd("KEYS").arg("task*").query_async(&mut world.raw).await.unwrap();
    assert_eq!((left, world.count().await), (vec!["task:text".to_owned()], 0));
    assert_eq!(world.client.metrics().await.sum("punctual_source_invalid_total", &[]), 2);
    // Each kind at once, with an example.
    let log = world.punctual.log();
    for (id, problem) in [("task:lost", "its details are missing"), ("task:text", "its details are no hash")] {
        assert!(log.lines().any(|line| line.contains(id) && line.contains(problem)), "{id}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_comes_again_while_it_is_live_is_another_message() {
    let mut world = World::start(&["--notify-keyspace-events", "Kz"], json!({})).await;
    world.receiver.behave(crate::support::receiver::Behaviour::Hang);
    for n in 1..=3 {
        world.add(wall_clock(), "again").await;
        world.receiver.wait_for(n, MAX_WAIT).await;
    }
    let ids: BTreeSet<String> = world.receiver.requests().iter().map(|request| request.id().to_owned()).collect();
    assert!(ids.len() == 3 && ids.contains("again"), "{ids:?}");
    world.receiver.behave(crate::support::receiver::Behaviour::Status(200));
    world.client.drained("web", MAX_WAIT).await;
    assert_eq!(world.receiver.count(), 3);
    assert_eq!(world.client.metrics().await.sum("punctual_source_conflicts_total", &[]), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_notifies_of_changes_the_source_sleeps_and_is_in_time() {
    /// Commands sent by clients, in all: by default one in two seconds.
    const MOST_COMMANDS: usize = 15;
    // Each partition and the source poll once after `max_sleep`, however long that is.
    let max_sleep = seconds(10, 30);
    let environment = [("PUNCTUAL__MAX_SLEEP", &*format!("{}s", max_sleep.as_secs()))];
    let mut world = World::start_with(&["--notify-keyspace-events", "Kz"], json!({}), &environment).await;
    let _alone = alone().await;
    world.add(wall_clock() + 3_600_000, "in an hour").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.source().await["depth"], 1);
    let commands = world.commands(max_sleep).await;
    println!("sorted set: {} commands in {max_sleep:?}", commands.len());
    assert!(commands.len() <= MOST_COMMANDS, "{} commands: {commands:#?}", commands.len());
    assert!(commands.iter().any(|line| line.contains("\"delayed\"")), "the monitor sees its fallback poll");
    let due = wall_clock() + 500;
    world.add(due, "sooner").await;
    let arrived = world.receiver.wait_for(1, MAX_WAIT).await[0].arrived;
    assert!(arrived >= due, "{} ms early", due - arrived);
    println!("sorted set: after idling {} ms late", arrived - due);
    assert!(arrived - due < LATENESS_P99, "{} ms late", arrived - due);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_producer_costs_fifty_polls_a_second_and_delays_nothing() {
    const PERIOD: Duration = Duration::from_secs(3);
    let mut world = World::start(&["--notify-keyspace-events", "Kz"], json!({})).await;
    let _alone = alone().await;
    let due = wall_clock() + 1500;
    world.add(due, "soon").await;
    let mut raw = world.redis.connection().await;
    let producer = tokio::spawn(async move {
        for n in 0.. {
            let mut add = redis::cmd("ZADD");
            add.arg("delayed").arg(5_000_000_000_u64).arg(n).exec_async(&mut raw).await.expect("added");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let commands = world.commands(PERIOD).await;
    producer.abort();
    let of = |command: &str| commands.iter().filter(|line| line.contains(command) && line.contains("delayed")).count();
    let (added, polls) = (of("\"ZADD\""), of("\"EVALSHA\""));
    println!("sorted set: {polls} polls at {added} changes in {PERIOD:?}");
    assert!(added > 2 * polls, "{added} were added: no busy producer");
    assert!((5..=160).contains(&polls), "{polls} polls at {added} changes in {PERIOD:?}");
    let arrived = world.receiver.wait_for(1, MAX_WAIT).await[0].arrived;
    assert!((due..due + LATENESS_P99).contains(&arrived), "{arrived} instead of {due}");
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_that_are_switched_off_are_missed_for_max_sleep_at_most() {
    let redis = RedisServer::start_with(&["--notify-keyspace-events", "Kz"]).await;
    let receiver = Receiver::start();
    let mut configuration: Value = serde_json::from_str(&configuration(&redis, &receiver, json!({}))).expect("JSON");
    configuration["max_sleep"] = json!("2s");
    let _punctual = Punctual::start(&configuration.to_string()).await;
    let mut raw = redis.connection().await;
    // It sleeps because it would be notified.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut off = redis::cmd("CONFIG");
    off.arg(&["SET", "notify-keyspace-events", ""]).exec_async(&mut raw).await.expect("set");
    for (n, max_wait) in [(1, 2000 + LATENESS_P99), (2, 1000 + LATENESS_P99)] {
        let added = wall_clock();
        redis::cmd("ZADD").arg("delayed").arg(1).arg(n).exec_async(&mut raw).await.expect("added");
        let late = receiver.wait_for(n, MAX_WAIT).await[n - 1].arrived - added;
        assert!(late < max_wait, "{late} ms late");
    }
}
