//! Recurring schedules: over several instances, kills, outages, other files and changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{client::Client, eventually};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request, wall_clock},
    scale::{rounds, seconds},
};

pub const MAX_WAIT: Duration = Duration::from_secs(40);

pub fn configuration(redis: &RedisServer, receiver: &Receiver, schedules: &Value) -> Value {
    json!({
        "redis": { "url": redis.url() },
        "sinks": {
            "hook": { "type": "http", "url": receiver.url(), "timeout": "1s" },
            "list": { "type": "redis_list", "key": "done" },
        },
        "routes": {
            "hooks": {
                "sink": "hook", "lease": "2s", "partitions": 3,
                "retry": { "initial": "100ms", "max": "100ms", "max_attempts": 2 },
            },
            "listed": { "sink": "list" },
        },
        "schedules": schedules,
    })
}

/// The schedule and the time of an occurrence, by the id that its consumer sees.
fn occurrence(id: &str) -> (String, u64) {
    let (name, time) = id.split_once('@').unwrap_or_else(|| panic!("`{id}` is no occurrence"));
    let time: jiff::Timestamp = time.parse().expect("RFC 3339");
    (name.to_owned(), time.as_millisecond().try_into().expect("after 1970"))
}

/// The times of each schedule, in order of arrival.
pub fn times(requests: &[Request]) -> BTreeMap<String, Vec<u64>> {
    let mut times: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (name, time) in requests.iter().map(|request| occurrence(request.id())) {
        times.entry(name).or_default().push(time);
    }
    times
}

/// The times that are missing between the first and the last one.
pub fn holes(times: &[u64], every: u64) -> Vec<u64> {
    let seen: BTreeSet<u64> = times.iter().copied().collect();
    let (first, last) = (*seen.first().expect("some"), *seen.last().expect("some"));
    (first..last).step_by(usize::try_from(every).expect("small")).filter(|time| !seen.contains(time)).collect()
}

