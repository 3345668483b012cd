//! The configuration is read again by a running instance: what differs is replaced, everything else goes on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::{Instant, interval, sleep};

use super::{alone, client::Client, eventually, heavy};
use crate::support::{
    Answer, RedisServer, answer, http,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request, wall_clock},
    scale::rounds,
};

pub const MAX_WAIT: Duration = Duration::from_secs(20);

/// By how much a message of a route that does not change can be later than on an instance that is left alone, in ms.
const LATE: u64 = 50;

/// Messages for each of two routes, at 500 a second each.
fn messages() -> u64 {
    rounds(3000, 15_000)
}

fn http_sink(receiver: &Receiver) -> Value {
    json!({ "type": "http", "url": receiver.url(), "timeout": "2s" })
}

/// One route, `a`, to one sink, `hook`.
pub fn base(redis: &RedisServer, receiver: &Receiver) -> Value {
    json!({
        "redis": { "url": redis.url() },
        "shutdown_timeout": "3s",
        "sinks": { "hook": http_sink(receiver) },
        "routes": { "a": { "sink": "hook" } },
    })
}

fn write(punctual: &Punctual, configuration: &Value) {
    fs::write(punctual.path("punctual.yaml"), configuration.to_string()).expect("the configuration is written");
}

async fn reload(punctual: &Punctual) -> Answer {
    Client::of(punctual).call("POST", "/v1/reload", "").await
}

/// Replaces the file, and reads it.
pub async fn reload_with(punctual: &Punctual, configuration: &Value) -> Value {
    write(punctual, configuration);
    let answer = reload(punctual).await;
    assert_eq!(answer.status, 200, "{}\n{}", answer.text, punctual.log());
    answer.json
}

pub fn parts(reloaded: &Value, key: &str) -> Vec<String> {
    let parts = reloaded[key].as_array().unwrap_or_else(|| panic!("no `{key}` in {reloaded}"));
    parts.iter().map(|part| part.as_str().expect("text").to_owned()).collect()
}

fn ids(requests: &[Request]) -> BTreeMap<String, usize> {
    let mut ids = BTreeMap::new();
    for request in requests {
        *ids.entry(request.id().to_owned()).or_default() += 1;
    }
    ids
}

/// Median, 99th percentile and maximum, in ms.
fn lateness(requests: &[Request]) -> (u64, u64, u64) {
    let mut late: Vec<u64> = requests.iter().map(|request| request.arrived.saturating_sub(request.due())).collect();
    late.sort_unstable();
    (late[late.len() / 2], late[late.len() * 99 / 100], late[late.len() - 1])
}

