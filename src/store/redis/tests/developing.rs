//! The development clock of `punctual dev`.

use super::*;
use crate::time::UnixMillis;

const PARTITIONS: u16 = 2;

fn at(millis: u64) -> UnixMillis {
    UnixMillis::new(EPOCH + millis).unwrap()
}

/// A store of two partitions, and a message for each of them.
async fn start() -> (Simulated, [(Partition, String); 2]) {
    let redis = Simulated::start([RouteSettings { partitions: PARTITIONS, ..route() }]).await;
    let name_in = |index| (0..99).map(|n| n.to_string()).find(|name| id(name).partition(PARTITIONS) == index);
    let in_partition = |index| (Partition { route: "r".into(), index, count: PARTITIONS }, name_in(index).unwrap());
    (redis, [in_partition(0), in_partition(1)])
}

#[tokio::test(start_paused = true)]
async fn the_clock_stops_at_the_next_due_time_and_for_partitions_with_work() {
    let (redis, [(first, one), (second, two)]) = start().await;
    let coming = async |opening: u64| {
        let coming = redis.store.coming(|_| opening).await.unwrap();
        (coming.next_due, coming.busy)
    };
    assert_eq!(coming(0).await, (None, vec![]));
    let later = NewMessage { due: Due::After(60_000), ..message(&one) };
    redis.store.schedule(&first, &[later]).await.unwrap();
    assert_eq!(coming(0).await, (Some(at(60_000)), vec![]));
    redis.store.schedule(&second, &[message(&two)]).await.unwrap();
    assert_eq!(coming(0).await, (Some(at(60_000)), vec![second.clone()]));
    assert_eq!(coming(EPOCH + 90_000).await, (Some(at(90_000)), vec![]), "the window opens later");
    advance(Duration::from_mins(1)).await;
    assert_eq!(coming(0).await, (None, vec![first, second]));
}

#[tokio::test(start_paused = true)]
async fn a_busy_partition_wakes_its_schedulers_and_its_forwarder() {
    let (redis, [(first, _), _]) = start().await;
    let signal = Arc::<WakeSignal>::default();
    let routes = redis.store.routes().cloned().collect::<Vec<_>>();
    let store = redis.store.serving(routes).notifying_of_deaths([("r".into(), vec![signal.clone()])].into());
    let published = Arc::new(Mutex::new(Vec::new()));
    let commands = published.clone();
    redis.server.reply_with(move |command| {
        commands.lock().extend((command[0] == "PUBLISH").then(|| command[1].clone()));
        None
    });
    store.wake_busy(&first).await.unwrap();
    assert_eq!(*published.lock(), [PartitionKeys::new(simulated::PREFIX, &first).wake]);
    tokio::time::timeout(Duration::ZERO, signal.notified()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn redis_is_emptied_except_for_the_clock() {
    let (redis, [(first, one), _]) = start().await;
    redis.store.schedule(&first, &[message(&one)]).await.unwrap();
    redis.store.set_ahead(5_000_000).await.unwrap();
    assert_eq!(redis.store.coming(|_| 0).await.unwrap().ahead, 5_000_000);
    redis.store.empty().await.unwrap();
    let names = redis.server.keys(|keys| keys.names().cloned().collect::<Vec<_>>());
    assert_eq!(names, [b"punctual:development:ahead"]);
    // That of this process, which has advanced none.
    assert_eq!(redis.store.coming(|_| 0).await.unwrap().ahead, 0);
}
