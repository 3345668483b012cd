//! A full route claims as its settlements free permits.

use super::{sink::Act, *};

const ROOM: usize = 20;

fn start(store: &Arc<TestStore>, sink: &Arc<FakeSink>) -> Instance {
    let policy = Policy { max_in_flight: ROOM, ..policy() };
    Instance::start(store, vec![setup(store, "r", to_sink(sink, &Breaker::new("s")), policy)])
}

#[tokio::test(start_paused = true)]
async fn a_full_route_makes_one_settlement_and_one_claim_for_each_round() {
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(100 * MILLI));
    schedule(&store, numbered(10 * ROOM), Duration::ZERO);
    let instance = start(&store, &sink);
    until_empty(&store, "r").await;
    instance.stop().await;
    assert_eq!((store.most_unacked(&partition("r")), sink.taken().len()), (ROOM, 10 * ROOM));
    let (settlements, claims) = (store.calls("settle"), store.calls("claim"));
    assert!(settlements <= 11 && claims <= 13, "{settlements} settlements, {claims} claims for 10 rounds");
}

#[tokio::test(start_paused = true)]
async fn with_replies_lost_nothing_comes_twice_and_no_room_is_lost() {
    let recorder = recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let store = TestStore::new(1);
    let sink = FakeSink::new(&store, |_| Act::confirm(10 * MILLI));
    schedule(&store, numbered(20 * ROOM), Duration::ZERO);
    let instance = start(&store, &sink);
    store.set_faults(Faults { after: 0.3, before: 0.1, only: Some("settle"), ..Faults::default() });
    until_empty(&store, "r").await;
    store.set_faults(Faults::default());
    // Repeated settlements are answered now.
    sleep(SECOND).await;
    assert!(sink.taken().len() == 20 * ROOM && sink.taken().values().all(|times| *times == 1));
    let most = store.most_unacked(&partition("r"));
    assert!(most <= 2 * ROOM, "{most}: more than the budget and one call");
    schedule(&store, (0..2 * ROOM).map(|n| format!("later-{n}")), Duration::ZERO);
    sleep(5 * MILLI).await;
    assert_eq!(store.count(&partition("r")).1, ROOM, "all of the room is there again");
    until_empty(&store, "r").await;
    instance.stop().await;
    assert_eq!(counted(&recorder, "punctual_messages_delivered_total", ""), 22 * ROOM as u64);
}

#[tokio::test(start_paused = true)]
async fn a_partition_with_a_backlog_leaves_room_to_the_others() {
    for room in [2, ROOM] {
        let store = TestStore::new(1);
        let sink = FakeSink::new(&store, |_| Act::confirm(100 * MILLI));
        let all: Vec<_> = Partition::all(&"r".into(), 3).collect();
        let mut setup =
            setup(&store, "r", to_sink(&sink, &Breaker::new("s")), Policy { max_in_flight: room, ..policy() });
        setup.partitions = all.iter().map(|partition| (partition.clone(), store.subscribe(partition))).collect();
        for id in numbered(100 * room) {
            store.schedule(&all[0], &id, Duration::ZERO, Metadata::default());
        }
        let instance = Instance::start(&store, vec![setup]);
        sleep(50 * MILLI).await;
        assert_eq!(store.count(&all[0]).1, room, "it has all of the room");
        for partition in &all[1..] {
            for n in 0..3 * room {
                store.schedule(partition, &format!("{}-{n}", partition.index), Duration::ZERO, Metadata::default());
            }
        }
        sleep(3 * SECOND).await;
        for partition in &all[1..] {
            assert_eq!(store.count(partition), (0, 0, 0), "{partition} with {room} in flight");
        }
        let left = store.count(&all[0]).0;
        assert!(left > 50 * room && left < 95 * room, "{left} of {} are left", 100 * room);
        instance.stop().await;
    }
}
