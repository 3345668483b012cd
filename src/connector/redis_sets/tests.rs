//! Sources of external keys over a model of Redis, on the paused clock.

use std::{collections::BTreeMap, sync::Arc};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use parking_lot::Mutex;
use punctual_model::Reply;
use tokio::{task::JoinHandle, time::Instant};

use super::*;
use crate::{
    message::{MessageId, RouteLimits, State},
    queue::Queue,
    source::{SourceHealth, SourceState},
    store::{
        Filter, Order, PageRequest,
        redis::{
            RouteSettings,
            simulated::{EPOCH, Simulated},
        },
    },
};

const POLL: Duration = Duration::from_secs(1);
const MAX_SLEEP: Duration = Duration::from_secs(30);

struct Bench {
    redis: Simulated,
    queue: Arc<Queue>,
    health: Arc<SourceHealth>,
    source: Arc<RedisSets>,
    stop: watch::Sender<bool>,
    running: Option<JoinHandle<()>>,
    metrics: PrometheusRecorder,
}

impl Bench {
    async fn start(place: ExternalPlace, limits: RouteLimits) -> Self {
        let redis = Simulated::start([RouteSettings { limits, ..RouteSettings::plain("r", 100) }]).await;
        let queue = Arc::new(Queue::new(redis.store.clone(), &BTreeMap::new(), false));
        let connection = QueueRedis { database: 3, connection: Arc::new(redis.connection()) };
        let source = Arc::new(RedisSets::new(place, POLL, connection, MAX_SLEEP));
        let (stop, metrics) = (watch::Sender::new(false), PrometheusBuilder::new().build_recorder());
        Self { redis, queue, health: Arc::default(), source, stop, running: None, metrics }
    }

    async fn of_members(unit: u32) -> Self {
        Self::start(ExternalPlace::Members { key: "k".into(), unit }, RouteLimits::default()).await
    }

    fn run(&mut self) {
        let intake = metrics::with_local_recorder(&self.metrics, || {
            Intake::new(self.queue.clone(), "in", "r".into(), self.health.clone(), self.stop.subscribe())
        });
        let (source, stopping) = (self.source.clone(), self.stop.subscribe());
        self.running = Some(tokio::spawn(async move { source.run(intake, stopping).await }));
    }

    /// Adds a member that is due this much after the beginning of the test, in milliseconds.
    fn add(&self, key: &str, member: &str, due: u64, unit: u64) {
        #[expect(clippy::cast_precision_loss, reason = "exact enough for seconds with fractions")]
        let score = (EPOCH + due) as f64 / unit as f64;
        self.redis.execute(&["ZADD", key, &score.to_string(), member]);
    }

    /// Ids and payloads of the pending messages.
    async fn taken(&self) -> Vec<(MessageId, String)> {
        let filter = Filter::default();
        let page = PageRequest {
            state: State::Pending,
            filter: &filter,
            order: Order::Ascending,
            limit: 1000,
            max_bytes: 1 << 20,
            after: None,
        };
        let page = self.queue.list("r", &page, None).await.unwrap();
        let shown =
            |one: crate::store::Snapshot| (one.id, String::from_utf8(one.message.unwrap().payload.to_vec()).unwrap());
        page.messages.into_iter().map(shown).collect()
    }

    async fn payloads(&self) -> Vec<String> {
        let mut payloads: Vec<_> = self.taken().await.into_iter().map(|(_, payload)| payload).collect();
        payloads.sort();
        payloads
    }

    /// Waits for a time after the beginning of the test, in milliseconds.
    async fn until(&self, millis: u64) {
        sleep(Duration::from_millis(millis - (self.redis.server.now() / 1000 - EPOCH))).await;
    }

