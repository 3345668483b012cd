use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use parking_lot::Mutex;
use punctual_model::LinkFaults;
use tokio::task::JoinHandle;

use super::{super::SourceState, *};
use crate::{
    log_lines::LogLines,
    message::{MAX_METADATA_BYTES, Metadata, Remember, RouteLimits, TraceContext, TraceId},
    store::redis::{
        RedisStore, RouteSettings,
        connection::Connection,
        simulated::{EPOCH, Simulated},
    },
};

#[test]
fn a_message_that_got_its_flow_from_the_route_is_the_same_when_it_is_read_again() {
    let same = |stored: Option<&str>, read: Option<&str>, key: &str| {
        let metadata = |flow: Option<&str>, key: &str| Metadata {
            flow: flow.map(str::to_owned),
            key: Some(key.to_owned()),
            ..Metadata::default()
        };
        let (id, payload) = (MessageId::parse("a").unwrap(), bytes::Bytes::new());
        let (due, accepted) = (UnixMillis::default(), UnixMillis::default());
        let stored = StoredMessage { due, accepted, metadata: metadata(stored, "k"), payload: payload.clone() };
        let (due, metadata) = (Due::NOW, metadata(read, key));
        is_same(
            &stored,
            &NewMessage { id, due, payload, metadata, on_conflict: OnConflict::Keep, debounce: None, record: None },
        )
    };
    assert!(same(None, None, "k") && same(Some("f"), Some("f"), "k") && same(Some("f"), None, "k"));
    assert!(!same(Some("f"), Some("g"), "k") && !same(None, Some("f"), "k") && !same(Some("f"), None, "other"));
}

