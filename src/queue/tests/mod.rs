//! The queue over a model of Redis, on the paused clock.

mod dead;
mod ended;
mod groups;
mod messages;
mod pending;
mod redirect;
mod registry;
mod schedules;
mod stats;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tokio::time::Instant;

use super::*;
use crate::{
    message::{DeadReason, MessageId, Metadata, NewMessage, OnConflict, State},
    store::{
        ClaimEnd, Filter, Found, Lease, Order, PageRequest, Partition, ScheduleStatus, Settlement, Store,
        redis::{
            RouteSettings,
            simulated::{EPOCH, Simulated},
        },
    },
    time::Due,
};

/// More than one call reads at once.
const PARTITIONS: u16 = 6;

const HOUR: u64 = 3_600_000;

struct Bench {
    redis: Simulated,
    queue: Queue,
    claims: AtomicU64,
    metrics: PrometheusHandle,
    _recording: metrics::LocalRecorderGuard<'static>,
}

impl Bench {
    async fn start(routes: impl IntoIterator<Item = RouteSettings>) -> Self {
        let recorder: &PrometheusRecorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        let recording = metrics::set_default_local_recorder(recorder);
        let redis = Simulated::start(routes).await;
        let sinks = BTreeMap::from([("r".into(), "s".into())]);
        let queue = Queue::new(redis.store.clone(), &sinks, false);
        Self { redis, queue, claims: AtomicU64::new(0), metrics: recorder.handle(), _recording: recording }
    }

    /// With the route `r`.
    async fn plain() -> Self {
        Self::start([route()]).await
    }

    async fn schedule(&self, messages: impl IntoIterator<Item = NewMessage>) {
        let scheduled = self.queue.schedule("r", "api", messages.into_iter().collect()).await.unwrap();
        assert!(scheduled.iter().all(|one| one.status == ScheduleStatus::Scheduled), "{scheduled:?}");
    }

    /// Dead letters with the error `invalid: error`, which died now.
    async fn bury(&self, messages: impl IntoIterator<Item = NewMessage>) {
        let messages = messages.into_iter().map(|message| (message, "error".to_owned())).collect();
        assert!(self.queue.bury("r", messages).await.unwrap().is_empty());
    }

    /// The messages of a state in the order of a listing.
    async fn listed(&self, route: &str, state: State) -> Vec<Snapshot> {
        let filter = Filter::default();
        let page = PageRequest {
            state,
            filter: &filter,
            order: Order::Ascending,
            limit: 1000,
            max_bytes: u64::MAX,
            after: None,
        };
        let (mut messages, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.queue.list(route, &page, cursor.as_deref()).await.unwrap();
            messages.extend(page.messages);
            cursor = page.cursor;
            if cursor.is_none() {
                return messages;
            }
        }
    }

    async fn ids(&self, state: State) -> Vec<String> {
        self.listed("r", state).await.into_iter().map(|one| one.id.to_string()).collect()
    }

    /// When a pending message is due, in milliseconds after the beginning of the test.
    async fn due(&self, id: &str) -> u64 {
        match self.queue.get("r", &self::id(id)).await.unwrap() {
            Some(Found::Live { snapshot, .. }) if snapshot.state == State::Pending => snapshot.deliver_at.get() - EPOCH,
            other => panic!("{id}: {other:?}"),
        }
    }

    /// The clock of Redis, in milliseconds after the beginning of the test. Calls that wait for others advance it.
    fn now(&self) -> u64 {
        self.redis.server.now() / 1000 - EPOCH
    }

    /// Waits for this time after the beginning of the test, in milliseconds.
    async fn until(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis - self.now())).await;
    }

    fn partitions(&self) -> Vec<Partition> {
        self.queue.route("r").unwrap().partitions.iter().map(|(partition, _)| partition.clone()).collect()
    }

    /// Claims what is due.
    async fn claim(&self) -> Vec<(Partition, Lease)> {
        let mut claimed = Vec::new();
        for partition in self.partitions() {
            let request = Simulated::claim_of_all(self.claims.fetch_add(1, Ordering::Relaxed) + 1);
            let claim = self.redis.store.claim(&partition, request).await.unwrap();
            let lease = |one: crate::store::Claimed| Lease { id: one.id, token: claim.token, bytes: one.body.len() };
            claimed.extend(claim.messages.into_iter().map(lease).map(|lease| (partition.clone(), lease)));
        }
        claimed
    }

    /// Ends claims. Returns their number.
    async fn end(&self, claimed: Vec<(Partition, Lease)>, end: ClaimEnd) -> usize {
        let count = claimed.len();
        for (partition, lease) in claimed {
            self.redis.store.settle(&partition, &[Settlement::new(lease, end.clone())]).await.unwrap();
        }
        count
    }

    /// A counter of the route `r`.
    fn count(&self, name: &str) -> u64 {
        let page = self.metrics.render();
        let start = format!("punctual_messages_{name}_total{{route=\"r\"");
        page.lines()
            .filter(|line| line.starts_with(&start))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}

fn route() -> RouteSettings {
    RouteSettings { partitions: PARTITIONS, ..RouteSettings::plain("r", 100) }
}

fn id(id: &str) -> MessageId {
    MessageId::parse(id).unwrap()
}

fn ids(prefix: &str, count: usize) -> Vec<MessageId> {
    (0..count).map(|n| id(&format!("{prefix}{n}"))).collect()
}

fn at(millis: u64) -> UnixMillis {
    UnixMillis::new(EPOCH + millis).unwrap()
}

/// Due in an hour.
fn message(id: &str) -> NewMessage {
    NewMessage {
        id: self::id(id),
        due: Due::At(at(HOUR)),
        payload: "x".into(),
        metadata: Metadata::default(),
        on_conflict: OnConflict::Keep,
        debounce: None,
        record: None,
    }
}

fn due(id: &str, millis: u64) -> NewMessage {
    NewMessage { due: Due::At(at(millis)), ..message(id) }
}

fn keyed(id: &str, key: &str) -> NewMessage {
    NewMessage { metadata: Metadata { key: Some(key.to_owned()), ..Metadata::default() }, ..message(id) }
}

/// Messages that are due one after another, each a millisecond after the one before.
fn messages(prefix: &str, count: usize) -> impl Iterator<Item = NewMessage> {
    let prefix = prefix.to_owned();
    (0..count).map(move |n| due(&format!("{prefix}{n}"), HOUR + n as u64))
}

fn key(key: &str) -> Filter {
    Filter { key: Some(key.to_owned()), ..Filter::default() }
}

/// Far enough.
fn later() -> Instant {
    Instant::now() + Duration::from_hours(1)
}
