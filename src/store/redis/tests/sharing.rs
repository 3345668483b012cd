//! Which calls share one, and which scripts they call.

use futures::future::join_all;
use punctual_model::LinkFaults;
use tokio::time::Instant;

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

/// Claims in partitions of one instance, which are not worth a call of their own.
struct Claims {
    redis: Simulated,
    sequence: std::cell::Cell<u64>,
}

impl Claims {
    async fn start(partitions: u16) -> Self {
        let redis = Simulated::start([RouteSettings { partitions, ..route() }]).await;
        Self { redis, sequence: std::cell::Cell::new(0) }
    }

    /// Due messages in a partition.
    async fn fill(&self, partition: &Partition, count: usize) {
        let own = (0..).map(|n| n.to_string()).filter(|name| id(name).partition(partition.count) == partition.index);
        let batch: Vec<_> = own.take(count).map(|name| message(&name)).collect();
        self.redis.store.schedule(partition, &batch).await.unwrap();
    }

    /// Returns when the call was sent, and the number of messages.
    async fn claim(&self, partition: &Partition) -> (Instant, usize) {
        self.sequence.set(self.sequence.get() + 1);
        let request = ClaimRequest { backlog: false, ..request(self.sequence.get()) };
        let claim = self.redis.store.claim(partition, request).await.unwrap();
        (claim.clock.taken, claim.messages.len())
    }

    fn set_latency(&self, latency: Duration) {
        self.redis.links.set_faults(LinkFaults { latency, ..LinkFaults::default() });
    }

    /// The duration of a call, and the pause after it. `call` returns when it was sent.
    async fn pause_after(
        &self,
        latency: Duration,
        call: impl Future<Output = Instant>,
        next: &Partition,
    ) -> [Duration; 2] {
        self.set_latency(latency);
        let sent = call.await;
        let took = sent.elapsed();
        self.set_latency(Duration::ZERO);
        let answered = Instant::now();
        [took, self.claim(next).await.0 - answered]
    }
}

/// Timers have a resolution of a millisecond.
fn is_about(duration: Duration, expected: Duration) -> bool {
    (expected..expected + Duration::from_millis(2)).contains(&duration)
}

