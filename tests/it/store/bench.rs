//! A server with the store and the handle over it.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use punctual::{
    message::{DeadReason, FlowLimits, MessageId, NewMessage, OnConflict, Rate, State, StoredMessage, codec},
    queue::Queue,
    store::{
        Filter, Found, Order, PARKED, PageRequest, Partition, RouteFlow, Snapshot,
        memory::MemoryPartition,
        redis::{
            RedisStore, RouteSettings,
            connection::{Connection, RedisEndpoint, client},
        },
    },
    time::{Due, UnixMillis},
    tls::TlsFiles,
};
use redis::aio::MultiplexedConnection;
use tokio::time::{Duration, Instant};

use super::{
    operation::{self, ROUTES, flow, flow_key, ids, limits, remember, settings},
    rows::{self, PREFIX, key},
};
use crate::support::RedisServer;

pub const MAX_PAYLOAD: usize = 1024 * 1024;

const TIMEOUT: Duration = Duration::from_secs(5);

pub struct Bench {
    pub server: RedisServer,
    pub store: Arc<RedisStore>,
    /// Where the route of the scenes has flows, and where these are ordered.
    pub flowing: [Arc<RedisStore>; 2],
    /// With another largest payload.
    pub other: RedisStore,
    /// One route only, with two partitions in place of three.
    pub repartitioned: RedisStore,
    /// One route only, with two partitions in place of one.
    pub moving: Arc<RedisStore>,
    pub queue: Queue,
    /// For looking at what is stored.
    pub raw: MultiplexedConnection,
    pub produce: redis::Script,
}

impl Bench {
    pub async fn start() -> Self {
        Self::start_with(&["--appendonly", "no"]).await
    }

    pub async fn start_with(arguments: &[&str]) -> Self {
        let server = RedisServer::start_with(arguments).await;
        let raw = server.connection().await;
        let store = Arc::new(store(&server.url(), MAX_PAYLOAD));
        let queue = Queue::new(store.clone(), &BTreeMap::new(), false);
        let produce = redis::Script::new(&super::lua("produce"));
        let other = self::store(&server.url(), MAX_PAYLOAD - 1);
        let repartitioned = store_of([("three", 2)], &server.url(), MAX_PAYLOAD);
        let moving = Arc::new(store_of([("one", 2)], &server.url(), MAX_PAYLOAD));
        let flowing = [false, true].map(|ordered| Arc::new(store_with_flows(&server.url(), ordered)));
        let mut bench = Self { server, store, flowing, other, repartitioned, moving, queue, raw, produce };
        bench.clear().await;
        bench
    }

    /// The store for a kind of scenes.
    pub fn of_kind(&self, kind: &str) -> Arc<RedisStore> {
        match kind {
            "flows" => self.flowing[0].clone(),
            "ordered" => self.flowing[1].clone(),
            _ => self.store.clone(),
        }
    }

    /// Empty, with the routes registered.
    pub async fn clear(&mut self) {
        let () = redis::cmd("FLUSHALL").query_async(&mut self.raw).await.expect("the server answers");
        self.store.register().await.expect("nothing is registered yet");
    }

    pub async fn rows(&mut self, partition: &Partition) -> MemoryPartition {
        rows::read(&mut self.raw, partition).await
    }

    /// Redis' clock.
    pub async fn micros(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query_async(&mut self.raw).await.expect("the server answers");
        seconds * 1_000_000 + micros
    }

    /// Waits until Redis' clock is past `micros`.
    pub async fn pass(&mut self, micros: u64) {
        while self.micros().await <= micros {}
    }

    /// Waits until Redis' clock is further by more than `millis`.
    pub async fn pass_by(&mut self, millis: u64) {
        let now = self.micros().await;
        self.pass(now + millis * 1000).await;
    }

    /// Schedules as an external program does; status and due.
    pub async fn try_produce(
        &mut self,
        partition: &Partition,
        message: &NewMessage,
    ) -> redis::RedisResult<(String, u64)> {
        let when = match message.due {
            Due::After(millis) => format!("+{millis}"),
            Due::At(at) => at.get().to_string(),
        };
        let mut options = serde_json::to_value(&message.metadata).expect("metadata is JSON");
        if message.on_conflict == OnConflict::Replace {
            options["on_conflict"] = "replace".into();
            if let Some(max) = message.debounce {
                options["debounce"] = max.into();
            }
        }
        let (status, id, due): (String, String, u64) = self
            .produce
            .key(key(partition, "pending"))
            .arg(1)
            .arg(message.id.as_str())
            .arg(when)
            .arg(&message.payload[..])
            .arg(options.to_string())
            .invoke_async(&mut self.raw)
            .await?;
        assert_eq!(id, message.id.as_str());
        Ok((status, due))
    }