/// Posts `count` messages that are due 300 ms later, one every `pause`.
async fn produce(client: Client, route: &str, count: u64, pause: Duration) {
    let mut ticks = interval(pause);
    let batch = 10;
    for begin in (0..count).step_by(batch) {
        for _ in 0..batch {
            ticks.tick().await;
        }
        let due = wall_clock() + 300;
        let messages = (begin..begin + batch as u64)
            .map(|n| json!({ "id": format!("{route}-{n}"), "deliver_at": due, "payload": n }));
        client.schedule(route, &messages.collect::<Value>().to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_does_not_change_delivers_in_time_while_others_are_added_changed_and_broken() {
    let _alone = alone().await;
    let (redis, other_redis) = (RedisServer::start().await, RedisServer::start().await);
    let [steady, former, next, third, beside] = [(); 5].map(|()| Receiver::start());
    // Shows how late the machine is at this time.
    let left_alone = Punctual::start(&base(&other_redis, &beside).to_string()).await;
    let mut configuration = json!({
        "redis": { "url": redis.url() },
        "server": { "auth": { "tokens": [{ "name": "ops", "token": "first-token-of-ops", "rights": ["schedule", "read", "admin"], "routes": ["*"] }] } },
        "sinks": { "steady": http_sink(&steady), "moved": http_sink(&former), "third": http_sink(&third) },
        "routes": { "kept": { "sink": "steady" }, "changed": { "sink": "moved" } },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let with_token = |token: &str| {
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        http::builder().default_headers(headers).timeout(MAX_WAIT).build().unwrap()
    };
    let [first, second] = ["first-token-of-ops", "second-token-of-ops"].map(with_token);
    let count = messages();
    let pause = Duration::from_millis(2);
    // Producers use a token that stays.
    configuration["server"]["auth"]["tokens"].as_array_mut().unwrap().push(
        json!({ "name": "shop", "token": "the-token-of-the-shop", "rights": ["schedule", "read"], "routes": ["*"] }),
    );
    write(&punctual, &configuration);
    let again = async |client: &reqwest::Client| answer(client.post(punctual.url("/v1/reload"))).await;
    let added = again(&first).await;
    assert_eq!((added.status, parts(&added.json, "replaced")), (200, vec!["server.auth".to_owned()]));
    let shop = Client::with(&punctual, with_token("the-token-of-the-shop"));
    let clients = [(&shop, "kept"), (&shop, "changed"), (&Client::of(&left_alone), "a")];
    let producing = clients.map(|(client, route)| tokio::spawn(produce(client.clone(), route, count, pause)));

    let step = pause * u32::try_from(count / 6).expect("few");
    sleep(step).await;
    configuration["routes"]["third"] = json!({ "sink": "third" });
    write(&punctual, &configuration);
    let added = again(&first).await;
    assert_eq!((added.status, parts(&added.json, "added")), (200, vec!["routes.third".to_owned()]), "{}", added.text);
    shop.schedule("third", r#"{"id":"t","payload":1}"#).await;
    sleep(step).await;
    configuration["sinks"]["moved"]["url"] = next.url().into();
    write(&punctual, &configuration);
    let moved = again(&first).await;
    assert_eq!(parts(&moved.json, "replaced"), ["sinks.moved", "routes.changed"], "{}", moved.text);
    sleep(step).await;
    configuration["server"]["auth"]["tokens"][0]["token"] = "second-token-of-ops".into();
    write(&punctual, &configuration);
    assert_eq!(again(&first).await.status, 200);
    assert_eq!(again(&first).await.status, 401, "the former token is not known any more");
    sleep(step).await;
    fs::write(punctual.path("punctual.yaml"), "routes: { kept: { sink: nowhere } }\nsinks: [").unwrap();
    let broken = again(&second).await;
    assert_eq!(broken.status, 422, "{}", broken.text);
    for producing in producing {
        producing.await.expect("all are accepted");
    }

    let kept = steady.wait_for(usize::try_from(count).expect("few"), MAX_WAIT).await;
    third.wait_for(1, MAX_WAIT).await;
    let changed = || [former.requests(), next.requests()].concat();
    eventually("none is lost", MAX_WAIT, async || (ids(&changed()).len() as u64 == count).then_some(())).await;
    assert_eq!(ids(&kept).len() as u64, count, "none is lost");
    assert!(former.count() > 0 && next.count() > 0);
    let others = beside.wait_for(usize::try_from(count).expect("few"), MAX_WAIT).await;
    let [(median, p99, worst), (.., usual)] = [&kept, &others].map(|requests| lateness(requests));
    let twice = changed().len() as u64 - count;
    println!(
        "reload: {count} messages of the kept route: median {median}, p99 {p99}, worst {worst} ms; worst of an instance that \
         is left alone: {usual} ms; {twice} duplicates of the other route"
    );
    assert!(worst <= usual + LATE, "late by {worst} ms\n{}", punctual.log());
    assert!(kept.iter().all(|request| request.arrived + 1 >= request.due()), "none is early");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_file_changes_nothing_and_is_answered_with_its_mistakes() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = base(&redis, &receiver);
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    let gauge = async |name: &str| client.metrics().await.sum(name, &[]);
    assert_eq!(gauge("punctual_config_last_reload_successful").await, 1);
    let digest = gauge("punctual_config_digest").await;

    let mut wrong = configuration.clone();
    wrong["routes"]["a"]["lease"] = "1 potato".into();
    wrong["routes"]["b"] = json!({ "sink": "nowhere" });
    write(&punctual, &wrong);
    let refused = reload(&punctual).await;
    assert_eq!(refused.status, 422);
    assert!(refused.json["type"].as_str().unwrap().ends_with(":invalid-configuration"), "{}", refused.text);
    let lines: Vec<&str> =
        refused.json["errors"].as_array().unwrap().iter().map(|one| one["detail"].as_str().unwrap()).collect();
    assert_eq!(refused.json["errors"][0]["pointer"], "/routes/a/lease");
    let check = punctual.command(&["check", "-c", "punctual.yaml"]).await;
    assert_eq!(check.code, Some(2));
    for line in &lines {
        assert!(check.error.contains(line), "{line}: {}", check.error);
    }
    let url = punctual.url("");
    let command = punctual.command(&["reload", "--url", &url]).await;
    assert_eq!(command.code, Some(2));
    assert_eq!(command.error, check.error, "as `check` prints them");
    assert_eq!(gauge("punctual_config_last_reload_successful").await, 0);
    assert_eq!(gauge("punctual_config_digest").await, digest, "the old one stays");
    assert!(punctual.log().contains("the old one stays"), "{}", punctual.log());
    client.schedule("a", r#"{"payload":1}"#).await;
    receiver.wait_for(1, MAX_WAIT).await;

    write(&punctual, &configuration);
    let command = punctual.command(&["reload", "--url", &url]).await;
    assert_eq!(command.code, Some(0), "{}", command.error);
    assert!(command.out.starts_with("nothing changed\ndigest "), "{}", command.out);
    let check = punctual.command(&["check", "-c", "punctual.yaml"]).await.out;
    let digest = command.out.trim_end().rsplit(' ').next().unwrap().to_owned();
    assert!(check.contains(&format!("digest {digest}")), "{check}");
    let number = u64::from_str_radix(&digest, 16).unwrap();
    assert_eq!(gauge("punctual_config_digest").await, number);
    assert_eq!(gauge("punctual_config_last_reload_successful").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reads_the_files_again() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut configuration = base(&redis, &receiver);
    let punctual = Punctual::start(&configuration.to_string()).await;
    configuration["routes"]["b"] = json!({ "sink": "hook" });
    write(&punctual, &configuration);
    kill_process(punctual.pid(), Signal::HUP).expect("it runs");
    let client = Client::of(&punctual);
    eventually("the route is added", MAX_WAIT, async || {
        let answer = client.call("POST", "/v1/routes/b/messages", r#"{"payload":1}"#).await;
        (answer.status == 201).then_some(())
    })
    .await;
    receiver.wait_for(1, MAX_WAIT).await;
    assert!(punctual.log().contains("loaded the configuration again"), "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_in_flight_to_a_hanging_endpoint_are_given_back_and_reach_its_successor() {
    let (redis, hanging, next) = (RedisServer::start().await, Receiver::start(), Receiver::start());
    hanging.behave(Behaviour::Hang);
    let mut configuration = base(&redis, &hanging);
    configuration["sinks"]["hook"]["timeout"] = "10s".into();
    configuration["sinks"]["hook"]["max_connections"] = 10.into();
    configuration["routes"]["a"]["lease"] = "11s".into();
    configuration["shutdown_timeout"] = "1s".into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    let messages: Value = (0..100).map(|n| json!({ "id": format!("m{n}"), "payload": n })).collect();
    client.schedule("a", &messages.to_string()).await;
    hanging.wait_for(10, MAX_WAIT).await;

    configuration["sinks"]["hook"]["url"] = next.url().into();
    let begun = Instant::now();
    let reloaded = reload_with(&punctual, &configuration).await;
    assert_eq!(parts(&reloaded, "replaced"), ["sinks.hook", "routes.a"]);
    let arrived = next.wait_for(90, Duration::from_secs(5)).await;
    println!("reload: 90 messages behind a hanging endpoint reach the next one after {:?}", begun.elapsed());
    assert_eq!(ids(&arrived).len(), 90);
    let all = next.wait_for(100, Duration::from_secs(40)).await;
    assert_eq!(ids(&all).len(), 100, "the leases of the others have expired");
    let stats = client.drained("a", MAX_WAIT).await;
    assert_eq!(stats["dead"], 0);
    // The new sink is up, whatever the end of the former one was.
    let sink = client.sink("hook").await;
    assert_eq!(sink["breaker"], "closed", "{sink}");
    assert_eq!(client.metrics().await.sum("punctual_sink_up", &[]), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_changes_gives_back_what_waits_at_a_slow_endpoint_that_stays() {
    let _turn = heavy().await;
    let (redis, slow) = (RedisServer::start().await, Receiver::start());
    slow.behave(Behaviour::Delay(Duration::from_millis(300)));
    let mut configuration = base(&redis, &slow);
    configuration["sinks"]["hook"]["timeout"] = "10s".into();
    configuration["sinks"]["hook"]["max_connections"] = 10.into();
    configuration["shutdown_timeout"] = "1s".into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    let messages: Value = (0..100).map(|n| json!({ "id": format!("m{n}"), "payload": n })).collect();
    client.schedule("a", &messages.to_string()).await;
    slow.wait_for(10, MAX_WAIT).await;

    configuration["routes"]["a"]["retry"] = json!({ "max_attempts": 5 });
    let reloaded = reload_with(&punctual, &configuration).await;
    assert_eq!(parts(&reloaded, "replaced"), ["routes.a"]);
    // Well before the end of a lease, which is 30 s.
    client.drained("a", Duration::from_secs(15)).await;
    assert_eq!((slow.count(), ids(&slow.requests()).len()), (100, 100), "each once\n{}", punctual.log());
    assert!(!punctual.log().contains("did not end in time"), "{}", punctual.log());

    // A route that is removed delivers nothing further, either.
    client.schedule("a", &messages.to_string()).await;
    slow.wait_for(105, MAX_WAIT).await;
    configuration["routes"] = json!({ "b": { "sink": "hook" } });
    reload_with(&punctual, &configuration).await;
    sleep(Duration::from_secs(1)).await;
    let count = slow.count();
    sleep(Duration::from_secs(1)).await;
    assert!(slow.count() == count && count < 150, "{count}, then {}", slow.count());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outage_and_the_gauges_of_a_former_part_end_with_it() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut configuration = base(&redis, &receiver);
    configuration["routes"]["a"]["limits"] = json!({ "messages": 100 });
    let mut refusing = Receiver::start();
    configuration["sinks"]["hook"]["url"] = refusing.url().into();
    refusing.refuse();
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    client.schedule("a", r#"{"id":"m","payload":1}"#).await;
    let up = async || client.metrics().await.sum("punctual_sink_up", &["sink=\"hook\""]);
    eventually("the sink is down", MAX_WAIT, async || (up().await == 0).then_some(())).await;
    assert!(client.call("GET", "/metrics", "").await.text.contains("punctual_limit_used_ratio{"));

    configuration["sinks"]["hook"]["url"] = receiver.url().into();
    configuration["routes"]["a"].as_object_mut().unwrap().remove("limits");
    reload_with(&punctual, &configuration).await;
    receiver.wait_for(1, MAX_WAIT).await;
    assert_eq!(up().await, 1);
    let sink = client.sink("hook").await;
    assert_eq!((&sink["breaker"], &sink["last_error"]), (&json!("closed"), &Value::Null), "{sink}");
    eventually("the gauge has gone", MAX_WAIT, async || {
        let page = client.call("GET", "/metrics", "").await.text;
        (!page.contains("punctual_limit_used_ratio{")).then_some(())
    })
    .await;
    // Once a minute would come another line.
    let lines = punctual.log().matches("sink=\"hook\"").count();
    sleep(Duration::from_secs(rounds(1, 65))).await;
    assert_eq!(punctual.log().matches("sink=\"hook\"").count(), lines, "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_need_a_restart_are_named_and_stay() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut configuration = base(&redis, &receiver);
    configuration["routes"]["a"]["partitions"] = 2.into();
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    configuration["redis"]["key_prefix"] = "other".into();
    configuration["server"] = json!({ "max_payload": "2MiB" });
    configuration["max_sleep"] = "7s".into();
    configuration["routes"]["a"]["partitions"] = 4.into();
    configuration["routes"]["a"]["limits"] = json!({ "messages": 8 });
    for _ in 0..2 {
        let reloaded = reload_with(&punctual, &configuration).await;
        let restart: BTreeSet<String> = parts(&reloaded, "restart").into_iter().collect();
        let expected = ["redis", "server.max_payload", "max_sleep", "routes.a.partitions"];
        assert_eq!(restart, expected.map(str::to_owned).into(), "{reloaded}");
    }
    let metrics = client.metrics().await;
    assert_eq!(metrics.sum("punctual_config_restart_required", &[]), 1);
    let stats = client.stats("a").await;
    assert_eq!(stats["partitions"], 2, "it goes on as it was");
    let mut refused = 0;
    for n in 0..30 {
        let message = json!({ "id": format!("m{n}"), "delay": "1h", "payload": n }).to_string();
        refused += u64::from(client.call("POST", "/v1/routes/a/messages", &message).await.status == 429);
    }
    assert_eq!((&client.stats("a").await["pending"], refused), (&json!(8), 22), "the limit holds at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_while_redis_is_down_takes_effect_when_it_is_back() {
    let (mut redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut configuration = base(&redis, &receiver);
    let mut punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    redis.kill();
    configuration["routes"]["b"] = json!({ "sink": "hook" });
    let reloaded = reload_with(&punctual, &configuration).await;
    assert_eq!(parts(&reloaded, "added"), ["routes.b"]);
    redis.restart().await;
    eventually("it is accepted", MAX_WAIT, async || {
        let answer = client.call("POST", "/v1/routes/b/messages", r#"{"id":"m","payload":1}"#).await;
        matches!(answer.status, 200 | 201).then_some(())
    })
    .await;
    receiver.wait_for(1, MAX_WAIT).await;
    punctual.ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_while_it_stops_changes_nothing() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Delay(Duration::from_secs(1)));
    let mut configuration = base(&redis, &receiver);
    let mut punctual = Punctual::start(&configuration.to_string()).await;
    Client::of(&punctual).schedule("a", r#"{"payload":1}"#).await;
    receiver.wait_for(1, MAX_WAIT).await;
    kill_process(punctual.pid(), Signal::TERM).expect("it runs");
    configuration["routes"]["b"] = json!({ "sink": "hook" });
    write(&punctual, &configuration);
    kill_process(punctual.pid(), Signal::HUP).expect("it runs");
    assert_eq!(punctual.ended().await.code(), Some(0), "{}", punctual.log());
    assert!(!punctual.log().contains("again"), "{}", punctual.log());
}

/// Threads, open files and resident bytes of the process.
fn resources(punctual: &Punctual) -> (usize, usize, u64) {
    let process = format!("/proc/{}", punctual.pid().as_raw_nonzero());
    let status = fs::read_to_string(format!("{process}/status")).expect("it runs");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let resident: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    let count = |folder: &str| fs::read_dir(format!("{process}/{folder}")).expect("it runs").count();
    (count("task"), count("fd"), resident * 1024)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_reloads_leave_nothing_behind() {
    let _turn = heavy().await;
    let count = rounds(40, 110);
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut configuration = base(&redis, &receiver);
    configuration["routes"]["other"] = json!({ "sink": "hook", "partitions": 4 });
    configuration["sources"] = json!({ "set": { "type": "sorted_set", "key": "waiting", "route": "a" } });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    let mut before = None;
    for n in 0..count {
        configuration["sinks"]["hook"]["headers"] = json!({ "x-round": n.to_string() });
        configuration["sources"]["set"]["poll"] = format!("{}ms", 100 + n).into();
        let name = format!("r{n}");
        configuration["routes"] = json!({ "a": { "sink": "hook" }, "other": { "sink": "hook", "partitions": 4 } });
        configuration["routes"][if n % 2 == 0 { "even" } else { "odd" }] = json!({ "sink": "hook" });
        reload_with(&punctual, &configuration).await;
        client.schedule("a", &json!({ "id": name, "payload": n }).to_string()).await;
        if n == 9 {
            receiver.wait_for(10, MAX_WAIT).await;
            before = Some(resources(&punctual));
        }
    }
    let arrived = receiver.wait_for(count, MAX_WAIT).await;
    assert_eq!(ids(&arrived).len(), count);
    let before = before.expect("taken");
    let after = eventually("former parts have ended", MAX_WAIT, async || {
        let after = resources(&punctual);
        (after.1 <= before.1 + 3).then_some(after)
    })
    .await;
    println!("reload: threads, files, bytes before {before:?} and after {} reloads {after:?}", count - 10);
    assert!(after.0 <= before.0 + 2, "{before:?} {after:?}");
    assert!(after.2 <= before.2 + (8 << 20), "{before:?} {after:?}");
    let clients: String =
        redis::cmd("CLIENT").arg("LIST").query_async(&mut redis.connection().await).await.expect("it answers");
    assert!(clients.lines().count() < 20, "{clients}");
}
