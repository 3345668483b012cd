//! Entries that sources hand to the queue, on a real Redis: read again, out of order, or blocked by other messages.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use punctual::{
    message::{
        Cancellation, DeadReason, LogRecord, MessageId, Metadata, NewMessage, OnConflict, Remember, RouteLimits, State,
    },
    queue::Queue,
    source::{Intake, SourceEntry, SourceHealth, SourceState},
    store::{
        ClaimEnd, ClaimRequest, Found, Lease, Partition, Store,
        redis::{
            RedisStore, RouteSettings,
            connection::{Connection, RedisEndpoint, client},
        },
    },
    time::{Due, UnixMillis},
    tls::TlsFiles,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    RedisServer, all, claim_request,
    proxy::{Mode, Proxy},
};

const ROUTE: &str = "r";
const REMEMBER: Remember = Remember { period: Duration::from_mins(10), max: 100 };
const MAX_WAIT: Duration = Duration::from_secs(10);
const HOUR: Due = Due::After(3_600_000);

/// A source's way in, and the way out.
struct Bench {
    redis: RedisServer,
    store: Arc<RedisStore>,
    queue: Arc<Queue>,
    status: Arc<SourceHealth>,
    intake: Intake,
    stop: watch::Sender<bool>,
}

impl Bench {
    async fn start(remember: Option<Remember>) -> Self {
        Self::start_limited(remember, RouteLimits::default()).await
    }

    async fn start_limited(remember: Option<Remember>, limits: RouteLimits) -> Self {
        let redis = RedisServer::start().await;
        let store = store(&redis.url(), remember, limits);
        store.register().await.expect("nothing is registered yet");
        let queue = Arc::new(Queue::new(store.clone(), &BTreeMap::new(), false));
        let (status, (stop, stopping)) = (Arc::new(SourceHealth::default()), watch::channel(false));
        let intake = Intake::new(queue.clone(), "in", ROUTE.into(), status.clone(), stopping);
        Self { redis, store, queue, status, intake, stop }
    }

    async fn take(&self, entries: impl IntoIterator<Item = SourceEntry>) {
        let taken = timeout(MAX_WAIT, self.intake.take(entries.into_iter().collect(), |_| {})).await;
        taken.expect("nothing is in the way").expect("it is not stopped");
    }

    /// Everything that is due.
    async fn claim(&self) -> Vec<Lease> {
        let request = ClaimRequest { max_bytes: 1 << 20, ..claim_request(100, Duration::from_hours(1)) };
        let claim = self.store.claim(&partition(), request).await.expect("a claim");
        claim
            .messages
            .into_iter()
            .map(|message| Lease { id: message.id, token: claim.token, bytes: message.body.len() })
            .collect()
    }

    /// Ids of everything that is due, which is removed.
    async fn delivered(&self) -> Vec<String> {
        let leases = self.claim().await;
        self.settle(leases.clone(), &ClaimEnd::Ack).await;
        leases.into_iter().map(|lease| lease.id.to_string()).collect()
    }

    async fn settle(&self, leases: Vec<Lease>, end: &ClaimEnd) {
        self.store.settle(&partition(), &all(leases, end)).await.expect("settled");
    }

    /// State of an id that is live.
    async fn state(&self, text: &str) -> Option<State> {
        match self.queue.get(ROUTE, &id(text)).await.expect("an answer") {
            Some(Found::Live { snapshot, .. }) => Some(snapshot.state),
            Some(Found::Ended { .. }) | None => None,
        }
    }

    /// How many live ids there are.
    async fn live(&self) -> u64 {
        let stats = self.queue.stats(ROUTE).await.expect("numbers");
        stats.pending + stats.unack + stats.dead
    }

