//! Messages that move to another number of partitions.

use super::*;
use crate::log_lines::LogLines;

fn with(partitions: u16) -> RouteSettings {
    RouteSettings { partitions, ..route() }
}

/// Due in a minute.
fn later(name: &str) -> NewMessage {
    NewMessage { due: Due::After(60_000), ..message(name) }
}

impl Simulated {
    /// The store of another instance, which knows nothing yet.
    fn instance(&self, partitions: u16) -> RedisStore {
        RedisStore::new(Arc::new(self.connection()), simulated::PREFIX, [with(partitions)])
    }

    /// Such a store, registered.
    async fn registered(&self, partitions: u16) -> RedisStore {
        let store = self.instance(partitions);
        store.register().await.unwrap();
        store
    }
}

async fn move_all(store: &RedisStore) {
    while !store.move_some("r").await.unwrap().is_done {}
}

/// Names of messages that belong to the same partition of two.
fn neighbours(count: usize) -> Vec<String> {
    (0..).map(|n: u32| n.to_string()).filter(|name| id(name).partition(2) == 0).take(count).collect()
}

fn first_of_two() -> Partition {
    Partition { route: "r".into(), index: 0, count: 2 }
}

#[tokio::test(start_paused = true)]
async fn a_store_of_other_settings_knows_of_the_move_of_its_number() {
    let redis = Simulated::start([route()]).await;
    redis.store.schedule(&partition(), &[later("a")]).await.unwrap();
    let moving = redis.registered(3).await;
    assert_eq!(moving.former_partitions("r"), [partition()]);
    let same = moving.serving([RouteSettings { max_payload: 50, ..with(3) }]);
    assert_eq!(same.former_partitions("r"), [partition()]);
    assert!(moving.serving([with(2)]).former_partitions("r").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_missed_two_moves_registers_again() {
    let redis = Simulated::start([with(2)]).await;
    redis.store.schedule(&Partition { count: 2, ..partition() }.among(2, &id("a")), &[later("a")]).await.unwrap();
    let (three, slow) = (redis.registered(3).await, redis.registered(3).await);
    assert_eq!(slow.former_partitions("r").len(), 2);
    move_all(&three).await;
    let one = redis.registered(1).await;
    move_all(&one).await;
    assert!(one.choose_partitions("r", 3).await.unwrap());
    redis.registered(3).await;
    // The number of partitions is as before, and another one is the former.
    assert_eq!(slow.is_registered().await, Ok(false));
    slow.register().await.unwrap();
    assert_eq!((slow.former_partitions("r"), slow.is_registered().await), (vec![partition()], Ok(true)));
}

#[tokio::test(start_paused = true)]
async fn another_number_of_partitions_is_logged_with_both_numbers() {
    let redis = Simulated::start([route()]).await;
    let (log, _collecting) = LogLines::collect();
    redis.registered(2).await;
    let lines = log.take();
    assert!(
        matches!(&lines[..], [line] if line.contains("of an empty route was changed") && line.contains("partitions=2"))
    );
    redis.registered(2).await;
    assert_eq!(log.take(), [""; 0]);
    redis.instance(2).schedule(&first_of_two(), &[later(&neighbours(1)[0])]).await.unwrap();
    redis.registered(3).await;
    let lines = log.take();
    assert!(
        matches!(&lines[..], [line] if line.contains("moved to another number") && line.contains("from=2 to=3")),
        "{lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_live_in_both_partitions_stays_in_both_and_does_not_end_the_move() {
    let redis = Simulated::start([route()]).await;
    redis.store.schedule(&partition(), &[later("a")]).await.unwrap();
    let moving = redis.registered(2).await;
    let own = partition().among(2, &id("a"));
    let key = |name: &str| format!("{{p:r:{}/2}}:{name}", own.index);
    redis.execute(&["ZADD", &key("pending"), "1", "a"]);
    redis.execute(&["HSET", &key("messages"), "a", "?"]);
    let calls = redis.calls();
    let moved = moving.move_some("r").await.unwrap();
    assert_eq!(moved, Moved { count: 0, conflicts: 1, is_done: false });
    assert_eq!(redis.calls() - calls, 1, "no try to end the move");
    assert_eq!(moving.carry(&partition(), &[id("a")]).await.unwrap()[&id("a")], Carried::Conflict);
    redis.execute(&["ZREM", &key("pending"), "a"]);
    redis.execute(&["HDEL", &key("messages"), "a"]);
    assert_eq!(moving.move_some("r").await.unwrap(), Moved { count: 1, conflicts: 0, is_done: false });
}

#[tokio::test(start_paused = true)]
async fn large_messages_are_moved_in_several_calls() {
    let settings = |partitions| RouteSettings { partitions, ..RouteSettings::plain("r", MAX_CALL_BYTES) };
    let redis = Simulated::start([settings(1)]).await;
    // Not compressible.
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    let payload: bytes::Bytes = (0..MAX_CALL_BYTES / 3).map(|_| next()).collect::<Vec<_>>().into();
    let names = neighbours(5);
    for name in &names {
        let large = NewMessage { payload: payload.clone(), ..later(name) };
        redis.store.schedule(&partition(), &[large]).await.unwrap();
    }
    let moving = redis.serving([settings(2)]).await;
    let ids: Vec<_> = names.iter().map(|name| id(name)).collect();
    let carried = moving.carry(&partition(), &ids).await.unwrap();
    assert_eq!(ids.iter().map(|id| carried[id]).filter(|one| *one == Carried::Left).count(), 3);
    assert_eq!(moving.purge_pending(&first_of_two(), Some(&ids), 10, false, None).await, Ok((5, 0)));
}

#[tokio::test(start_paused = true)]
async fn an_external_message_conflicts_with_one_in_flight_in_the_former_partition() {
    let redis = Simulated::start([route()]).await;
    let names = neighbours(2);
    redis.schedule(&[&names[0]]).await;
    assert_eq!(redis.claim(1).await.len(), 1);
    let moving = redis.registered(2).await;
    let entry = |name: &String| {
        redis.execute(&["ZADD", "theirs", "1", name]);
        ExternalEntry { member: name.clone().into(), id: id(name), metadata: Metadata::default() }
    };
    let (place, entries) =
        (ExternalPlace::Members { key: "theirs".into(), unit: 1000 }, [entry(&names[0]), entry(&names[1])]);
    let moved = moving.take(&first_of_two(), &place, 100, &entries).await.unwrap();
    assert_eq!(moved.iter().map(|one| one.outcome).collect::<Vec<_>>(), [MoveOutcome::Conflict, MoveOutcome::Taken]);
    let found = moving.get(&first_of_two(), &id(&names[1])).await.unwrap();
    assert!(matches!(found, Some(Found::Live { .. })), "{found:?}");
}
