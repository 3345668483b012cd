use std::{collections::BTreeMap, time::Duration};

use redis::AsyncCommands;
use serde_json::json;

use super::{client::Client, eventually};
use crate::support::{RedisServer, proxy::Proxy, punctual::Punctual, receiver::wall_clock};

/// Due while they are moved, one a millisecond.
const DUE: u64 = 6000;
/// Due in an hour: dead weight.
const LATER: u64 = 20_000;
/// Scheduled while they are moved, in arrays of `ARRAY`.
const MORE: u64 = 2000;
const ARRAY: u64 = 100;
const MAX_WAIT: Duration = Duration::from_mins(1);

fn configuration(redis: &RedisServer, partitions: u16) -> String {
    configuration_at(&redis.url(), partitions)
}

fn configuration_at(url: &str, partitions: u16) -> String {
    format!(
        "redis: {{ url: '{url}' }}\nsinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\n\
         routes: {{ web: {{ sink: jobs, partitions: {partitions} }} }}\n"
    )
}

async fn delivered(redis: &RedisServer, count: u64) {
    eventually("they are delivered", MAX_WAIT, async || {
        let length: u64 = redis.connection().await.llen("jobs").await.expect("a list");
        (length == count).then_some(())
    })
    .await;
}

/// Messages `prefix` and a number; the payload is the due time.
fn messages(prefix: &str, numbers: std::ops::Range<u64>, due: impl Fn(u64) -> u64) -> String {
    let message = |n: u64| json!({ "id": format!("{prefix}{n}"), "deliver_at": due(n), "payload": format!("{prefix}{n} {}", due(n)) });
    serde_json::Value::from(numbers.map(message).collect::<Vec<_>>()).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_route_gets_more_partitions_and_nothing_is_lost_early_or_doubled() {
    let redis = RedisServer::start().await;
    let mut old = Punctual::start(&configuration(&redis, 1)).await;
    let client = Client::of(&old);
    let begun = wall_clock();
    for first in (0..LATER).step_by(1000) {
        client.schedule("web", &messages("later", first..first + 1000, |n| begun + 3_600_000 + n)).await;
    }
    let due = wall_clock() + 2000;
    for first in (0..DUE).step_by(1000) {
        client.schedule("web", &messages("due", first..first + 1000, |n| due + n)).await;
    }
    let mut reader = redis.connection().await;
    let reading = tokio::spawn(async move {
        let mut times: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
        loop {
            reader.set_response_timeout(MAX_WAIT);
            let (_, text): (String, String) = reader.blpop("jobs", 0.0).await.expect("an element");
            if text == "end" {
                return times;
            }
            let (id, due) = text.split_once(' ').expect("two parts");
            times.entry(id.to_owned()).or_default().push((due.parse().expect("a time"), wall_clock()));
        }
    });

    let mut new = Punctual::start(&configuration(&redis, 4)).await;
    let left = eventually("some are moved, and not all", MAX_WAIT, async || {
        let left: u64 = redis.connection().await.zcard("{punctual:web:0/1}:pending").await.expect("a number");
        (left < LATER).then_some(left)
    })
    .await;
    new.kill().await;
    println!("repartition: killed when {left} were left");
    new.restart().await;
    let refused = Client::of(&old).try_post("web", messages("none", 0..1, |_| due)).await;
    assert_eq!(refused, Some(503), "the former number of partitions");
    let client = Client::of(&new);
    let posted = async {
        for first in (0..MORE).step_by(usize::try_from(ARRAY).expect("small")) {
            client.schedule("web", &messages("more", first..first + ARRAY, |n| due + n)).await;
            // An id that exists stays one message.
            client.schedule("web", &messages("later", first..first + 1, |n| begun + 3_600_000 + n)).await;
        }
    };
    let (followed, ()) = tokio::join!(new.command(&["repartition", "web", "4"]), posted);
    assert_eq!(followed.code, Some(0), "{followed:?}");
    old.terminate().await;
    eventually("all that is due is delivered", MAX_WAIT, async || {
        let stats = client.stats("web").await;
        (stats["pending"] == LATER && stats["unack"] == 0).then_some(())
    })
    .await;
    let () = redis.connection().await.rpush("jobs", "end").await.expect("pushed");
    let times = reading.await.expect("no panic");
    assert_eq!(times.len() as u64, DUE + MORE, "each arrives");
    let mut late = Vec::new();
    for (id, times) in &times {
        assert_eq!(times.len(), 1, "{id} arrived {} times", times.len());
        let (due, at) = times[0];
        assert!(at >= due, "{id} was {} ms early", due - at);
        late.push(at - due);
    }
    late.sort_unstable();
    println!("repartition: late p50 {} ms, most {} ms", late[late.len() / 2], late[late.len() - 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_from_before_the_change_is_moved_again_without_a_restart() {
    let (redis, replica) = (RedisServer::start().await, RedisServer::start().await);
    let proxy = Proxy::start(redis.port());
    let mut old = Punctual::start(&configuration_at(&proxy.redis_url(), 1)).await;
    Client::of(&old).schedule("web", &messages("kept", 0..20, |_| wall_clock() + 3_600_000)).await;
    let mut follows = redis::cmd("REPLICAOF");
    let port = redis.port().to_string();
    follows.arg("127.0.0.1").arg(port).exec_async(&mut replica.connection().await).await.expect("a replica");
    replica.replicates().await;
    // From now on it is a snapshot.
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut replica.connection().await).await.expect("a master");
    old.terminate().await;
    let new = Punctual::start(&configuration_at(&proxy.redis_url(), 4)).await;
    let followed = new.command(&["repartition", "web", "4"]).await;
    assert_eq!(followed.code, Some(0), "{followed:?}");

    proxy.lead_to(replica.port());
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).exec_async(&mut redis.connection().await).await.expect("cut");
    let client = Client::of(&new);
    eventually("it is ready again", MAX_WAIT, async || (client.readiness().await.status == 200).then_some(())).await;
    for n in 0..20 {
        let answer = client.call("POST", &format!("/v1/routes/web/messages/kept{n}/deliver"), "").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    delivered(&replica, 20).await;
    let followed = new.command(&["repartition", "web", "4"]).await;
    assert_eq!(followed.code, Some(0), "{followed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_with_a_replaced_number_ends_and_moves_nothing_until_it_is_allowed() {
    let redis = RedisServer::start().await;
    let mut others =
        [Punctual::start(&configuration(&redis, 1)).await, Punctual::start(&configuration(&redis, 1)).await];
    Client::of(&others[0]).schedule("web", &messages("kept", 0..20, |_| wall_clock() + 3_600_000)).await;
    let mut new = Punctual::start(&configuration(&redis, 4)).await;
    let client = Client::of(&new);
    let moved = new.command(&["repartition", "web", "4"]).await;
    assert_eq!(moved.code, Some(0), "{moved:?}");

    others[0].terminate().await;
    let mut old = Punctual::spawn(&configuration(&redis, 1), &[]);
    let ended = old.ended().await;
    assert!(ended.code().is_some_and(|code| code != 0), "{ended}");
    let log = old.log();
    assert!(log.contains("route `web` has 4 partitions, which replaced the 1 of this configuration"), "{log}");
    assert!(log.contains("punctual repartition web 1"), "{log}");
    others[1].terminate().await;
    client.schedule("web", &messages("more", 0..20, |_| wall_clock() + 3_600_000)).await;

    let allowed = new.command(&["repartition", "web", "1"]).await;
    assert_eq!(allowed.code, Some(0), "{allowed:?}");
    assert!(allowed.out.contains("may be moved to 1"), "{allowed:?}");
    client.schedule("web", &messages("last", 0..20, |_| wall_clock() + 3_600_000)).await;
    let back = Punctual::start(&configuration(&redis, 1)).await;
    let moved = back.command(&["repartition", "web", "1"]).await;
    assert_eq!(moved.code, Some(0), "{moved:?}");
    assert_eq!(client.readiness().await.status, 503);
    assert_eq!(Client::of(&back).stats("web").await["pending"], 60);
    new.terminate().await;
    let mut new = Punctual::spawn(&configuration(&redis, 4), &[]);
    assert!(new.ended().await.code().is_some_and(|code| code != 0), "{}", new.log());
}