    /// The times of the polls for due members from now on, in milliseconds.
    fn polls(&self) -> Arc<Mutex<Vec<u64>>> {
        let (polls, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let noted = polls.clone();
        self.redis.server.reply_with(move |command| {
            if command[0] == "EVALSHA" && command[2..4] == ["1", "k"] {
                noted.lock().push(u64::try_from(began.elapsed().as_millis()).unwrap());
            }
            None
        });
        polls
    }

    /// Scripts in the next ten seconds.
    async fn calls(&self) -> u64 {
        let before = self.redis.calls();
        sleep(Duration::from_secs(10)).await;
        self.redis.calls() - before
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_is_moved_when_it_is_due() {
    for unit in [1, 1000] {
        let mut bench = Bench::of_members(unit).await;
        let unit = u64::from(unit);
        bench.add("k", "first", 5000, unit);
        bench.add("k", "second", 5250, unit);
        bench.add("k", "later", 3_600_000, unit);
        assert_eq!(bench.source.depth().await, Some(3));
        bench.run();
        bench.until(4999).await;
        assert!(bench.payloads().await.is_empty());
        bench.until(5004).await;
        assert_eq!(bench.payloads().await, ["first"]);
        bench.until(5249).await;
        assert_eq!(bench.payloads().await, ["first"]);
        bench.until(5254).await;
        assert_eq!(
            (bench.payloads().await, bench.source.depth().await),
            (vec!["first".to_owned(), "second".to_owned()], Some(1))
        );
        assert_eq!(bench.health.get().0, SourceState::Running);
        bench.stop.send_replace(true);
        bench.running.take().unwrap().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_without_notifications_is_polled_and_with_them_seldom() {
    let mut bench = Bench::of_members(1).await;
    bench.run();
    sleep(Duration::from_millis(10)).await;
    assert!((9..=11).contains(&bench.calls().await), "once a second");
    assert_eq!(bench.source.bells().unwrap().channels, ["__keyspace@3__:k"]);
    let advice = bench.source.advice().await.unwrap();
    assert_eq!(advice, "polls every 1s: Redis is not set to `notify-keyspace-events Kz`, or denies +config|get");

    bench.redis.server.reply_with(|command| {
        let flags = ["notify-keyspace-events", "Kz"].map(Reply::bulk);
        (command[0] == "CONFIG").then(|| Reply::Array(flags.into()))
    });
    assert_eq!(bench.source.advice().await, None);
    // Known at the next check, and only while the subscription is active.
    sleep(MAX_SLEEP).await;
    assert!((9..=11).contains(&bench.calls().await));
    let bell = bench.source.bells().unwrap().changed.clone();
    bell.set_listening(true);
    sleep(POLL).await;
    assert_eq!(bench.calls().await, 0);
    // A notification is the reason for one poll, at most each 20 ms.
    bench.add("k", "now", 0, 1);
    bell.notify();
    sleep(Duration::from_millis(3)).await;
    assert_eq!(bench.payloads().await, ["now"]);
    let before = bench.redis.calls();
    for _ in 0..200 {
        bell.notify();
        sleep(Duration::from_millis(1)).await;
    }
    let calls = bench.redis.calls() - before;
    assert!((9..=11).contains(&calls), "{calls} calls in 200 ms");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_added_while_its_message_is_live_becomes_another_one() {
    let mut bench = Bench::of_members(1).await;
    bench.add("k", "same", 0, 1);
    let polls = bench.polls();
    bench.run();
    bench.until(100).await;
    bench.add("k", "same", 0, 1);
    bench.until(1500).await;
    let taken = bench.taken().await;
    assert_eq!((taken.len(), bench.source.depth().await), (2, Some(0)));
    assert_ne!(taken[0].0, taken[1].0);
    assert_eq!(taken[0].1, taken[1].1);
    // Each poll that moved a member is followed by another at once.
    assert_eq!(*polls.lock(), [0, 0, 1000, 1000]);
    let metrics = bench.metrics.handle().render();
    for line in ["punctual_source_taken_total{source=\"in\"} 2", "punctual_source_conflicts_total{source=\"in\"} 1"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_added_while_its_message_is_live_stays_while_its_route_is_full() {
    let limits = RouteLimits { messages: Some(1), ..RouteLimits::default() };
    let mut bench = Bench::start(ExternalPlace::Members { key: "k".into(), unit: 1 }, limits).await;
    bench.add("k", "same", 0, 1);
    bench.run();
    bench.until(100).await;
    bench.add("k", "same", 0, 1);
    bench.until(5000).await;
    assert_eq!((bench.taken().await.len(), bench.source.depth().await), (1, Some(1)));
    // One small call a second.
    let calls = bench.calls().await;
    assert!((9..=12).contains(&calls), "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn a_member_stays_while_its_route_is_full_or_paused() {
    let limits = RouteLimits { messages: Some(3), ..RouteLimits::default() };
    let mut bench = Bench::start(ExternalPlace::Members { key: "k".into(), unit: 1 }, limits).await;
    for member in ["a", "b", "c", "d", "e"] {
        bench.add("k", member, 0, 1);
    }
    bench.run();
    bench.until(5000).await;
    assert_eq!((bench.payloads().await.len(), bench.source.depth().await), (3, Some(2)));
    // One small call a second.
    let calls = bench.calls().await;
    assert!((9..=12).contains(&calls), "{calls} calls");
    let first = bench.taken().await.remove(0).0;
    bench.queue.cancel("r", &first.into()).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!((bench.payloads().await.len(), bench.source.depth().await), (3, Some(1)));

    let mut bench = Bench::of_members(1).await;
    bench.queue.pause("r", "", "").await.unwrap();
    bench.add("k", "a", 0, 1);
    bench.run();
    bench.until(5000).await;
    assert!(bench.payloads().await.is_empty());
    let calls = bench.calls().await;
    assert!((9..=12).contains(&calls), "{calls} calls");
    // With wake-ups it waits for one.
    let woken = bench.source.bells().unwrap().woken.clone();
    woken.set_listening(true);
    sleep(POLL).await;
    assert_eq!(bench.calls().await, 0);
    // Each message that is scheduled on the route wakes it too.
    let before = bench.redis.calls();
    for _ in 0..1000 {
        woken.notify();
        sleep(Duration::from_millis(1)).await;
    }
    let calls = bench.redis.calls() - before;
    assert!((9..=11).contains(&calls), "{calls} calls in a second");
    bench.queue.resume("r").await.unwrap();
    woken.notify();
    sleep(Duration::from_millis(105)).await;
    assert_eq!(bench.payloads().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn members_are_polled_less_and_less_often_if_another_instance_knows_a_lower_limit() {
    let mut bench = Bench::of_members(1).await;
    bench.add("k", "a", 0, 1);
    // By the limits of this instance the route has capacity.
    let (tries, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let noted = tries.clone();
    bench.redis.server.reply_with(move |command| {
        let has = |key| command.iter().any(|word| word == key);
        let is_move = command[0] == "EVALSHA" && has("{p:r:0/1}:bytes") && has("k") && {
            let mut noted = noted.lock();
            noted.push(began.elapsed().as_millis());
            noted.len() <= 10
        };
        is_move.then(|| Reply::Array(vec![Reply::bulk("left")]))
    });
    bench.run();
    bench.until(1000).await;
    assert_eq!(*tries.lock(), [0, 0, 4, 12, 28, 60, 124, 224, 324, 424, 524]);
    assert_eq!(bench.payloads().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_hash_becomes_a_json_object_and_others_are_left() {
    let place = ExternalPlace::Hashes { key: "k".into(), unit: 1, prefix: "task:".into() };
    let mut bench = Bench::start(place, RouteLimits::default()).await;
    bench.redis.execute(&["HSET", "task:1", "a", "x"]);
    bench.redis.execute(&["HSET", "other:1", "a", "y"]);
    bench.add("k", "task:1", 0, 1);
    bench.add("k", "other:1", 0, 1);
    bench.run();
    bench.until(3000).await;
    let taken = bench.taken().await;
    assert_eq!((taken.len(), taken[0].0.as_str(), taken[0].1.as_str()), (1, "task:1", r#"{"a":"x"}"#));
    // The other one is a dead letter, and its hash is not touched.
    assert_eq!(bench.queue.stats("r").await.unwrap().dead, 1);
    let exists = bench.redis.server.execute(&[b"EXISTS".to_vec(), b"other:1".to_vec(), b"task:1".to_vec()]);
    assert!(matches!(exists, Reply::Int(1)), "{exists:?}");
}

#[tokio::test(start_paused = true)]
async fn a_delayqueue_is_taken_from_all_of_its_keys() {
    let keys = DelayQueueKeys::new("dp", "q", false);
    let mut bench = Bench::start(ExternalPlace::DelayQueue(keys.clone()), RouteLimits::default()).await;
    for (id, set, due) in [("waits", &keys.pending, 2000), ("late", &keys.pending, 1000), ("lost", &keys.unack, 1000)] {
        bench.add(set, id, due, 1000);
    }
    bench.redis.execute(&["LPUSH", &keys.ready, "ready"]);
    bench.redis.execute(&["LPUSH", &keys.retry, "retried"]);
    for id in ["waits", "late", "lost", "ready", "retried"] {
        let body = String::from_utf8(keys.body(id.as_bytes())).unwrap();
        bench.redis.execute(&["SET", &body, &format!("body of {id}")]);
    }
    assert_eq!(bench.source.depth().await, Some(5));
    assert_eq!(bench.source.bells().unwrap().channels.len(), 4);
    assert!(bench.source.advice().await.unwrap().contains("Kzl"));
    bench.run();
    bench.until(1500).await;
    assert_eq!(bench.payloads().await, ["late", "lost", "ready", "retried"].map(|id| format!("body of {id}")));
    bench.until(2100).await;
    assert_eq!((bench.payloads().await.len(), bench.source.depth().await), (5, Some(0)));
}

fn names(place: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{place}{n}")).collect()
}

#[tokio::test(start_paused = true)]
async fn the_bodies_of_a_delayqueue_are_kept_from_expiring() {
    let keys = DelayQueueKeys::new("dp", "q", false);
    let mut bench = Bench::start(ExternalPlace::DelayQueue(keys.clone()), RouteLimits::default()).await;
    bench.queue.pause("r", "", "").await.unwrap();
    for (set, place) in [(&keys.pending, "p"), (&keys.unack, "u")] {
        for id in names(place, 450) {
            bench.add(set, &id, 3_600_000, 1000);
        }
    }
    for (list, place) in [(&keys.ready, "l"), (&keys.retry, "t")] {
        for id in names(place, 450) {
            bench.redis.execute(&["LPUSH", list, &id]);
        }
    }
    let persisted = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let seen = persisted.clone();
    bench.redis.server.reply_with(move |command| match &*command[0] {
        // In two steps.
        "ZSCAN" => {
            let all = names(if command[1].ends_with("pending") { "p" } else { "u" }, 450);
            let (next, some) = if command[2] == "0" { ("7", &all[..200]) } else { ("0", &all[200..]) };
            let pairs = some.iter().flat_map(|id| [Reply::bulk(id.as_str()), Reply::bulk("1")]).collect();
            Some(Reply::Array(vec![Reply::bulk(next), Reply::Array(pairs)]))
        }
        "EVALSHA" if command.get(3).is_some_and(|key| key.starts_with("dp:q:msg:")) => {
            for body in &command[3..] {
                *seen.lock().entry(body.clone()).or_default() += 1;
            }
            Some(Reply::Int(0))
        }
        _ => None,
    });
    bench.run();
    bench.until(60_000).await;
    let all: std::collections::BTreeSet<_> =
        ["p", "u", "l", "t"].iter().flat_map(|place| names(place, 450)).map(|id| format!("dp:q:msg:{id}")).collect();
    assert_eq!(persisted.lock().keys().cloned().collect::<std::collections::BTreeSet<_>>(), all);
    assert!(persisted.lock().values().all(|times| *times == 1));
    // Again each five minutes.
    bench.until(330_000).await;
    assert!(persisted.lock().values().all(|times| *times >= 2));
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_reported_until_it_is_there() {
    let mut bench = Bench::of_members(1).await;
    assert_eq!(bench.source.check().await, Ok(()));
    let denied = Arc::new(Mutex::new(true));
    let is_denied = denied.clone();
    let rehearses = Mutex::new(false);
    bench.redis.server.reply_with(move |command| {
        let mut rehearses = rehearses.lock();
        match &*command[0] {
            "MULTI" => {
                *rehearses = true;
                Some(Reply::ok())
            }
            "ZREM" if *rehearses && *is_denied.lock() => {
                Some(Reply::error("NOPERM no permissions to run the 'zrem' command"))
            }
            "TYPE" | "ZCARD" | "ZRANGEBYSCORE" | "ZMSCORE" | "ZREM" if *rehearses => {
                Some(Reply::Status("QUEUED".into()))
            }
            // The last one.
            "ZADD" if *rehearses => {
                *rehearses = false;
                Some(Reply::Status("QUEUED".into()))
            }
            _ => None,
        }
    });
    let error = bench.source.check().await.unwrap_err();
    assert!(error.ends_with("grant them with `ACL SETUSER <user> +zrem`; messages wait until then"), "{error}");
    bench.run();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.health.get(), (SourceState::Failing, Some(error)));
    *denied.lock() = false;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.health.get().0, SourceState::Running);
    bench.redis.execute(&["SET", "k", "text"]);
    assert_eq!(bench.source.check().await, Err("`k` holds a string, not a zset".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_denied_call_does_not_hide_the_name_of_the_missing_right() {
    let mut bench = Bench::of_members(1).await;
    bench.redis.server.reply_with(|command| match &*command[0] {
        "MULTI" => Some(Reply::ok()),
        "CONFIG" => None,
        _ => Some(Reply::error("NOPERM this user has no permissions to access one of the keys used as arguments")),
    });
    bench.run();
    for _ in 0..20 {
        sleep(Duration::from_millis(500)).await;
        let (state, error) = bench.health.get();
        assert_eq!(state, SourceState::Failing);
        assert!(error.as_deref().is_some_and(|error| error.contains("`ACL SETUSER <user> ~k`")), "{error:?}");
    }
    let no_transactions = Reply::error("ERR unknown command 'MULTI'");
    bench.redis.server.reply_with(move |command| (command[0] == "MULTI").then(|| no_transactions.clone()));
    sleep(Duration::from_secs(6)).await;
    assert_eq!(bench.health.get().0, SourceState::Running);
}

#[tokio::test(start_paused = true)]
async fn members_that_others_take_first_are_looked_for_less_and_less_often() {
    let mut bench = Bench::of_members(1).await;
    bench.add("k", "a", 0, 1);
    // Another consumer takes each member between the two calls.
    let (others, polls) = (Arc::new(Mutex::new(true)), Arc::new(Mutex::new(0_u32)));
    let (is_first, counted) = (others.clone(), polls.clone());
    bench.redis.server.reply_with(move |command| {
        let is_move = command[0] == "EVALSHA" && command.iter().any(|word| word == "{p:r:0/1}:bytes");
        *counted.lock() += u32::from(is_move);
        (is_move && *is_first.lock()).then(|| Reply::Array(vec![Reply::bulk("gone")]))
    });
    bench.run();
    bench.until(1000).await;
    // After 2, 2, 2, 4, 8, 16, 32 and 64 ms, then each 100 ms.
    let lost = *polls.lock();
    assert!((15..=18).contains(&lost), "{lost} polls");
    *others.lock() = false;
    bench.until(1200).await;
    assert_eq!((bench.payloads().await, *polls.lock()), (vec!["a".to_owned()], lost + 1));
}