    async fn until_waiting(&self, what: &str) {
        let deadline = Instant::now() + MAX_WAIT;
        while self.status.get() != (SourceState::Failing, Some(what.to_owned())) {
            assert!(Instant::now() < deadline, "{:?}", self.status.get());
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// How often sleepers were woken.
    async fn wake_ups(&self) -> u64 {
        let mut info = redis::cmd("INFO");
        let stats: String =
            info.arg("commandstats").query_async(&mut self.redis.connection().await).await.expect("numbers");
        let calls = |line: &str| line.strip_prefix("cmdstat_publish:calls=")?.split(',').next()?.parse().ok();
        stats.lines().find_map(calls).unwrap_or(0)
    }
}

fn store(url: &str, remember: Option<Remember>, limits: RouteLimits) -> Arc<RedisStore> {
    let server = RedisEndpoint { url: url.into(), username: None, password: None, tls: TlsFiles::default() };
    let connection = Connection::new(client(&server).expect("a valid URL"), MAX_WAIT);
    let settings = RouteSettings { remember, limits, ..RouteSettings::plain(ROUTE, 1000) };
    Arc::new(RedisStore::new(Arc::new(connection), "p", [settings]))
}

fn partition() -> Partition {
    Partition { route: ROUTE.into(), index: 0, count: 1 }
}

fn id(text: &str) -> MessageId {
    MessageId::parse(text).expect("an id")
}

fn at(offset: u64) -> LogRecord {
    LogRecord { place: "t:0".into(), offset, timestamp: 1000 + offset }
}

fn message(id: MessageId, due: Due, on_conflict: OnConflict) -> NewMessage {
    NewMessage {
        id,
        due,
        payload: "payload".into(),
        metadata: Metadata::default(),
        on_conflict,
        debounce: None,
        record: None,
    }
}

fn schedule(text: &str, offset: u64, due: Due) -> SourceEntry {
    SourceEntry::Schedule(NewMessage { record: Some(at(offset)), ..message(id(text), due, OnConflict::Replace) })
}

fn tombstone(text: &str, offset: u64) -> SourceEntry {
    SourceEntry::Cancel(Cancellation { record: Some(at(offset)), ..id(text).into() })
}

#[tokio::test]
async fn what_is_read_again_does_not_come_again_whatever_became_of_it() {
    let bench = Bench::start(Some(REMEMBER)).await;
    let read = [
        schedule("delivered", 1, Due::NOW),
        schedule("dead", 2, Due::NOW),
        schedule("replaced", 3, Due::NOW),
        schedule("cancelled", 4, HOUR),
        schedule("purged", 5, Due::NOW),
    ];
    bench.take(read.clone()).await;
    let leases = bench.claim().await;
    for lease in leases {
        match lease.id.as_str() {
            "dead" | "purged" => {
                let buried = ClaimEnd::Bury { reason: DeadReason::Rejected, error: String::new() };
                bench.settle(vec![lease], &buried).await;
            }
            _ => bench.settle(vec![lease], &ClaimEnd::Ack).await,
        }
    }
    // Read together, and then not.
    let unseen = [schedule("unseen", 9, Due::NOW), tombstone("unseen", 10)];
    bench.take(unseen.clone()).await;
    let later = [schedule("replaced", 6, HOUR), tombstone("cancelled", 7), tombstone("purged", 8)];
    bench.take(later.clone()).await;
    for again in [1, 3, 100] {
        for part in [&read[..], &later, &unseen].concat().chunks(again) {
            bench.take(part.to_vec()).await;
            assert_eq!(bench.delivered().await, [""; 0]);
        }
        assert_eq!(
            (bench.state("dead").await, bench.state("replaced").await),
            (Some(State::Dead), Some(State::Pending))
        );
        assert_eq!(bench.live().await, 2);
    }
}

#[tokio::test]
async fn a_key_that_is_used_anew_has_its_own_id_which_a_tombstone_cancels() {
    let bench = Bench::start(Some(REMEMBER)).await;
    bench.take([schedule("key", 1, Due::NOW)]).await;
    assert_eq!(bench.delivered().await, ["key"]);
    bench.take([schedule("key", 2, HOUR)]).await;
    assert_eq!(bench.state("key").await, Some(State::Pending));
    bench.take([tombstone("key", 3)]).await;
    assert_eq!(bench.live().await, 0);
    bench.take([schedule("key", 4, Due::NOW)]).await;
    assert_eq!(bench.delivered().await, ["key"]);
    // The topic was made anew.
    let anew = LogRecord { place: "t:0".into(), offset: 0, timestamp: 5000 };
    let message = NewMessage { record: Some(anew), ..message(id("key"), Due::NOW, OnConflict::Replace) };
    bench.take([SourceEntry::Schedule(message)]).await;
    assert_eq!(bench.delivered().await, ["key"]);
}

#[tokio::test]
async fn a_schedule_read_together_with_its_tombstone_is_never_visible() {
    let bench = Bench::start(None).await;
    bench.take([schedule("first", 1, HOUR)]).await;
    let before = bench.wake_ups().await;
    bench
        .take([schedule("a", 2, Due::NOW), schedule("b", 3, Due::NOW), tombstone("a", 4), schedule("b", 5, HOUR)])
        .await;
    assert_eq!(bench.wake_ups().await, before, "nothing was due");
    assert_eq!((bench.state("a").await, bench.state("b").await), (None, Some(State::Pending)));
}

#[tokio::test]
async fn replacing_or_cancelling_waits_for_the_message_in_flight_and_is_logged() {
    let bench = Bench::start(Some(REMEMBER)).await;
    bench.take([schedule("a", 1, Due::NOW), schedule("b", 2, Due::NOW)]).await;
    let leases = bench.claim().await;
    assert_eq!(bench.status.get().0, SourceState::Running);
    for (n, (entry, what)) in
        [(schedule("a", 3, HOUR), "its replacement"), (tombstone("b", 4), "its cancellation")].into_iter().enumerate()
    {
        let taking = tokio::spawn({
            let intake = bench.intake.clone();
            async move { intake.take(vec![entry, schedule("other", 10, HOUR)], |_| {}).await }
        });
        bench.until_waiting(&format!("`{}` is in flight, {what} waits", leases[n].id)).await;
        assert_eq!(bench.state("other").await, Some(State::Pending), "it holds up nothing else");
        bench.settle(leases[n..=n].to_vec(), &ClaimEnd::Ack).await;
        timeout(MAX_WAIT, taking).await.expect("it goes on").expect("no panic").expect("it is not stopped");
        assert_eq!(bench.status.get().0, SourceState::Running);
    }
    assert_eq!((bench.state("a").await, bench.state("b").await), (Some(State::Pending), None));
    bench.stop.send_replace(true);
}

#[tokio::test]
async fn a_waiting_id_with_another_due_time_is_another_message() {
    let bench = Bench::start(None).await;
    let time = |millis| Due::At(UnixMillis::new(millis).expect("below 2^53"));
    let keep = |text, due| SourceEntry::Schedule(message(id(text), due, OnConflict::Keep));
    let far = 1 << 50;
    bench.take([keep("at", time(far)), keep("after", HOUR)]).await;
    for _ in 0..2 {
        bench.take([keep("at", time(far)), keep("after", HOUR)]).await;
        assert_eq!(bench.live().await, 2);
    }
    for _ in 0..2 {
        bench.take([keep("at", time(far + 1)), keep("at", time(far)), keep("at", time(far + 1))]).await;
        assert_eq!(bench.live().await, 3);
    }
    // Too large: a dead letter, whatever its time.
    let large = NewMessage { payload: vec![0; 1001].into(), ..message(id("large"), time(far), OnConflict::Keep) };
    for _ in 0..3 {
        bench.take([SourceEntry::Schedule(large.clone())]).await;
        assert_eq!(bench.live().await, 4);
    }
}

#[tokio::test]
async fn what_is_called_back_before_it_left_is_not_written_later() {
    let bench = Bench::start(None).await;
    bench.take([schedule("before", 0, HOUR)]).await;
    let mut pause = redis::cmd("CLIENT");
    pause.arg("PAUSE").arg(2000).arg("ALL").exec_async(&mut bench.redis.connection().await).await.expect("paused");
    let mut under_way = Vec::new();
    // The first two calls are in flight, and the third waits for one of them.
    for (n, text) in ["one", "two", "three"].into_iter().enumerate() {
        let intake = bench.intake.clone();
        let entry = schedule(text, n as u64, HOUR);
        under_way.push(tokio::spawn(async move { intake.take(vec![entry], |_| {}).await }));
        sleep(Duration::from_millis(50)).await;
    }
    let called_back = under_way.remove(2);
    called_back.abort();
    assert!(called_back.await.expect_err("it was under way").is_cancelled());
    for taking in under_way {
        timeout(MAX_WAIT, taking).await.expect("Redis is back").expect("no panic").expect("it is not stopped");
    }
    bench.take([schedule("after", 9, HOUR)]).await;
    assert_eq!((bench.state("two").await, bench.state("three").await), (Some(State::Pending), None));
}

#[tokio::test]
async fn a_schedule_too_large_is_a_dead_letter_beside_others_of_its_key() {
    let too_large = |offset| {
        let SourceEntry::Schedule(message) = schedule("key", offset, HOUR) else { unreachable!("it is one") };
        SourceEntry::Schedule(NewMessage { payload: vec![b'x'; 1001].into(), ..message })
    };
    let tombstone = |offset| tombstone("key", offset);
    for (entries, pending) in [
        (vec![schedule("key", 1, HOUR), too_large(2)], 1),
        (vec![too_large(1), schedule("key", 2, HOUR)], 1),
        (vec![too_large(1), tombstone(2)], 0),
    ] {
        let bench = Bench::start(Some(REMEMBER)).await;
        // The second time it is read again.
        for _ in 0..2 {
            bench.take(entries.clone()).await;
            let stats = bench.queue.stats(ROUTE).await.expect("numbers");
            assert_eq!((stats.pending, stats.dead), (pending, 1), "{entries:?}");
        }
    }
}

#[tokio::test]
async fn a_delay_beyond_the_limit_makes_one_dead_letter_and_the_rest_is_taken() {
    let limits = RouteLimits { delay: Some(Duration::from_mins(59)), ..RouteLimits::default() };
    let bench = Bench::start_limited(Some(REMEMBER), limits).await;
    let kept = |text: &str, due| SourceEntry::Schedule(message(id(text), due, OnConflict::Keep));
    let soon = Due::After(1_800_000);
    // The second time it is read again.
    for _ in 0..2 {
        bench
            .take([kept("long", HOUR), schedule("key", 1, HOUR), schedule("key-2", 2, soon), kept("short", soon)])
            .await;
        let stats = bench.queue.stats(ROUTE).await.expect("numbers");
        assert_eq!((stats.pending, stats.dead), (2, 2));
    }
    assert_eq!((bench.state("key").await, bench.state("long").await), (None, Some(State::Dead)));
    let Some(Found::Live { snapshot: dead, .. }) = bench.queue.get(ROUTE, &id("long")).await.expect("an answer") else {
        panic!()
    };
    let error = dead.last_error.expect("a reason");
    assert!(error.starts_with("invalid: ") && error.contains("`limits.delay`"), "{error}");
}

#[tokio::test]
async fn without_a_memory_only_what_waits_is_known() {
    let bench = Bench::start(None).await;
    bench.take([schedule("key", 1, HOUR)]).await;
    bench.take([schedule("key", 0, Due::NOW)]).await;
    assert_eq!(bench.delivered().await, [""; 0], "older than what waits");
    bench.take([schedule("key", 2, Due::NOW)]).await;
    assert_eq!(bench.delivered().await, ["key"]);
    bench.take([schedule("key", 2, Due::NOW)]).await;
    assert_eq!(bench.delivered().await, ["key"], "it forgot");
}

#[tokio::test]
async fn what_has_the_id_of_a_message_that_ends_meanwhile_is_scheduled_under_it() {
    let bench = Bench::start(None).await;
    let with = |payload: &'static str| {
        SourceEntry::Schedule(NewMessage { payload: payload.into(), ..message(id("a"), Due::NOW, OnConflict::Keep) })
    };
    bench.take([with("first")]).await;
    let leases = bench.claim().await;
    // The answer to its schedule, and then its check of what is live, take a while.
    let proxy = Proxy::start(bench.redis.port());
    let slow = Arc::new(Queue::new(store(&proxy.redis_url(), None, RouteLimits::default()), &BTreeMap::new(), false));
    slow.stats(ROUTE).await.expect("it is connected");
    proxy.set(Mode::Delay(Duration::from_millis(300))).await;
    let monitor = redis::Client::open(bench.redis.url()).expect("a URL").get_async_monitor().await.expect("a monitor");
    let mut commands = monitor.into_on_message::<String>();
    let intake = Intake::new(slow, "in", ROUTE.into(), bench.status.clone(), bench.stop.subscribe());
    let taking = tokio::spawn(async move { intake.take(vec![with("second")], |_| {}).await });
    let came = async { while !commands.next().await.expect("a command").contains("second") {} };
    timeout(MAX_WAIT, came).await.expect("it is scheduled, and its id is live");
    bench.settle(leases, &ClaimEnd::Ack).await;
    timeout(MAX_WAIT, taking).await.expect("it is taken").expect("no panic").expect("it is not stopped");
    assert_eq!(bench.delivered().await, ["a"]);
}
