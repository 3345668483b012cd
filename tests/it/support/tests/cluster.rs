use std::time::Duration;

use redis::{AsyncCommands, RedisResult};
use tokio::time::Instant;

use crate::support::cluster::{ClusterRedis, FailOver};

/// Primary `n` has the key of this number.
const KEYS: [&str; 3] = ["b", "c", "a"];

async fn get(redis: &ClusterRedis, place: usize, key: &str) -> RedisResult<Option<String>> {
    redis.server(place).connection().await.get(key).await
}

/// Also on the replica.
async fn set(redis: &ClusterRedis, place: usize, key: &str, value: &str) {
    let mut link = redis.server(place).connection().await;
    link.set::<_, _, ()>(key, value).await.expect("written");
    let replicas: usize =
        redis::cmd("WAIT").arg(1).arg(5000).query_async(&mut link).await.expect("an answer of the primary");
    assert_eq!(replicas, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_a_primary_that_is_killed_or_frozen_go_to_its_replica() {
    let started = Instant::now();
    let mut redis = ClusterRedis::start().await;
    println!("cluster: started within {:.1?}", started.elapsed());
    assert_eq!(redis.primaries().await, [0, 1, 2]);
    for (place, key) in KEYS.into_iter().enumerate() {
        assert_eq!(redis.primary_of(redis.slot(key).await).await, place);
        set(&redis, place, key, "before").await;
    }
    let slots = [redis.slot(KEYS[0]).await, redis.slot(KEYS[1]).await];
    redis.kill(0);
    assert_eq!(redis.switched(slots[0], 0).await, 3);
    redis.restart(0).await;
    redis.is_well().await;
    redis.freeze(1);
    assert_eq!(redis.switched(slots[1], 1).await, 4);
    set(&redis, 3, KEYS[0], "after").await;
    redis.resume(1);
    redis.is_well().await;
    assert_eq!(redis.primaries().await, [2, 3, 4]);
    assert_eq!(redis.replica_of(3).await, 0);
    assert_eq!(redis.replica_of(4).await, 1);
    assert_eq!(get(&redis, 3, KEYS[0]).await.expect("its slot").as_deref(), Some("after"));
    assert_eq!(get(&redis, 4, KEYS[1]).await.expect("its slot").as_deref(), Some("before"));
    let moved = get(&redis, 1, KEYS[1]).await.expect_err("a replica");
    assert_eq!(moved.code(), Some("MOVED"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_over_when_an_operator_asks() {
    let redis = ClusterRedis::start().await;
    let slot = redis.slot(KEYS[2]).await;
    set(&redis, 2, KEYS[2], "before").await;
    redis.fail_over(5, FailOver::Agreed).await;
    let asked = Instant::now();
    assert_eq!(redis.switched(slot, 2).await, 5);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    redis.is_well().await;
    assert_eq!(redis.replica_of(5).await, 2);
    redis.fail_over(2, FailOver::Forced).await;
    assert_eq!(redis.switched(slot, 5).await, 2);
    assert_eq!(get(&redis, 2, KEYS[2]).await.expect("its slot").as_deref(), Some("before"));
    assert_eq!(redis.promoted_has(2, &["{a}".to_owned()]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_with_their_keys_also_to_a_primary_that_is_added() {
    let mut redis = ClusterRedis::start().await;
    let slot = redis.slot(KEYS[1]).await;
    set(&redis, 1, KEYS[1], "before").await;
    redis.move_slots(slot - 5..=slot + 5, 2).await;
    assert_eq!(redis.primary_of(slot).await, 2);
    set(&redis, 2, KEYS[1], "elsewhere").await;
    redis.move_slots(slot - 5..=slot + 5, 1).await;
    assert_eq!(redis.primary_of(slot).await, 1);
    assert_eq!(get(&redis, 1, KEYS[1]).await.expect("its slot").as_deref(), Some("elsewhere"));

    let added = redis.add_primary().await;
    redis.move_slots(slot..=slot + 100, added).await;
    assert_eq!(redis.primaries().await, [0, 1, 2, added]);
    set(&redis, added, KEYS[1], "added").await;
    redis.move_slots(slot..=slot + 100, 1).await;
    let removed = redis.remove_added().await;
    assert_eq!(redis.primaries().await, [0, 1, 2]);
    let down = removed[0].connection().await.get::<_, ()>(KEYS[1]).await.expect_err("it has no slots");
    assert_eq!(down.code(), Some("CLUSTERDOWN"));
    drop(removed);
    redis.is_well().await;
    assert_eq!(get(&redis, 1, KEYS[1]).await.expect("its slot").as_deref(), Some("added"));
}
