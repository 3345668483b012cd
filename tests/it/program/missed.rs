//! Occurrences that were missed: nothing ran, or their sink was down.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    client::Client,
    eventually,
    schedules::{MAX_WAIT, configuration, holes, times},
};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Receiver, wall_clock},
};

const HOUR: u64 = 3_600_000;

/// Moves the schedules of a route as far into the past as an outage would.
async fn pass(redis: &RedisServer, millis: u64) {
    let script = redis::Script::new(
        r"for _, key in ipairs(redis.call('KEYS', '{punctual:hooks:*}:pending')) do
          local messages = string.gsub(key, 'pending$', 'messages')
          for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
            redis.call('ZINCRBY', key, -ARGV[1], id)
            local body = redis.call('HGET', messages, id)
            local due, planned = struct.unpack('>I8I8', body, 2)
            local times = struct.pack('>I8I8', due - ARGV[1], planned - ARGV[1])
            redis.call('HSET', messages, id, string.sub(body, 1, 1) .. times .. string.sub(body, 18))
          end
        end",
    );
    let () = script.arg(millis).invoke_async(&mut redis.connection().await).await.expect("it is moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_hour_without_instances_missed_occurrences_are_skipped_collapsed_or_caught_up() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    // The next occurrence is not in the time of this test.
    let starts_at = jiff::Timestamp::from_millisecond(i64::try_from(wall_clock() - 2 * HOUR - 12_000).expect("a time"));
    let starts_at = starts_at.expect("a time").to_string();
    let one = |missed: Value| json!({ "route": "hooks", "every": "1m", "starts_at": starts_at, "missed": missed, "payload": "x" });
    let schedules = json!({ "skip": one("skip".into()), "last": one("last".into()), "all": one(json!({ "all": 10 })) });
    let mut punctual = Punctual::start(&configuration(&redis, &receiver, &schedules).to_string()).await;
    let client = Client::of(&punctual);
    eventually("three schedules", MAX_WAIT, async || {
        let listed = client.call("GET", "/v1/schedules", "").await.json;
        (listed["schedules"].as_array().map(Vec::len) == Some(3)).then_some(())
    })
    .await;
    punctual.terminate().await;
    pass(&redis, HOUR).await;
    punctual.restart().await;
    // The occurrences that are left are ahead.
    let now = jiff::Timestamp::from_millisecond(i64::try_from(wall_clock()).expect("a time")).expect("a time");
    eventually("all were caught up", MAX_WAIT, async || {
        let listed = client.call("GET", "/v1/schedules", "").await.json;
        let next = |one: &Value| one["next"].as_str().and_then(|next| next.parse::<jiff::Timestamp>().ok());
        let mut all = listed["schedules"].as_array().expect("a list").iter();
        all.all(|one| next(one).is_some_and(|next| next > now) && one["in_flight"] == false).then_some(())
    })
    .await;
    let found = times(&receiver.requests());
    let counts: BTreeMap<_, _> = found.iter().map(|(name, times)| (name.as_str(), times.len())).collect();
    assert_eq!(counts, [("all", 10), ("last", 1)].into(), "{found:?}");
    assert!(found["all"].is_sorted() && holes(&found["all"], 60_000).is_empty());
    assert_eq!(found["all"].last(), found["last"].last());
    let page = client.metrics().await;
    let missed =
        |name: &str| page.sum("punctual_schedule_runs_total", &[&format!("schedule=\"{name}\""), "result=\"missed\""]);
    assert_eq!(["skip", "last", "all"].map(missed), [60, 59, 50]);
    let skip = client.call("GET", "/v1/schedules/skip", "").await.json;
    assert_eq!((&skip["last"]["result"], &skip["last"]["count"]), (&"missed".into(), &60.into()), "{skip}");
    assert!(skip["next"].is_string(), "a schedule never stops by itself: {skip}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_occurrence_without_a_reply_gives_way_to_a_later_one_while_its_sink_is_down() {
    let (redis, mut receiver) = (RedisServer::start().await, Receiver::start());
    receiver.refuse();
    let one = |missed: Value| json!({ "route": "hooks", "every": "1s", "payload": "x", "missed": missed });
    let schedules = json!({ "last": one("last".into()), "all": one(json!({ "all": 1000 })) });
    let mut text = configuration(&redis, &receiver, &schedules);
    text["routes"]["hooks"]["retry"]["max_attempts"] = 1000.into();
    let punctual = Punctual::start(&text.to_string()).await;
    let client = Client::of(&punctual);
    // While the sink is down, one probe a second: the time of the next occurrences has passed.
    eventually("attempts without a reply", MAX_WAIT, async || {
        let attempts = ["sink=\"hook\"", "outcome=\"unavailable\""];
        (client.metrics().await.sum("punctual_sink_attempts_total", &attempts) >= 4).then_some(())
    })
    .await;
    receiver.listen();
    let found = eventually("both schedules are up to date", MAX_WAIT, async || {
        let (found, now) = (times(&receiver.requests()), wall_clock());
        let is_current = |times: &Vec<u64>| times.last().is_some_and(|last| *last + 1500 > now);
        (found.len() == 2 && found.values().all(is_current)).then_some(found)
    })
    .await;
    assert!(found["last"][0] > found["all"][0], "the first one was left out: {found:?}");
    assert_eq!(holes(&found["all"], 1000), Vec::<u64>::new());
    let page = client.metrics().await;
    let missed =
        |name: &str| page.sum("punctual_schedule_runs_total", &[&format!("schedule=\"{name}\""), "result=\"missed\""]);
    assert!(missed("last") >= 1 && missed("all") == 0, "{} and {}", missed("last"), missed("all"));
}