fn every_second(count: usize) -> Value {
    let one =
        |n| (format!("s{n}"), json!({ "route": "hooks", "every": "1s", "missed": { "all": 1000 }, "payload": n }));
    (0..count).map(one).collect::<serde_json::Map<_, _>>().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn four_instances_send_each_occurrence_once_and_miss_none_when_one_is_killed() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let schedules = rounds(10, 100);
    let text = configuration(&redis, &receiver, &every_second(schedules)).to_string();
    let mut instances = Vec::new();
    for _ in 0..4 {
        instances.push(Punctual::start(&text).await);
    }
    sleep(seconds(4, 600)).await;
    let quiet = times(&receiver.requests());
    assert_eq!(quiet.len(), schedules);
    for (name, times) in &quiet {
        let distinct: BTreeSet<_> = times.iter().collect();
        assert_eq!((distinct.len(), holes(times, 1000)), (times.len(), Vec::new()), "{name}: {times:?}");
    }
    let before: usize = quiet.values().map(Vec::len).sum();
    println!("quiet: {before} occurrences, none repeated");

    let (end, mut kills) = (Instant::now() + seconds(6, 600), 0);
    for n in 0.. {
        sleep(seconds(2, 10)).await;
        let killed: &mut Punctual = &mut instances[n % 4];
        killed.kill().await;
        killed.restart().await;
        kills += 1;
        if Instant::now() > end {
            break;
        }
    }
    // Messages that a killed instance had are sent again, under the same ids, when their leases have ended.
    let now = wall_clock();
    let all = eventually("all schedules are up to date", MAX_WAIT, async || {
        let all = times(&receiver.requests());
        all.values().all(|times| times.iter().any(|time| *time > now)).then_some(all)
    })
    .await;
    for (name, times) in &all {
        assert_eq!(holes(times, 1000), Vec::<u64>::new(), "{name}: {times:?}");
    }
    let (sent, distinct): (usize, usize) =
        (all.values().map(Vec::len).sum(), all.values().map(|times| times.iter().collect::<BTreeSet<_>>().len()).sum());
    println!("{kills} kills: {} occurrences, {} repeated", distinct - before, sent - distinct);
    let client = Client::of(&instances[0]);
    assert_eq!(client.stats("hooks").await["dead"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_while_occurrences_are_in_flight_stop_and_double_nothing() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let (one, other) = {
        let text = configuration(&redis, &receiver, &json!({})).to_string();
        (Punctual::start(&text).await, Punctual::start(&text).await)
    };
    receiver.behave(Behaviour::Delay(Duration::from_millis(300)));
    let clients = [Client::of(&one), Client::of(&other)];
    let path = "/v1/schedules/busy";
    let set = async |n: usize| {
        let cron = ["* * * * * *", "*/2 * * * * *", "1-59/2 * * * * *"][n % 3];
        let body = json!({ "route": "hooks", "cron": cron, "payload": n, "missed": { "all": 1000 } }).to_string();
        let answer = clients[n % 2].call("PUT", path, &body).await;
        assert!([200, 201].contains(&answer.status), "{}", answer.json);
    };
    for n in 0..rounds(150, 1000) {
        set(n).await;
        sleep(Duration::from_millis(20)).await;
    }
    set(0).await;
    let before = receiver.count();
    receiver.wait_for(before + 4, MAX_WAIT).await;
    let found = times(&receiver.requests());
    let distinct: BTreeSet<_> = found["busy"].iter().collect();
    assert_eq!(distinct.len(), found["busy"].len(), "an occurrence was sent twice: {found:?}");
    let last = receiver.requests().pop().expect("some");
    assert_eq!(&last.body[..], b"0", "the last definition holds");
    assert_eq!(
        clients[0].stats("hooks").await["pending"].as_u64().unwrap()
            + clients[0].stats("hooks").await["unack"].as_u64().unwrap(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sets_runs_pauses_and_deletes_a_schedule() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let schedules = json!({ "ours": { "route": "hooks", "cron": "@yearly", "payload": { "a": 1 } } });
    let punctual = Punctual::start(&configuration(&redis, &receiver, &schedules).to_string()).await;
    let client = Client::of(&punctual);
    let path = "/v1/schedules/theirs";
    let body = r#"{"route":"hooks","cron":"0 3 * * *","time_zone":"Europe/Berlin","payload":{"kind":"daily"},"headers":{"X-A":"b"}}"#;
    let created = client.call("PUT", path, body).await;
    assert_eq!(created.status, 201, "{}", created.json);
    assert_eq!(client.call("PUT", path, body).await.status, 200);
    let shown = client.call("GET", path, "").await.json;
    assert_eq!((&shown["words"], &shown["managed_by"]), (&"At 03:00".into(), &"api".into()), "{shown}");
    assert_eq!((&shown["payload"], &shown["headers"]["X-A"]), (&json!({ "kind": "daily" }), &"b".into()));
    assert_eq!(shown["following"].as_array().map(Vec::len), Some(5));
    let next = client.call("GET", "/v1/schedules/theirs/next?count=7", "").await.json;
    assert_eq!((next["next"].as_array().map(Vec::len), &next["next"][0]), (Some(7), &shown["next"]));

    // A run sends an occurrence of its own, and moves nothing.
    assert_eq!(client.call("POST", "/v1/schedules/theirs/run", "").await.status, 202);
    let request = receiver.wait_for(1, MAX_WAIT).await.remove(0);
    assert_eq!((occurrence(request.id()).0.as_str(), &request.body[..]), ("theirs", &br#"{"kind":"daily"}"#[..]));
    assert_eq!(request.header("x-a"), "b");
    assert_eq!(client.call("GET", path, "").await.json["next"], shown["next"]);

    for (call, paused) in [("pause", true), ("pause", true), ("resume", false)] {
        assert_eq!(client.call("POST", &format!("{path}/{call}"), "").await.status, 204);
        let now = client.call("GET", path, "").await.json;
        assert_eq!((&now["paused"], now["next"].is_null()), (&paused.into(), paused), "{now}");
        let message = client.call("GET", "/v1/routes/hooks/messages/theirs@", "").await.json;
        let waits_for = if paused { "schedule" } else { "due" };
        let never = (message["deliver_at"].is_null(), message["next_attempt_at"].is_null());
        assert_eq!((&message["waits_for"], never), (&waits_for.into(), (paused, paused)), "{message}");
        let listed = client.call("GET", "/v1/routes/hooks/messages", "").await.json;
        let one = listed["messages"].as_array().expect("a list").iter().find(|one| one["id"] == "theirs@");
        assert_eq!(one.expect("listed")["deliver_at"], message["deliver_at"], "{listed}");
    }
    assert_eq!(client.call("GET", path, "").await.json["next"], shown["next"]);
    // Clients cannot change the message of a schedule.
    for (method, rest) in [("DELETE", ""), ("PATCH", ""), ("POST", "/deliver")] {
        let body = if method == "PATCH" { r#"{"delay":"1s"}"# } else { "" };
        let refused = client.call(method, &format!("/v1/routes/hooks/messages/theirs@{rest}"), body).await;
        let detail = refused.json["detail"].as_str().unwrap_or_default();
        assert_eq!((refused.status, detail.contains("/v1/schedules/theirs")), (400, true), "{}", refused.json);
    }
    assert_eq!(client.call("GET", "/v1/routes/hooks/messages/none@", "").await.status, 404);
    let purged = client.call("POST", "/v1/routes/hooks/purge", r#"{"all":true}"#).await.json;
    assert_eq!(purged["count"], 0, "{purged}");
    assert_eq!(client.call("GET", path, "").await.json["next"], shown["next"]);

    for (method, path, body, status) in [
        ("PUT", "/v1/schedules/ours", body, 409),
        ("PUT", path, r#"{"route":"listed","cron":"0 3 * * *","payload":1}"#, 409),
        ("DELETE", "/v1/schedules/ours", "", 409),
        ("PUT", "/v1/schedules/a%20b", body, 400),
        ("GET", "/v1/schedules/none", "", 404),
        ("POST", "/v1/schedules/none/run", "", 404),
        ("GET", "/v1/schedules/theirs/next?count=101", "", 400),
        ("POST", "/v1/schedules/preview", r#"{"cron":"0 0 30 2 *"}"#, 422),
    ] {
        let answer = client.call(method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.json);
    }
    for (body, pointer) in [
        (r#"{"route":"hooks","payload":1,"cron":"* * * * *","time_zone":"Europe/Berlim"}"#, "/time_zone"),
        (r#"{"route":"hooks","payload":1,"cron":"0 0 30 2 *"}"#, "/cron"),
        (r#"{"route":"hooks","payload":1,"cron":"* * * * *","every":"1s"}"#, "/every"),
        (r#"{"route":"hooks","payload":1}"#, "/cron"),
        (r#"{"route":"hooks","payload":1,"every":"1m","jitter":"1m"}"#, "/jitter"),
        (
            r#"{"route":"hooks","payload":1,"every":"1m","starts_at":"2030-01-01T00:00:00Z","ends_at":"2029-01-01T00:00:00Z"}"#,
            "/ends_at",
        ),
        (r#"{"route":"none","payload":1,"every":"1m"}"#, "/route"),
        (r#"{"route":"hooks","payload":1,"every":"1m","missed":{"all":0}}"#, "/missed"),
    ] {
        let answer = client.call("PUT", "/v1/schedules/bad", body).await;
        assert_eq!((answer.status, &answer.json["errors"][0]["pointer"]), (422, &pointer.into()), "{}", answer.json);
    }
    assert_eq!(client.call("GET", "/v1/schedules/bad", "").await.status, 404, "nothing was changed");
    assert_eq!(client.call("DELETE", path, "").await.status, 204);
    assert_eq!(client.call("GET", path, "").await.status, 404);
    assert_eq!(client.stats("hooks").await["pending"], 1);
}

/// A rule that was set during retries of an occurrence of another rule begins at the time of the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_is_set_during_a_retry_has_no_occurrences_before() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Status(503));
    let mut text = configuration(&redis, &receiver, &json!({}));
    text["routes"]["hooks"]["retry"] = json!({ "initial": "1s", "max": "1s", "max_attempts": 1000 });
    let punctual = Punctual::start(&text.to_string()).await;
    let client = Client::of(&punctual);
    let body =
        |cron: &str| json!({ "route": "hooks", "cron": cron, "payload": "x", "missed": { "all": 1000 } }).to_string();
    let path = "/v1/schedules/busy";
    assert_eq!(client.call("PUT", path, &body("*/3 * * * * *")).await.status, 201);
    let first = receiver.wait_for(1, MAX_WAIT).await.remove(0);
    let (_, due) = occurrence(first.id());
    receiver.wait_for(5, MAX_WAIT).await;
    let changed = wall_clock();
    assert!(changed >= due + 3000, "an occurrence of the new rule is before the change");
    assert_eq!(client.call("PUT", path, &body("* * * * * *")).await.status, 200);
    receiver.behave(Behaviour::Status(200));
    let found = eventually("occurrences of the new rule", MAX_WAIT, async || {
        let found: BTreeSet<u64> = times(&receiver.requests())["busy"].iter().copied().collect();
        (found.len() >= 4).then_some(found)
    })
    .await;
    let later: Vec<u64> = found.into_iter().filter(|time| *time != due).collect();
    assert!(later[0] > changed - 1000, "{later:?} after {changed}");
    assert_eq!(holes(&later, 1000), Vec::<u64>::new(), "{later:?}");
    let page = client.metrics().await;
    assert_eq!(page.sum("punctual_schedule_runs_total", &["schedule=\"busy\"", "result=\"missed\""]), 0);
}

/// Two schedules that use the whole rate of their flow: what follows each occurrence is planned in between.
#[tokio::test(flavor = "multi_thread")]
async fn the_plan_of_a_schedule_takes_no_slot_of_the_rate() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let one = json!({ "route": "hooks", "every": "2s", "payload": "x", "flow": "f", "missed": { "all": 1000 } });
    let mut text = configuration(&redis, &receiver, &json!({ "a": one, "b": one }));
    text["routes"]["hooks"]["flow"] = json!({ "rate": "1/s", "burst": 1 });
    text["routes"]["hooks"]["partitions"] = 1.into();
    let punctual = Punctual::start(&text.to_string()).await;
    let client = Client::of(&punctual);
    let requests = receiver.wait_for(10, MAX_WAIT).await;
    let late: Vec<u64> = requests.iter().map(|one| one.arrived.saturating_sub(occurrence(one.id()).1)).collect();
    assert!(late.iter().all(|late| *late < 2500), "{late:?}");
    for (name, times) in times(&requests) {
        assert_eq!(holes(&times, 2000), Vec::<u64>::new(), "{name}");
        // It is planned at once, and not in the next slot.
        let planned = async || client.call("GET", &format!("/v1/schedules/{name}"), "").await.json["next"].is_string();
        eventually("the next one", Duration::from_millis(900), async || planned().await.then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_occurrence_is_a_dead_letter_of_its_own_and_blocks_nothing() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Status(500));
    let schedules = json!({ "sour": { "route": "hooks", "every": "1s", "payload": "x" } });
    let punctual = Punctual::start(&configuration(&redis, &receiver, &schedules).to_string()).await;
    let client = Client::of(&punctual);
    let dead = eventually("two dead letters", MAX_WAIT, async || {
        let dead = client.call("GET", "/v1/routes/hooks/messages?state=dead", "").await.json;
        let dead = dead["messages"].as_array().expect("a list").clone();
        (dead.len() >= 2).then_some(dead)
    })
    .await;
    receiver.behave(Behaviour::Status(200));
    let id = dead[0]["id"].as_str().expect("an id");
    let (name, millis) = id.split_once('~').expect("a dead occurrence");
    assert_eq!((name, dead[0]["attempts"].as_u64()), ("sour", Some(2)), "{}", dead[0]);
    let before = receiver.requests();
    let shown = before.iter().map(Request::id).find(|id| occurrence(id).1.to_string() == millis).expect("it was sent");
    let redriven = client.call("POST", "/v1/routes/hooks/dead/redrive", &json!({ "ids": [id] }).to_string()).await;
    assert_eq!(redriven.json["count"], 1, "{}", redriven.json);
    eventually("the redriven one", MAX_WAIT, async || {
        receiver.requests_behind(before.len()).iter().any(|request| request.id() == shown).then_some(())
    })
    .await;
    // The next ones come as well.
    let count = receiver.count();
    receiver.wait_for(count + 2, MAX_WAIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_moves_its_schedules_while_their_occurrences_are_in_flight() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Delay(Duration::from_millis(400)));
    let file = |partitions: u16| {
        let mut text = configuration(&redis, &receiver, &every_second(6));
        text["routes"]["hooks"]["partitions"] = partitions.into();
        text.to_string()
    };
    let mut before = Punctual::start(&file(1)).await;
    receiver.wait_for(9, MAX_WAIT).await;
    // Both run for a moment: what is in flight at the old one stays in its partition until it ends.
    let after = Punctual::start(&file(4)).await;
    let client = Client::of(&after);
    receiver.wait_for(receiver.count() + 6, MAX_WAIT).await;
    before.terminate().await;
    eventually("the move", MAX_WAIT, async || client.stats("hooks").await["moving"].is_null().then_some(())).await;
    let count = receiver.count();
    receiver.wait_for(count + 12, MAX_WAIT).await;
    let found = times(&receiver.requests());
    assert_eq!(found.len(), 6);
    for (name, times) in &found {
        let distinct: BTreeSet<_> = times.iter().collect();
        assert_eq!((distinct.len(), holes(times, 1000)), (times.len(), Vec::new()), "{name}: {times:?}");
    }
    let stats = client.stats("hooks").await;
    assert_eq!(stats["pending"].as_u64().unwrap() + stats["unack"].as_u64().unwrap(), 6, "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_beyond_a_limit_of_the_route_is_refused() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let schedules = json!({ "ours": { "route": "listed", "cron": "@yearly", "payload": "x" } });
    let mut text = configuration(&redis, &receiver, &schedules);
    text["routes"]["listed"]["limits"] = json!({ "messages": 1 });
    let punctual = Punctual::start(&text.to_string()).await;
    let client = Client::of(&punctual);
    eventually("the schedule", MAX_WAIT, async || (client.stats("listed").await["pending"] == 1).then_some(())).await;
    let refused = client.call("POST", "/v1/schedules/ours/run", "").await;
    assert_eq!(refused.status, 429, "{}", refused.json);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_gets_each_occurrence_once() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let schedules = json!({ "tick": { "route": "listed", "every": "1s", "payload": "x", "missed": { "all": 1000 } } });
    let text = configuration(&redis, &receiver, &schedules).to_string();
    let (_one, _other) = (Punctual::start(&text).await, Punctual::start(&text).await);
    let mut connection = redis.connection().await;
    let began = wall_clock();
    eventually("four", MAX_WAIT, async || {
        let length: u64 = redis::cmd("LLEN").arg("done").query_async(&mut connection.clone()).await.expect("a list");
        (length >= 4).then_some(())
    })
    .await;
    let length: u64 = redis::cmd("LLEN").arg("done").query_async(&mut connection).await.expect("a list");
    assert!(length <= (wall_clock() - began) / 1000 + 2, "{length}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_owns_its_schedules_over_restarts_older_files_and_an_emptied_redis() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let file = |revision: u64, names: &[(&str, &str)]| {
        let one = |(name, every): &(&str, &str)| {
            (name.to_string(), json!({ "route": "hooks", "every": every, "payload": "x" }))
        };
        let mut text =
            configuration(&redis, &receiver, &names.iter().map(one).collect::<serde_json::Map<_, _>>().into());
        text["schedules_revision"] = revision.into();
        text.to_string()
    };
    let shown = async |punctual: &Punctual| -> Vec<(String, String)> {
        let listed = Client::of(punctual).call("GET", "/v1/schedules", "").await.json;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        listed["schedules"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| (text(&one["name"]), text(&one["every"])))
            .collect()
    };
    let are = async |punctual: &Punctual, expected: &[(&str, &str)]| {
        let expected: Vec<_> = expected.iter().map(|(name, every)| (name.to_string(), every.to_string())).collect();
        eventually("the schedules", MAX_WAIT, async || (shown(punctual).await == expected).then_some(())).await;
    };
    let mut old = Punctual::start(&file(1, &[("a", "1h"), ("b", "1h"), ("c", "1h")])).await;
    are(&old, &[("a", "1h"), ("b", "1h"), ("c", "1h")]).await;
    // A rolling deploy: both run, and the older one restarts in between.
    let new = Punctual::start(&file(2, &[("a", "1h"), ("b", "2h")])).await;
    are(&new, &[("a", "1h"), ("b", "2h")]).await;
    old.terminate().await;
    old.restart().await;
    // It sets `c`, and does not set the others.
    are(&new, &[("a", "1h"), ("b", "2h"), ("c", "1h")]).await;
    // Schedules that only the older file has are deleted when the newer file is applied again: in its interval, when a
    // route is registered again, or at a start. The older one does not set them again.
    let apply = async |punctual: &Punctual, message: &str| {
        let mut connection = redis.connection().await;
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("{punctual:hooks:*}:route").query_async(&mut connection).await.expect("keys");
        let () = redis::cmd("DEL").arg(keys).query_async(&mut connection).await.expect("deleted");
        Client::of(punctual).schedule("hooks", &json!({ "payload": message }).to_string()).await;
    };
    apply(&new, "the newer file is applied").await;
    are(&new, &[("a", "1h"), ("b", "2h")]).await;
    let reads =
        async || Client::of(&old).metrics().await.sum("punctual_redis_script_seconds_count", &["script=\"schedules\""]);
    let before = reads().await;
    apply(&old, "the older file is applied").await;
    // It reads the four partitions before it decides.
    eventually("it read all schedules", MAX_WAIT, async || (reads().await >= before + 4).then_some(())).await;
    are(&new, &[("a", "1h"), ("b", "2h")]).await;
    old.terminate().await;

    let () = redis::cmd("FLUSHALL").query_async(&mut redis.connection().await).await.expect("emptied");
    Client::of(&new).schedule("hooks", r#"{"payload":"a call finds the loss"}"#).await;
    are(&new, &[("a", "1h"), ("b", "2h")]).await;
}