    pub async fn live(&self, route: &str, text: &str) -> Option<Snapshot> {
        match self.queue.get(route, &id(text)).await.expect("the server answers")? {
            Found::Live { snapshot, .. } => Some(*snapshot),
            Found::Ended { .. } => panic!("`{text}` has ended"),
        }
    }

    /// Get, list and stats return what `memory` holds.
    async fn check_summary(&self, route: &str, memory: &BTreeMap<Partition, MemoryPartition>) {
        let mut expected: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for rows in memory.iter().filter(|(one, _)| *one.route == *route).map(|(_, rows)| rows) {
            for (id, died) in rows.dead.iter() {
                let reason = rows.errors[id].2.split_once(": ").expect("a reason").0;
                let (count, oldest, newest) = expected.entry(reason).or_insert((0, u64::MAX, 0));
                (*count, *oldest, *newest) = (*count + 1, died.min(*oldest), died.max(*newest));
            }
        }
        let summary = self.queue.summary(route, &Filter::default(), later()).await.expect("the server answers");
        let found: BTreeMap<&str, (u64, u64, u64)> = summary
            .groups
            .iter()
            .map(|group| (&*group.reason, (group.count, group.oldest.get(), group.newest.get())))
            .collect();
        assert_eq!(found, expected);
        assert_eq!((summary.total, summary.complete), (expected.values().map(|group| group.0).sum(), true));
    }

