//! Schedules while their Redis fails over: the promoted replica can lack the last changes, such as the end of an occurrence.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::json;
use tokio::time::sleep;

use super::load::{self, LAG};
use crate::{
    program::{client::Client, eventually, heavy},
    support::{
        noise,
        punctual::Punctual,
        receiver::{Receiver, wall_clock},
        scale,
        sentinels::WatchedRedis,
    },
};

const MAX_WAIT: Duration = Duration::from_mins(1);
const SCHEDULES: usize = 20;
const EVERY: u64 = 1000;
/// Bytes that the buffers of a connection do not take.
const BULK: usize = 32 * 1024 * 1024;

/// The times of each schedule, in order of arrival.
fn times(receiver: &Receiver) -> BTreeMap<String, Vec<u64>> {
    let mut times: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for request in receiver.requests() {
        let (name, time) = request.id().split_once('@').expect("an occurrence");
        let time: jiff::Timestamp = time.parse().expect("RFC 3339");
        times.entry(name.to_owned()).or_default().push(time.as_millisecond().try_into().expect("after 1970"));
    }
    times
}

/// Waits until each schedule sent an occurrence that is after now.
async fn goes_on(receiver: &Receiver) {
    let now = wall_clock();
    eventually("all schedules go on", MAX_WAIT, async || {
        let times = times(receiver);
        let is_after = |times: &Vec<u64>| times.iter().any(|time| *time > now);
        (times.len() == SCHEDULES && times.values().all(is_after)).then_some(())
    })
    .await;
}

/// Stops the replica while occurrences end. The data before them fill the buffers between both.
async fn lag(redis: &WatchedRedis, master: usize) {
    redis.servers[1 - master].freeze();
    let mut connection = redis.servers[master].connection().await;
    redis::cmd("SET").arg("bulk").arg(noise(BULK)).exec_async(&mut connection).await.expect("stored");
    sleep(LAG).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn schedules_have_no_hole_after_a_fail_over_and_repeat_only_the_last_ids() {
    let _turn = heavy().await;
    let (mut redis, receiver) = (WatchedRedis::start(1).await, Receiver::start());
    let rule = json!({ "route": "web", "every": "1s", "missed": { "all": 1000 }, "payload": "x" });
    let schedules: BTreeMap<String, _> = (0..SCHEDULES).map(|n| (format!("s{n}"), &rule)).collect();
    let text = format!(
        "{}schedules: {}\n",
        load::configuration(&redis.setting(""), ", partitions: 3", &receiver),
        json!(schedules)
    );
    let (one, _other) = (Punctual::start(&text).await, Punctual::start(&text).await);
    goes_on(&receiver).await;
    let mut faults: Vec<u64> = Vec::new();
    for round in 0..scale::rounds(2, 6) {
        let old = redis.master().await;
        faults.push(wall_clock());
        if round % 2 == 0 {
            lag(&redis, old).await;
            redis.servers[old].kill();
            redis.servers[1 - old].resume();
        } else {
            redis.fail_over().await;
        }
        redis.switched(old).await;
        goes_on(&receiver).await;
        if round % 2 == 0 {
            redis.servers[old].restart().await;
        }
        redis.servers[old].replicates().await;
        goes_on(&receiver).await;
    }
    let mut repeated = BTreeSet::new();
    for (name, times) in times(&receiver) {
        let seen: BTreeSet<u64> = times.iter().copied().collect();
        let (first, last) = (*seen.first().expect("some"), *seen.last().expect("some"));
        let all: Vec<u64> = (first..=last).step_by(usize::try_from(EVERY).expect("small")).collect();
        assert_eq!(Vec::from_iter(seen), all, "{name} has a hole");
        let (mut latest, mut count) = (0, 0);
        for time in times {
            if time <= latest {
                repeated.insert(time);
                count += 1;
            }
            latest = latest.max(time);
        }
        println!("{name}: {count} repeated in {} fail-overs", faults.len());
    }
    assert!(!repeated.is_empty(), "the replica did not lag");
    // An occurrence is repeated if the replica lacked its end: it was sent shortly before or during a fail-over.
    let is_near = |time: &u64| faults.iter().any(|at| time.abs_diff(*at) < 10_000);
    assert!(repeated.iter().all(is_near), "{repeated:?} at {faults:?}");
    assert_eq!(Client::of(&one).stats("web").await["dead"], 0);
}
