//! Which calls share one, and which scripts they call.

use futures::future::join_all;

use super::*;

/// Each has messages.
const PARTITIONS: u16 = 6;

fn all() -> Vec<Partition> {
    Partition::all(&"r".into(), PARTITIONS).collect()
}

/// Whether calls of all partitions shared some, which may take two: a call moves a limited number of messages.
async fn shares<T>(redis: &Simulated, work: impl Future<Output = T>) -> (bool, T) {
    let before = redis.calls();
    let done = work.await;
    let made = redis.calls() - before;
    assert!(made <= 2 || made == u64::from(PARTITIONS), "{made}");
    (made <= 2, done)
}

/// Leases of `count` messages in each partition.
async fn leases(redis: &Simulated, count: usize, sequence: u64) -> Vec<(Partition, Vec<Lease>)> {
    let mut found = Vec::new();
    for partition in all() {
        let own =
            (0..).map(|n| format!("{sequence}-{n}")).filter(|name| partition.among(PARTITIONS, &id(name)) == partition);
        let batch: Vec<_> = own.take(count).map(|name| message(&name)).collect();
        for some in batch.chunks(1000) {
            redis.store.schedule(&partition, some).await.unwrap();
        }
        let claim = redis.store.claim(&partition, request(sequence)).await.unwrap();
        let lease = |one: &Claimed| Lease { id: one.id.clone(), token: claim.token, bytes: one.body.len() };
        let leases: Vec<_> = claim.messages.iter().map(lease).collect();
        assert_eq!(leases.len(), count);
        found.push((partition, leases));
    }
    found
}

#[tokio::test(start_paused = true)]
async fn small_calls_for_several_partitions_share_one_and_large_ones_do_not() {
    let redis = Simulated::start([RouteSettings { partitions: PARTITIONS, ..route() }]).await;
    let store = &redis.store;
    for (backlog, expected) in [(false, true), (true, false)] {
        let request = |n| ClaimRequest { backlog, ..request(n) };
        let claims =
            all().into_iter().zip(10..).map(|(partition, n)| async move { store.claim(&partition, request(n)).await });
        assert_eq!(shares(&redis, join_all(claims)).await.0, expected, "{backlog}");
    }
    for (count, sequence, expected) in [(1, 100, true), (255, 101, true), (256, 102, false)] {
        let leases = leases(&redis, count, sequence).await;
        let settle = async |(partition, leases): &(Partition, Vec<Lease>)| {
            let ends: Vec<_> = leases.iter().map(|lease| Settlement::new(lease.clone(), ClaimEnd::Ack)).collect();
            store.settle(partition, &ends).await.unwrap()
        };
        assert_eq!(shares(&redis, join_all(leases.iter().map(settle))).await.0, expected, "{count} settled");
    }
    for (count, bytes, sequence, expected) in [
        (1, 1, 200, true),
        (255, 1, 201, true),
        (256, 1, 202, false),
        (1, 64 << 10, 203, true),
        (1, 65 << 10, 204, false),
    ] {
        let leases = leases(&redis, count, sequence).await;
        let transfer = async |(partition, leases): &(Partition, Vec<Lease>)| {
            let of = |lease: &Lease| Transfer {
                lease: lease.clone(),
                list: "list".into(),
                value: vec![b'x'; bytes].into(),
                record: None,
            };
            store.transfer(partition, &leases.iter().map(of).collect::<Vec<_>>()).await.unwrap()
        };
        let (is_shared, done) = shares(&redis, join_all(leases.iter().map(transfer))).await;
        assert_eq!(is_shared, expected, "{count} of {bytes} bytes");
        assert!(done.iter().flatten().all(|one| *one == Transferred::Done));
    }
}

/// The scripts of one message that is scheduled, claimed and moved into a list.
async fn scripts(route: RouteSettings) -> Vec<String> {
    let redis = Simulated::start([route]).await;
    let called = Arc::new(Mutex::new(Vec::new()));
    let calls = called.clone();
    redis.server.reply_with(move |command| {
        if command[0] == "EVALSHA" {
            calls.lock().push(command[1].clone());
        }
        None
    });
    redis.schedule(&["a"]).await;
    let (_, lease) = redis.claim(1).await.remove(0);
    let transfer = Transfer { lease, list: "list".into(), value: "v".into(), record: None };
    assert_eq!(redis.store.transfer(&partition(), &[transfer]).await, Ok(vec![Transferred::Done]));
    std::mem::take(&mut called.lock())
}

#[tokio::test(start_paused = true)]
async fn a_route_without_features_calls_scripts_without_them() {
    let history = Some(HistoryLimits { period: Duration::from_hours(1), max: 100 });
    let (plain, with) = (scripts(route()).await, scripts(RouteSettings { history, ..route() }).await);
    assert_eq!((plain.len(), with.len()), (3, 3));
    for (name, (plain, with)) in ["schedule", "claim", "transfer"].iter().zip(plain.iter().zip(&with)) {
        assert_ne!(plain, with, "{name}");
    }
}