    async fn check_groups(&self, route: &str, memory: &BTreeMap<Partition, MemoryPartition>, limit: usize) {
        for group in ["g", "g:1"] {
            let of_route = memory.iter().filter(|(one, _)| *one.route == *route);
            let seen = |(_, rows): (&Partition, &MemoryPartition)| {
                let seen = |id: MessageId| {
                    let state = rows.state(id.as_str()).expect("it is live");
                    // An orphan has no body.
                    rows.bodies.contains_key(id.as_str()).then(|| Seen::of(rows, state, id.as_str()))
                };
                rows.ids_of_group(group, "").into_iter().filter_map(seen).collect::<Vec<_>>()
            };
            let expected: Vec<_> = of_route.flat_map(seen).collect();
            let (mut listed, mut cursor) = (Vec::new(), None::<String>);
            loop {
                let page = self.queue.group(route, group, limit, u64::MAX, cursor.as_deref()).await.expect("a page");
                assert!(page.messages.len() <= limit);
                listed.extend(page.messages.into_iter().map(Seen::from));
                cursor = page.cursor;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(listed, expected, "{group} of {route}");
        }
    }

    pub async fn check_looks(
        &mut self,
        partition: &Partition,
        memory: &BTreeMap<Partition, MemoryPartition>,
        limit: usize,
    ) {
        let route = &*partition.route;
        let rows = &memory[partition];
        for id in ids(partition) {
            let before = self.micros().await;
            let found = self.queue.get(route, &id).await.expect("the server answers");
            let after = self.micros().await;
            let ended = |now| rows.ended(id.as_str(), now, settings(partition));
            match found {
                Some(Found::Live { snapshot, now, paused, .. }) => {
                    let state = rows.state(id.as_str()).expect("it is live");
                    assert_eq!(Seen::from(*snapshot), Seen::of(rows, state, id.as_str()));
                    assert!((before / 1000..=after / 1000).contains(&now.get()) && paused == rows.paused);
                }
                Some(Found::Ended { remembered: Some(found), .. }) => {
                    assert_eq!(Some((found.ending, found.at.get())), ended(before));
                }
                Some(Found::Ended { remembered: None, ends }) => {
                    assert_eq!((rows.state(id.as_str()), ended(after)), (None, None));
                    assert!(!ends.is_empty());
                }
                None => assert_eq!((rows.state(id.as_str()), ended(after)), (None, None)),
            }
        }
        let some = |reason, contains: &str, retried| Filter {
            reason,
            contains: Some(contains.to_owned()),
            retried,
            ..Filter::default()
        };
        let of_flow = |flow: &str| Filter { flow: Some(flow.to_owned()), ..Filter::default() };
        let filters = [
            Filter::default(),
            some(Some(DeadReason::Rejected), "HTTP 4", false),
            some(None, "HTTP", true),
            of_flow("a"),
            of_flow(""),
            Filter { group: Some("g".to_owned()), ..Filter::default() },
            Filter { payload: Some("\u{1}".to_owned()), ..Filter::default() },
        ];
        let orders = [Order::Ascending, Order::Descending];
        for (n, (state, filter)) in [State::Pending, State::Unack, State::Dead]
            .into_iter()
            .flat_map(|state| filters.iter().map(move |one| (state, one)))
            .enumerate()
        {
            let order = orders[n % 2];
            let mut expected: Vec<(u64, Seen)> = Vec::new();
            for (_, rows) in memory.iter().filter(|(one, _)| *one.route == *route) {
                let set = match state {
                    State::Pending => &rows.pending,
                    State::Unack => &rows.unack,
                    State::Dead => &rows.dead,
                };
                let matching = set.iter().filter(|(id, score)| rows.matches(filter, id, *score));
                expected.extend(matching.map(|(id, score)| (score, Seen::of(rows, state, id))));
            }
            expected.sort_by(|a, b| (a.0, &a.1.id).cmp(&(b.0, &b.1.id)));
            if order == Order::Descending {
                expected.reverse();
            }
            let mut listed = Vec::new();
            let mut cursor = None;
            let page = PageRequest { state, filter, order, limit, max_bytes: u64::MAX, after: None };
            loop {
                let page = self.queue.list(route, &page, cursor.as_deref()).await;
                let page = page.expect("a page");
                assert!(page.messages.len() <= limit);
                listed.extend(page.messages.into_iter().map(Seen::from));
                match page.cursor {
                    Some(next) => cursor = Some(next),
                    None => break,
                }
            }
            assert_eq!(listed, expected.into_iter().map(|(_, seen)| seen).collect::<Vec<_>>());
        }
        self.check_groups(route, memory, limit).await;
        self.check_summary(route, memory).await;
        self.check_stats(&self.store, partition, rows, settings(partition).flow.is_some()).await;
        if let Some(limits) = settings(partition).flow {
            let store = self.store.clone();
            self.check_flow_list(&store, partition, rows, (&limits, limit)).await;
        }
    }
}

/// A store with the routes of the tests on a connection of its own.
pub fn store(url: &str, max_payload: usize) -> RedisStore {
    store_of(ROUTES, url, max_payload)
}

/// A store of the scenes' route alone, with flows.
fn store_with_flows(url: &str, ordered: bool) -> RedisStore {
    let rate = Rate::parse("10/s").expect("a rate");
    let limits = FlowLimits { rate: Some(rate), burst: 2, parallel: Some(if ordered { 1 } else { 4 }), ordered };
    store_with([(super::scene::ROUTE, 1)], url, MAX_PAYLOAD, |_| Some(limits))
}

pub fn store_of<const N: usize>(routes: [(&str, u16); N], url: &str, max_payload: usize) -> RedisStore {
    store_with(routes, url, max_payload, flow)
}

fn store_with<const N: usize>(
    routes: [(&str, u16); N],
    url: &str,
    max_payload: usize,
    flow: impl Fn(&str) -> Option<FlowLimits>,
) -> RedisStore {
    let server = RedisEndpoint { url: url.into(), username: None, password: None, tls: TlsFiles::default() };
    let client = client(&server).expect("a valid URL");
    let settings = |(name, partitions): (&str, u16)| RouteSettings {
        name: name.into(),
        partitions,
        max_payload,
        remember: remember(name),
        limits: limits(name),
        flow: flow(name).map(|limits| RouteFlow { key: flow_key(name), limits }),
        history: operation::history(name),
        forwards: operation::forwards(name) || (name == "one" && (partitions == 2 || flow(name).is_some())),
    };
    RedisStore::new(Arc::new(Connection::new(client, TIMEOUT)), PREFIX, routes.map(settings))
}

/// A snapshot that compares.
#[derive(Debug, PartialEq)]
struct Seen {
    id: String,
    state: State,
    deliver_at: u64,
    attempts: u32,
    last_error: Option<String>,
    last_error_at: Option<u64>,
    died_at: Option<u64>,
    message: Option<StoredMessage>,
}

impl Seen {
    fn of(rows: &MemoryPartition, state: State, id: &str) -> Self {
        let body: &Bytes = &rows.bodies[id];
        Self {
            id: id.to_owned(),
            state,
            deliver_at: if state == State::Pending { rows.pending[id] % PARKED } else { rows.original_due(id) },
            attempts: rows.errors.get(id).map_or(0, |error| error.1),
            last_error: rows.errors.get(id).map(|error| error.2.clone()),
            last_error_at: rows.errors.get(id).map(|error| error.0),
            died_at: rows.dead.get(id),
            message: codec::decode(body).ok(),
        }
    }
}

impl From<Snapshot> for Seen {
    fn from(snapshot: Snapshot) -> Self {
        Self {
            id: snapshot.id.to_string(),
            state: snapshot.state,
            deliver_at: snapshot.deliver_at.get(),
            attempts: snapshot.attempts,
            last_error: snapshot.last_error,
            last_error_at: snapshot.last_error_at.map(UnixMillis::get),
            died_at: snapshot.died_at.map(UnixMillis::get),
            message: snapshot.message.ok(),
        }
    }
}

/// A deadline that no test reaches.
pub fn later() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// An id of the tests.
pub fn id(text: &str) -> MessageId {
    MessageId::parse(text).expect("an id")
}