#[tokio::test(start_paused = true)]
async fn a_lone_call_is_sent_at_once_and_the_pause_after_it_is_three_times_its_cost() {
    const MILLI: Duration = Duration::from_millis(1);
    let all: Vec<_> = Partition::all(&"r".into(), 8).collect();
    // A call with ten messages takes twice as long as one without any.
    for (messages, share) in [(0, 1.0), (5, 1.0 / 1.5), (10, 0.5), (40, 0.2)] {
        let claims = Claims::start(8).await;
        claims.fill(&all[0], messages).await;
        let lone = async {
            let now = Instant::now();
            assert_eq!(claims.claim(&all[0]).await, (now, messages));
            now
        };
        let [took, pause] = claims.pause_after(MILLI, lone, &all[1]).await;
        assert!(is_about(pause, took.mul_f64(3.0 * share)), "{messages}: {pause:?} after {took:?}");
    }
    // Calls in one bundle have their messages together.
    let claims = Claims::start(8).await;
    for partition in &all[1..3] {
        claims.fill(partition, 20).await;
    }
    claims.set_latency(MILLI);
    claims.claim(&all[0]).await;
    let bundle = async {
        let (one, two) = tokio::join!(claims.claim(&all[1]), claims.claim(&all[2]));
        assert_eq!((one, one.1), (two, 20));
        one.0
    };
    let [took, pause] = claims.pause_after(MILLI, bundle, &all[3]).await;
    assert!(is_about(pause, took.mul_f64(3.0 * 0.2)), "{pause:?} after {took:?}");
    // At most 10 ms.
    let claims = Claims::start(8).await;
    let slow = async { claims.claim(&all[0]).await.0 };
    let [took, pause] = claims.pause_after(Duration::from_millis(100), slow, &all[1]).await;
    assert!(took > 4 * MILLI && is_about(pause, 10 * MILLI), "{pause:?} after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_early_when_sixteen_calls_wait() {
    let all: Vec<_> = Partition::all(&"r".into(), 17).collect();
    let claims = Claims::start(17).await;
    claims.set_latency(Duration::from_millis(100));
    claims.claim(&all[0]).await;
    claims.set_latency(Duration::ZERO);
    let (begun, calls) = (Instant::now(), claims.redis.calls());
    let last = async {
        sleep(Duration::from_millis(3)).await;
        assert_eq!(claims.redis.calls(), calls, "fifteen wait");
        claims.claim(&all[16]).await
    };
    let (first, (sent, _)) = tokio::join!(join_all(all[1..16].iter().map(|partition| claims.claim(partition))), last);
    assert!(first.iter().all(|one| one.0 == sent) && sent - begun < Duration::from_millis(5), "{:?}", sent - begun);
    assert_eq!(claims.redis.calls() - calls, 1);
}

#[tokio::test(start_paused = true)]
async fn deliveries_of_one_claim_are_settled_together() {
    let redis = Simulated::start([route()]).await;
    let words = Arc::new(Mutex::new(0));
    let counted = words.clone();
    redis.server.reply_with(move |command| {
        *counted.lock() = command.len();
        None
    });
    let names: Vec<_> = (0..150).map(|n| n.to_string()).collect();
    redis.schedule(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let leases: Vec<_> = redis.claim(1).await.into_iter().map(|(_, lease)| lease).collect();
    let settle = async |leases: &[Lease]| {
        let ends: Vec<_> = leases.iter().map(|lease| Settlement::new(lease.clone(), ClaimEnd::Ack)).collect();
        redis.store.settle(&partition(), &ends).await.unwrap();
        *words.lock()
    };
    let (few, many) = (settle(&leases[..50]).await, settle(&leases[50..]).await);
    assert_eq!(many - few, 50, "one word for each");
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_of_a_bundle_is_counted_and_does_not_fail_the_others() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let all: Vec<_> = Partition::all(&"r".into(), 3).collect();
    let claims = Claims::start(3).await;
    claims.fill(&all[2], 1).await;
    let store = &claims.redis.store;
    claims.set_latency(Duration::from_millis(3));
    claims.claim(&all[0]).await;
    // Its script fails in the middle.
    claims.redis.execute(&["HSET", "{p:r:1/3}:claims", "0000000000000001", "?"]);
    let failing = store.claim(&all[1], ClaimRequest { backlog: false, ..request(100) });
    let (failed, other) = tokio::join!(failing, claims.claim(&all[2]));
    assert!(matches!(failed, Err(StoreError::Unavailable { kind: "other", .. })), "{failed:?}");
    assert_eq!(other.1, 1);
    let page = recorder.handle().render();
    assert!(page.contains("punctual_redis_errors_total{kind=\"other\"} 1"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_is_not_sent_again() {
    let redis = Simulated::start([route()]).await;
    let refusal = Arc::new(Mutex::new("PUNCTUAL split the bodies take 9 bytes"));
    let (calls, given) = (Arc::new(Mutex::new(0)), refusal.clone());
    let counted = calls.clone();
    redis.server.reply_with(move |command| {
        command[0].starts_with("EVAL").then(|| {
            *counted.lock() += 1;
            // An endless repetition ends.
            Reply::error(if *counted.lock() > 9 { "ERR too often" } else { *given.lock() })
        })
    });
    let refused = |slug: &str, error: StoreError| {
        assert!(matches!(&error, StoreError::Refused { slug: found, .. } if found == slug), "{error}");
        std::mem::take(&mut *calls.lock())
    };
    // A message alone cannot be split.
    let error = redis.store.schedule(&partition(), &[message("a")]).await.unwrap_err();
    assert_eq!(refused("split", error), 1);
    *refusal.lock() = "PUNCTUAL other the script refuses it";
    let error = redis.store.schedule(&partition(), &[message("a"), message("b")]).await.unwrap_err();
    assert_eq!(refused("other", error), 1);
    let error = redis.store.claim(&partition(), ClaimRequest { backlog: false, ..request(1) }).await.unwrap_err();
    assert_eq!(refused("other", error), 1);
    *refusal.lock() = "PUNCTUAL unregistered the partition is closed";
    let error = redis.store.schedule(&partition(), &[message("a"), message("b")]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { kind: UNREGISTERED, .. }), "{error}");
    assert_eq!(*calls.lock(), 1);
}