#[test]
fn a_message_that_got_the_context_of_a_span_is_the_same_when_it_is_read_again() {
    let metadata = |span: u64, other: &str| {
        let mut metadata = Metadata { headers: [("x".to_owned(), other.to_owned())].into(), ..Metadata::default() };
        if span > 0 {
            metadata.replace_trace(TraceContext { trace: TraceId(1), span, is_sampled: true }, None);
        }
        metadata
    };
    let same = |stored: Metadata, read: Metadata| {
        let (id, payload, due) = (MessageId::parse("a").unwrap(), bytes::Bytes::new(), UnixMillis::default());
        let stored = StoredMessage { due, accepted: due, metadata: stored, payload: payload.clone() };
        let (due, on_conflict) = (Due::NOW, OnConflict::Keep);
        is_same(&stored, &NewMessage { id, due, payload, metadata: read, on_conflict, debounce: None, record: None })
    };
    assert!(same(metadata(1, "1"), metadata(0, "1")) && same(metadata(2, "1"), metadata(1, "1")));
    assert!(!same(metadata(1, "1"), metadata(0, "2")));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_repeated_until_punctual_stops() {
    let client = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
    let connection = Arc::new(Connection::new(client, Duration::from_secs(1)));
    let queue = Arc::new(Queue::new(Arc::new(RedisStore::new(connection, "p", [])), &BTreeMap::new(), false));
    let (stop, stopping) = watch::channel(false);
    let health = Arc::<SourceHealth>::default();
    let new = || Intake::new(queue.clone(), "in", "r".into(), health.clone(), stopping.clone());
    let intake = new();
    let calls = Cell::new(0);
    let failed = || QueueError::Store(StoreError::Unavailable { kind: "shutdown", text: "a task has failed".into() });
    let call = |good| {
        calls.set(calls.get() + 1);
        let answer = if calls.get() == good { Ok(()) } else { Err(failed()) };
        async move { answer }
    };
    assert_eq!(intake.until_done(|| call(3)).await, Ok(()));
    assert_eq!(health.get(), (SourceState::Running, Some(failed().to_string())));
    // Less and less often, and then at the longest interval.
    let [first, longest] = RETRY_DELAYS;
    let began = Instant::now();
    calls.set(0);
    assert_eq!(intake.until_done(|| call(20)).await, Ok(()));
    assert!(began.elapsed() > longest * 10 && began.elapsed() < longest * 20, "{:?} from {first:?}", began.elapsed());
    // A connection that ends with punctual is not an outage.
    let (log, _guard) = LogLines::collect();
    stop.send_replace(true);
    calls.set(0);
    assert_eq!(new().until_done(|| call(9)).await, Err(Stopped));
    assert_eq!((calls.get(), log.take()), (1, vec![]));
}

const SECOND: Duration = Duration::from_secs(1);

/// An intake over a model of Redis, on the paused clock. Payloads of the route have at most 10 bytes.
struct Bench {
    redis: Simulated,
    queue: Arc<Queue>,
    health: Arc<SourceHealth>,
    stop: watch::Sender<bool>,
    intake: Intake,
    metrics: PrometheusHandle,
    /// The places that were stored, in this order.
    stored: Arc<Mutex<Places>>,
}

impl Bench {
    async fn start(limits: RouteLimits) -> Self {
        Self::with(RouteSettings { limits, ..RouteSettings::plain("r", 10) }).await
    }

    async fn with(route: RouteSettings) -> Self {
        let redis = Simulated::start([route]).await;
        let queue = Arc::new(Queue::new(redis.store.clone(), &BTreeMap::new(), false));
        let (stop, stopping) = watch::channel(false);
        let health = Arc::<SourceHealth>::default();
        let recorder = PrometheusBuilder::new().build_recorder();
        let intake = metrics::with_local_recorder(&recorder, || {
            Intake::new(queue.clone(), "in", "r".into(), health.clone(), stopping)
        });
        Self { redis, queue, health, stop, intake, metrics: recorder.handle(), stored: Arc::default() }
    }

    async fn with_messages(messages: u64) -> Self {
        Self::start(RouteLimits { messages: Some(messages), ..RouteLimits::default() }).await
    }

    /// The intake takes the entries in a task.
    fn take(&self, entries: Vec<SourceEntry>) -> JoinHandle<Result<(), Stopped>> {
        let (intake, stored) = (self.intake.clone(), self.stored.clone());
        tokio::spawn(async move { intake.take(entries, |places| stored.lock().extend(places)).await })
    }

    fn stored(&self) -> Places {
        let mut stored = self.stored.lock().clone();
        stored.sort_unstable();
        stored
    }

    /// A pending message goes to a sink.
    fn claim(&self, id: &str) {
        self.redis.execute(&["ZREM", "{p:r:0/1}:pending", id]);
        self.redis.execute(&["ZADD", "{p:r:0/1}:unack", "9999999999999", id]);
    }

    /// The sink gives it back.
    fn give_back(&self, id: &str) {
        self.redis.execute(&["ZREM", "{p:r:0/1}:unack", id]);
        self.redis.execute(&["ZADD", "{p:r:0/1}:pending", "9999999999999", id]);
    }

    async fn cancel(&self, id: &str) {
        let cancelled = self.queue.cancel("r", &MessageId::parse(id).unwrap().into()).await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled, "{id}");
    }

    /// The payload of a message that waits; `None`: there is none.
    async fn waiting(&self, id: &MessageId) -> Option<String> {
        match self.queue.get("r", id).await.unwrap() {
            Some(Found::Live { snapshot, .. }) if snapshot.died_at.is_none() => {
                Some(String::from_utf8(snapshot.message.unwrap().payload.to_vec()).unwrap())
            }
            _ => None,
        }
    }

    /// The error of a dead letter.
    async fn error(&self, id: &MessageId) -> Option<String> {
        match self.queue.get("r", id).await.unwrap() {
            Some(Found::Live { snapshot, .. }) if snapshot.died_at.is_some() => snapshot.last_error,
            _ => None,
        }
    }

    /// The counter of this source.
    fn count(&self, name: &str) -> u64 {
        let page = self.metrics.render();
        let start = format!("{name}{{source=\"in\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |value| value.parse().unwrap())
    }

    fn counts(&self) -> [u64; 5] {
        ["taken", "invalid", "conflicts", "known", "skipped"]
            .map(|what| self.count(&format!("punctual_source_{what}_total")))
    }
}

fn id(id: &str) -> MessageId {
    MessageId::parse(id).unwrap()
}

/// Due in an hour.
fn message(id: &str, payload: &str, on_conflict: OnConflict) -> NewMessage {
    NewMessage {
        id: self::id(id),
        due: Due::At(UnixMillis::new(EPOCH + 3_600_000).unwrap()),
        payload: bytes::Bytes::copy_from_slice(payload.as_bytes()),
        metadata: Metadata::default(),
        on_conflict,
        debounce: None,
        record: None,
    }
}

fn keep(id: &str, payload: &str) -> SourceEntry {
    SourceEntry::Schedule(message(id, payload, OnConflict::Keep))
}

fn replace(id: &str, payload: &str) -> SourceEntry {
    SourceEntry::Schedule(message(id, payload, OnConflict::Replace))
}

fn cancel(id: &str) -> SourceEntry {
    SourceEntry::Cancel(self::id(id).into())
}

#[tokio::test(start_paused = true)]
async fn until_capacity_waits_for_the_limit_of_the_route() {
    let bench = Bench::start(RouteLimits::default()).await;
    assert_eq!(bench.intake.until_capacity(7).await, Ok(7), "there is no limit");

    let bench = Bench::with_messages(5).await;
    assert_eq!(bench.intake.until_capacity(3).await, Ok(3));
    assert_eq!(bench.intake.until_capacity(5).await, Ok(5));
    assert_eq!(bench.intake.until_capacity(u16::MAX).await, Ok(5));
    bench.take((0..5).map(|n| keep(&n.to_string(), "x")).collect()).await.unwrap().unwrap();
    let calls = bench.redis.calls();
    let (intake, began) = (bench.intake.clone(), Instant::now());
    let waiting = tokio::spawn(async move { (intake.until_capacity(9).await, began.elapsed()) });
    sleep(SECOND).await;
    assert!((10..20).contains(&(bench.redis.calls() - calls)), "soon at first");
    sleep(59 * SECOND).await;
    assert_eq!(bench.health.get(), (SourceState::Failing, Some(Limit::Messages.explain().to_owned())));
    // Later once a second.
    let calls = bench.redis.calls() - calls;
    assert!((60..75).contains(&calls), "{calls} calls");
    bench.cancel("3").await;
    bench.cancel("4").await;
    let (free, took) = waiting.await.unwrap();
    assert!(free == Ok(2) && took <= 61 * SECOND, "{free:?} after {took:?}");
    assert_eq!(bench.health.get().0, SourceState::Running);

    bench.take(vec![keep("3", "x"), keep("4", "x")]).await.unwrap().unwrap();
    let intake = bench.intake.clone();
    let waiting = tokio::spawn(async move { intake.until_capacity(9).await });
    sleep(10 * SECOND).await;
    bench.stop.send_replace(true);
    assert_eq!(waiting.await.unwrap(), Err(Stopped));
    assert_eq!(bench.health.get().0, SourceState::Running);
}

#[tokio::test(start_paused = true)]
async fn the_capacity_counts_messages_in_flight_and_bytes_of_the_largest_message() {
    let bench = Bench::with_messages(5).await;
    bench.take(vec![keep("a", "x"), keep("b", "x")]).await.unwrap().unwrap();
    bench.claim("a");
    assert_eq!(bench.intake.until_capacity(9).await, Ok(3));

    // The largest message has a payload of 10 bytes.
    let largest = 10 + MAX_METADATA_BYTES as u64 + 64;
    let bench = Bench::start(RouteLimits { bytes: Some(1000 * largest), ..RouteLimits::default() }).await;
    assert_eq!(bench.intake.until_capacity(u16::MAX).await, Ok(1000));
    bench.take(vec![keep("a", "x")]).await.unwrap().unwrap();
    assert_eq!(bench.intake.until_capacity(u16::MAX).await, Ok(999), "less than a whole one");
    // With a low limit half of it is the largest.
    let bench = Bench::start(RouteLimits { bytes: Some(1000), ..RouteLimits::default() }).await;
    assert_eq!(bench.intake.until_capacity(u16::MAX).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn each_side_of_a_source_reports_for_itself() {
    let bench = Bench::start(RouteLimits::default()).await;
    let (intake, health) = (&bench.intake, &bench.health);
    intake.running();
    assert_eq!((health.get().0, health.is_running()), (SourceState::Running, true));
    let began = Instant::now();
    sleep(SECOND).await;
    intake.failing("no broker");
    assert_eq!((health.get(), health.is_running()), ((SourceState::Failing, Some("no broker".to_owned())), false));
    sleep(SECOND).await;
    intake.failing("no broker");
    assert_eq!(health.times().since - began, SECOND, "as long as it fails");
    intake.report_failing(Side::Redis, "no Redis");
    intake.running();
    assert_eq!(health.get().0, SourceState::Failing);
    intake.failing("no broker");
    intake.resumed();
    assert_eq!(health.get().0, SourceState::Running);
    intake.took(0);
    assert_eq!(health.times().last_success, None);
}

#[tokio::test(start_paused = true)]
async fn until_growing_waits_for_redis() {
    let bench = Bench::start(RouteLimits::default()).await;
    assert_eq!(bench.intake.until_growing().await, Ok(()));
    bench.redis.links.set_faults(LinkFaults { down: true, ..LinkFaults::default() });
    let intake = bench.intake.clone();
    let waiting = tokio::spawn(async move { intake.until_growing().await });
    sleep(10 * SECOND).await;
    assert!(!waiting.is_finished() && bench.health.get().0 == SourceState::Failing);
    bench.redis.links.set_faults(LinkFaults::default());
    assert_eq!(waiting.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_several_calls_is_stored_whole_and_told_once_but_for_invalid_entries() {
    let bench = Bench::start(RouteLimits::default()).await;
    let mut entries: Vec<_> = (0..2500).map(|n| keep(&n.to_string(), "x")).collect();
    for n in [0, 1200] {
        entries.insert(n, keep(&format!("large{n}"), "0123456789x"));
    }
    bench.take(entries).await.unwrap().unwrap();
    assert_eq!(bench.stored(), (0..2502).collect::<Vec<_>>());
    assert_eq!(bench.counts(), [2500, 2, 0, 0, 0]);
    let stats = bench.queue.stats("r").await.unwrap();
    assert_eq!((stats.pending, stats.dead), (2500, 2));
    assert!(bench.health.times().last_success.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_a_full_route_has_room_for_is_told_before_the_rest_waits() {
    let bench = Bench::with_messages(3).await;
    let taking = bench.take(["a", "b", "c", "d", "e"].map(|id| keep(id, "x")).into());
    sleep(10 * SECOND).await;
    assert_eq!((bench.stored(), taking.is_finished()), (vec![0, 1, 2], false));
    assert_eq!(bench.health.get(), (SourceState::Failing, Some(Limit::Messages.explain().to_owned())));
    // One message tries, once a second.
    let calls = bench.redis.calls();
    sleep(10 * SECOND).await;
    let calls = bench.redis.calls() - calls;
    assert!((8..=12).contains(&calls), "{calls} calls");
    bench.cancel("a").await;
    sleep(2 * SECOND).await;
    assert_eq!((bench.stored(), taking.is_finished()), (vec![0, 1, 2, 3], false));
    bench.cancel("b").await;
    taking.await.unwrap().unwrap();
    assert_eq!((bench.stored(), bench.counts()), (vec![0, 1, 2, 3, 4], [5, 0, 0, 0, 0]));
    assert_eq!(bench.health.get().0, SourceState::Running);

    let taking = bench.take(vec![keep("f", "x")]);
    sleep(SECOND).await;
    bench.stop.send_replace(true);
    assert_eq!(taking.await.unwrap(), Err(Stopped));
    assert_eq!(bench.waiting(&id("f")).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_scheduled_is_a_dead_letter_with_the_reason() {
    let delay = Some(Duration::from_hours(1));
    let bench = Bench::start(RouteLimits { delay, ..RouteLimits::default() }).await;
    let later = |id: &str, on_conflict| {
        let due = Due::At(UnixMillis::new(EPOCH + 3_700_000).unwrap());
        NewMessage { due, ..message(id, "later", on_conflict) }
    };
    let (large, replacing) =
        (message("large", "0123456789x", OnConflict::Keep), message("a", "0123456789x", OnConflict::Replace));
    let long = later("b", OnConflict::Replace);
    let entries = vec![
        keep("fits", "0123456789"),
        SourceEntry::Schedule(large),
        SourceEntry::Schedule(replacing.clone()),
        SourceEntry::Invalid(message("broken", "?", OnConflict::Keep), "not understood".to_owned()),
        SourceEntry::Schedule(later("long", OnConflict::Keep)),
        SourceEntry::Schedule(long.clone()),
    ];
    bench.take(entries).await.unwrap().unwrap();
    assert_eq!(bench.stored(), (0..6).collect::<Vec<_>>());
    assert_eq!(bench.counts()[..2], [1, 5]);
    assert_eq!(bench.waiting(&id("fits")).await.as_deref(), Some("0123456789"));
    let too_large = Some("invalid: the payload takes 11 bytes, at most 10".to_owned());
    assert_eq!(bench.error(&id("large")).await, too_large);
    assert_eq!(bench.error(&id("broken")).await.as_deref(), Some("invalid: not understood"));
    let too_long = Some(format!("invalid: {}", Limit::Delay.explain()));
    assert_eq!(bench.error(&id("long")).await, too_long);
    // One that would replace is not below its id, which another message may need.
    assert_eq!((bench.error(&id("a")).await, bench.error(&id("b")).await), (None, None));
    assert_eq!(bench.error(&under_digest(replacing).id).await, too_large);
    assert_eq!(bench.error(&under_digest(long).id).await, too_long);

    // Each again: a dead letter is not made twice, and of other content gets an id of its own.
    let again = message("broken", "?", OnConflict::Keep);
    let other = message("broken", "other", OnConflict::Keep);
    let entries = [again, other.clone()].map(|message| SourceEntry::Invalid(message, "not understood".to_owned()));
    bench.stored.lock().clear();
    bench.take(entries.into()).await.unwrap().unwrap();
    assert_eq!(bench.stored(), [0, 1]);
    // A dead letter is due on its arrival.
    let other = under_digest(NewMessage { due: Due::NOW, ..other });
    assert_eq!(bench.error(&other.id).await.as_deref(), Some("invalid: not understood"));
}

#[tokio::test(start_paused = true)]
async fn a_live_id_is_known_with_the_same_content_and_a_conflict_with_other() {
    let bench = Bench::start(RouteLimits::default()).await;
    bench.take(vec![keep("a", "one")]).await.unwrap().unwrap();
    bench.take(vec![keep("a", "one"), keep("a", "two"), keep("b", "one")]).await.unwrap().unwrap();
    assert_eq!(bench.counts(), [3, 0, 1, 1, 0]);
    let other = under_digest(message("a", "two", OnConflict::Keep)).id;
    assert_eq!(bench.waiting(&id("a")).await.as_deref(), Some("one"));
    assert_eq!(bench.waiting(&other).await.as_deref(), Some("two"));
    // Another due time is other content, too.
    let later =
        NewMessage { due: Due::At(UnixMillis::new(EPOCH + 1).unwrap()), ..message("a", "one", OnConflict::Keep) };
    let ids: BTreeSet<_> =
        [later, message("a", "one", OnConflict::Keep)].into_iter().map(|message| under_digest(message).id).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(under_digest(message("a", "one", OnConflict::Replace)).on_conflict, OnConflict::Keep);
}

#[tokio::test(start_paused = true)]
async fn replacements_and_cancellations_wait_for_a_message_in_flight() {
    let bench = Bench::start(RouteLimits::default()).await;
    bench.take(vec![keep("a", "one"), keep("b", "one")]).await.unwrap().unwrap();
    bench.claim("a");
    bench.stored.lock().clear();
    let taking = bench.take(vec![replace("a", "two"), replace("b", "two")]);
    sleep(SECOND / 2).await;
    assert_eq!((bench.stored(), bench.health.get().0), (vec![1], SourceState::Running));
    sleep(SECOND).await;
    let error = "`a` is in flight, its replacement waits".to_owned();
    assert_eq!((taking.is_finished(), bench.health.get()), (false, (SourceState::Failing, Some(error))));
    bench.give_back("a");
    taking.await.unwrap().unwrap();
    assert_eq!((bench.stored(), bench.health.get().0), (vec![0, 1], SourceState::Running));
    assert_eq!(bench.waiting(&id("a")).await.as_deref(), Some("two"));
    assert_eq!(bench.counts(), [4, 0, 0, 0, 0]);

    bench.claim("a");
    bench.stored.lock().clear();
    let taking = bench.take(vec![cancel("a"), cancel("b"), cancel("unknown"), cancel("never")]);
    sleep(SECOND / 2).await;
    assert_eq!((bench.stored(), bench.health.get().0), (vec![1, 2, 3], SourceState::Running));
    sleep(SECOND).await;
    let error = "`a` is in flight, its cancellation waits".to_owned();
    assert_eq!((taking.is_finished(), bench.health.get()), (false, (SourceState::Failing, Some(error))));
    bench.give_back("a");
    taking.await.unwrap().unwrap();
    assert_eq!((bench.stored(), bench.health.get().0), (vec![0, 1, 2, 3], SourceState::Running));
    assert_eq!((bench.waiting(&id("a")).await, bench.waiting(&id("b")).await), (None, None));
    assert_eq!(bench.counts(), [4, 0, 0, 0, 2]);

    // The cancelled message is part of the batch.
    bench.take(vec![replace("c", "one"), cancel("c")]).await.unwrap().unwrap();
    assert_eq!((bench.waiting(&id("c")).await, bench.counts()), (None, [4, 0, 0, 0, 2]));
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_remembered_is_known() {
    let remember = Remember { period: Duration::from_hours(2), max: 100 };
    let bench = Bench::with(RouteSettings { remember: Some(remember), ..RouteSettings::plain("r", 10) }).await;
    bench.take(vec![keep("a", "one")]).await.unwrap().unwrap();
    bench.cancel("a").await;
    bench.take(vec![keep("a", "one"), keep("b", "one")]).await.unwrap().unwrap();
    assert_eq!((bench.waiting(&id("a")).await, bench.counts()), (None, [2, 0, 0, 1, 0]));
}

#[tokio::test(start_paused = true)]
async fn the_log_says_when_a_source_takes_messages_and_each_outage_of_it() {
    let (log, _guard) = LogLines::collect();
    let bench = Bench::start(RouteLimits::default()).await;
    assert_eq!(bench.intake.name(), "in");
    let lines = |contained: &[&str]| {
        let lines = log.take();
        let fit = lines.iter().zip(contained).all(|(line, contained)| line.contains(contained));
        assert!(lines.len() == contained.len() && fit, "{contained:?}: {lines:?}");
    };
    bench.intake.running();
    lines(&["INFO the source takes messages source=\"in\""]);
    bench.intake.resumed();
    lines(&[]);
    bench.intake.failing("no broker");
    lines(&["no broker"]);
    bench.intake.report_failing(Side::Redis, "no Redis");
    lines(&["no Redis"]);
    bench.intake.running();
    lines(&[]);
    sleep(SECOND).await;
    bench.intake.resumed();
    lines(&["in"]);
    bench.intake.resumed();
    lines(&[]);
}

#[tokio::test(start_paused = true)]
async fn the_log_names_the_trace_of_an_invalid_message_and_counts_cancellations_of_unknown_ones() {
    let (log, _guard) = LogLines::collect();
    let bench = Bench::start(RouteLimits::default()).await;
    let mut broken = message("broken", "?", OnConflict::Keep);
    broken.metadata.replace_trace(TraceContext { trace: TraceId(1), span: 2, is_sampled: true }, None);
    bench.take(vec![keep("a", "x"), SourceEntry::Invalid(broken, "not understood".to_owned())]).await.unwrap().unwrap();
    let trace = TraceId(1).to_string();
    let lines: Vec<_> = log.take().into_iter().filter(|line| line.contains("not understood")).collect();
    assert!(lines.len() == 1 && lines[0].contains(&trace), "{lines:?}");
    bench.take(vec![cancel("a")]).await.unwrap().unwrap();
    assert_eq!(log.take(), Vec::<String>::new());
    bench.take(vec![cancel("a"), cancel("b")]).await.unwrap().unwrap();
    assert_eq!(log.take(), ["INFO skipped cancellations of what does not wait source=\"in\" records=2"]);
}
