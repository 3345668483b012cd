use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Page, QueueError, RouteWindow,
    coalescer::Coalescer,
    cursor,
    merge::Merge,
    registry::{RouteRegistry, StartError},
};
use crate::store::{Cancelled, Found, PageRequest, Rescheduled, ScheduleStatus, Scheduled};
use crate::{
    calendar::{Calendar, Span},
    message::{Cancellation, MessageId, NewMessage},
    metrics,
    spans::Spans,
    store::{
        Partition, StoreError,
        redis::{MAX_BODIES_BYTES, RedisStore, RouteSettings, UNREGISTERED},
    },
    time::{Due, MAX_DELAY_MILLIS, UnixMillis},
};
use arc_swap::ArcSwap;
use futures::future::{join_all, try_join_all};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Partitions that one listing reads at once: that many replies are in memory.
const LISTED_AT_ONCE: usize = 4;

/// Bytes of a part of a listing: for each partition, and in total at least.
const PARTITION_BYTES: u64 = 28 * 1024;
const SMALLEST_PART_BYTES: u64 = 256 * 1024;

/// An error says that not all partitions were reached.
fn any_changed(answers: Vec<Result<bool, StoreError>>) -> Result<bool, QueueError> {
    let changed: Vec<bool> = answers.into_iter().collect::<Result<_, _>>()?;
    Ok(changed.contains(&true))
}

/// The handle of the queues. It works on any instance, also while another instance runs.
pub struct Queue {
    tables: ArcSwap<Tables>,
    pub(super) registry: Arc<RouteRegistry>,
    spans: Spans,
}

/// The routes of one configuration.
struct Tables {
    store: Arc<RedisStore>,
    routes: BTreeMap<Arc<str>, Arc<QueueRoute>>,
}

/// Settings of a route that calls show.
#[derive(Clone, Debug, Default)]
pub struct ShownRoute {
    pub sink: Option<Arc<str>>,
    /// `None`: always open.
    pub window: Option<Arc<Calendar>>,
    /// The time of a claim is known from it.
    pub lease: Option<Duration>,
}

pub(super) struct QueueRoute {
    pub(super) shown: ShownRoute,
    /// The latest number of pending messages that was read.
    pub(super) pending: Mutex<Option<(Instant, u64)>>,
    /// In bytes.
    pub(super) max_payload: usize,
    pub(super) partitions: Vec<(Partition, Coalescer)>,
}

impl Queue {
    /// Serves the routes of `store`. `sinks`: sink names by route, for display; routes that are not configured have
    /// none. Must be called within a tokio runtime.
    pub fn new(store: Arc<RedisStore>, sinks: &BTreeMap<Arc<str>, Arc<str>>, allow_eviction: bool) -> Self {
        let shown = |(name, sink): (&Arc<str>, &Arc<str>)| {
            (name.clone(), ShownRoute { sink: Some(sink.clone()), ..ShownRoute::default() })
        };
        Self::showing(store, &sinks.iter().map(shown).collect(), allow_eviction)
    }

    /// Like `new`, with more to show.
    pub fn showing(store: Arc<RedisStore>, shown: &BTreeMap<Arc<str>, ShownRoute>, allow_eviction: bool) -> Self {
        let registry = Arc::new(RouteRegistry::new(store.clone(), allow_eviction));
        let tables = Tables::new(store, shown, &registry, |_| None);
        Self { tables: ArcSwap::new(Arc::new(tables)), registry, spans: Spans::default() }
    }

    /// Serves the routes of `store` from now on. Calls in progress end with the former ones. Routes that are not in
    /// `changed` keep their gathered calls. The next `prepare` registers the routes.
    pub fn replace(
        &self,
        store: Arc<RedisStore>,
        shown: &BTreeMap<Arc<str>, ShownRoute>,
        changed: impl Fn(&str) -> bool,
    ) {
        let former = self.tables.load_full();
        let unchanged = |name: &str| former.routes.get(name).filter(|_| !changed(name)).cloned();
        let tables = Tables::new(store.clone(), shown, &self.registry, unchanged);
        // In this order: when a route is known, it can be registered.
        self.registry.serve(store);
        self.tables.store(Arc::new(tables));
    }

    /// The store of the present routes.
    pub fn store(&self) -> Arc<RedisStore> {
        self.tables.load().store.clone()
    }

    /// Makes spans of accepted messages.
    #[must_use]
    pub fn with_spans(self, spans: Spans) -> Self {
        Self { spans, ..self }
    }

    /// The window of a route at `now`, on the clock of Redis; `None` if it is always open.
    pub fn window(&self, route: &str, now: UnixMillis) -> Option<RouteWindow> {
        let found = self.route(route).ok()?;
        let Span { open, since, until } = found.shown.window.as_ref()?.at(now.get());
        let [since, until] = [since, until].map(|at| at.and_then(UnixMillis::new));
        Some(RouteWindow { open, since, until })
    }

    /// Names of routes, sorted.
    pub fn routes(&self) -> Vec<Arc<str>> {
        self.tables.load().routes.keys().cloned().collect()
    }

    /// Whether the route is configured.
    pub fn has_route(&self, route: &str) -> bool {
        self.tables.load().routes.contains_key(route)
    }

    /// The sink of a route.
    pub fn sink(&self, route: &str) -> Option<Arc<str>> {
        self.tables.load().routes.get(route).and_then(|route| route.shown.sink.clone())
    }

    /// Maximum payload of a route, in bytes; 0 for an unknown route.
    pub fn max_payload(&self, route: &str) -> usize {
        self.tables.load().routes.get(route).map_or(0, |route| route.max_payload)
    }

    /// One result per message, in order. `via`: `api`, `dead`, or the name of a source.
    ///
    /// # Errors
    /// After `Store(Unavailable)` it is unknown which messages were stored: repeat with the same ids.
    pub async fn schedule(
        &self,
        route: &str,
        via: &str,
        mut messages: Vec<NewMessage>,
    ) -> Result<Vec<Scheduled>, QueueError> {
        let found = self.route(route)?;
        if let Some(large) = messages.iter().find(|message| message.payload.len() > found.max_payload) {
            let (size, most) = (large.payload.len(), found.max_payload);
            let text = format!("the payload of `{}` takes {size} bytes, at most {most}", large.id);
            return Err(StoreError::Refused { slug: "too-large".into(), text }.into());
        }
        messages.iter().try_for_each(|message| check_due(message.due))?;
        let spans = self.spans.creating(&mut messages);
        let scheduled = found
            .scatter(
                messages,
                |message| &message.id,
                |_, coalescer, part| async { Ok(coalescer.schedule(part).await?) },
            )
            .await;
        let error = scheduled.as_ref().err().map(ToString::to_string);
        spans.end(route, via, |index| match (&scheduled, &error) {
            (Ok(scheduled), _) => Ok(scheduled[index].status.as_str()),
            (Err(_), error) => Err(error.as_deref().unwrap_or_default()),
        });
        let scheduled = scheduled?;
        let new = scheduled
            .iter()
            .filter(|one| matches!(one.status, ScheduleStatus::Scheduled | ScheduleStatus::Revived))
            .count();
        metrics::scheduled(route, via, new as u64);
        Ok(scheduled)
    }

    /// `None` for an unknown id, and for a delivered or cancelled message that is not remembered.
    pub async fn get(&self, route: &str, id: &MessageId) -> Result<Option<Found>, QueueError> {
        let store = self.store();
        let partition = &self.partition(route, id)?;
        Ok(self.registry.when_open(|| store.get(partition, id)).await?)
    }

    /// Without `due` the message is due now, and the rate of its flow does not apply to it.
    pub async fn reschedule(&self, route: &str, id: &MessageId, due: Option<Due>) -> Result<Rescheduled, QueueError> {
        let store = self.store();
        due.map_or(Ok(()), check_due)?;
        let partition = &self.partition(route, id)?;
        Ok(self.registry.when_open(|| store.reschedule(partition, id, due)).await?)
    }

    pub async fn cancel(&self, route: &str, cancellation: &Cancellation) -> Result<Cancelled, QueueError> {
        let store = self.store();
        let partition = &self.partition(route, &cancellation.id)?;
        let cancelled = self.registry.when_open(|| store.cancel(partition, cancellation)).await?;
        match cancelled {
            Cancelled::Cancelled => metrics::cancelled(route, 1),
            Cancelled::Purged => metrics::purged(route, 1),
            Cancelled::Dead | Cancelled::InFlight | Cancelled::NotFound | Cancelled::Known => {}
        }
        Ok(cancelled)
    }

    /// Bytes of bodies in a part of a listing: little memory for a reader, and enough that many partitions do not need
    /// many calls for few messages.
    pub fn part_bytes(&self, route: &str) -> u64 {
        let partitions = self.tables.load().routes.get(route).map_or(1, |route| u64::from(route.count()));
        (partitions * PARTITION_BYTES).clamp(SMALLEST_PART_BYTES, MAX_BODIES_BYTES)
    }

    /// By the next attempt (pending), the lease's end (unack) or death (dead). A page has fewer messages than asked for
    /// if their bodies exceed `max_bytes`, at most 7 MiB, or if few of the examined messages match. Such a page can be
    /// empty; its cursor continues the listing. The cursor is in place of `after`.
    ///
    /// # Errors
    /// `Invalid` unless `list` made the cursor, in the same order.
    pub async fn list(&self, route: &str, page: &PageRequest<'_>, cursor: Option<&str>) -> Result<Page, QueueError> {
        let store = self.store();
        let found = self.route(route)?;
        let after = cursor.map(|cursor| cursor::decode(page.order, cursor)).transpose()?;
        // The size of a page is that of one reply, for any number of partitions.
        let max_bytes = page.max_bytes.min(MAX_BODIES_BYTES);
        let share = PageRequest { max_bytes: max_bytes / u64::from(found.count()), after: after.as_ref(), ..*page };
        let mut merged = Merge::new(page.limit, max_bytes, page.order);
        for group in found.partitions.chunks(LISTED_AT_ONCE) {
            let parts = group.iter().map(|(partition, _)| store.list(partition, &share));
            try_join_all(parts).await?.into_iter().for_each(|part| merged.add(part));
        }
        Ok(merged.finish())
    }

    /// Stops claims on all instances, until `resume`, on each partition that can be reached. `by` is one line. Returns whether that
    /// changed anything.
    pub async fn pause(&self, route: &str, by: &str, note: &str) -> Result<bool, QueueError> {
        let store = self.store();
        let partitions = self.all_partitions(route)?;
        let store = &store;
        let pause = |partition| self.registry.when_open(move || store.pause(partition, by, note));
        any_changed(join_all(partitions.iter().map(pause)).await)
    }

    /// Returns whether the route was paused.
    pub async fn resume(&self, route: &str) -> Result<bool, QueueError> {
        let store = self.store();
        let partitions = self.all_partitions(route)?;
        let store = &store;
        let resume = |partition| self.registry.when_open(move || store.resume(partition));
        any_changed(join_all(partitions.iter().map(resume)).await)
    }

    /// Sets the newest number of partitions of the route, 1 to `MAX_PARTITIONS`. The next instance that starts with
    /// this number moves the messages. Returns whether it was not the newest.
    pub async fn choose_partitions(&self, route: &str, partitions: u16) -> Result<bool, QueueError> {
        let store = self.store();
        self.route(route)?;
        Ok(self.registry.when_open(|| store.choose_partitions(route, partitions)).await?)
    }

    /// Includes the partitions that messages are moved from, because other instances may still deliver there.
    pub(super) fn all_partitions(&self, route: &str) -> Result<Vec<Partition>, QueueError> {
        let store = self.store();
        let found = self.route(route)?;
        let own = found.partitions.iter().map(|(partition, _)| partition.clone());
        Ok(store.former_partitions(route).into_iter().chain(own).collect())
    }

    /// Registers scripts and routes on the server, unless it has them.
    ///
    /// # Errors
    /// See `StartError::is_definite`.
    pub async fn prepare(&self) -> Result<(), StartError> {
        self.registry.prepare().await
    }

    /// Like `prepare`, after Redis was emptied on purpose: the loss is not an error.
    ///
    /// # Errors
    /// See `StartError::is_definite`.
    pub async fn prepare_again(&self) -> Result<(), StartError> {
        self.registry.forget().await;
        self.prepare().await
    }

    /// See `RouteRegistry::distrust`.
    pub async fn distrust(&self) {
        self.registry.distrust().await;
    }

    /// Whether some partitions can be served although `prepare` fails because a primary of a cluster is down.
    pub async fn may_serve_a_part(&self) -> bool {
        self.registry.may_serve_a_part().await
    }

    /// Whether messages are accepted and delivered now.
    ///
    /// # Errors
    /// The obstacle, as text for a person.
    pub async fn ready(&self) -> Result<(), String> {
        self.registry.check().await.map_err(|error| error.to_string())
    }

    /// Refuses an answer about all messages of a route if other partitions have replaced those that were looked at: they
    /// are empty.
    pub(super) async fn was_current(&self, route: &str) -> Result<(), QueueError> {
        let store = &self.store();
        let check = async || {
            if store.is_current(route).await? {
                return Ok(());
            }
            let text = format!("route `{route}` has another number of partitions than here");
            Err(StoreError::Unavailable { kind: UNREGISTERED, text })
        };
        Ok(self.registry.when_open(check).await?)
    }

    pub(super) fn route(&self, name: &str) -> Result<Arc<QueueRoute>, QueueError> {
        self.tables.load().routes.get(name).cloned().ok_or_else(|| QueueError::UnknownRoute(name.to_owned()))
    }

    pub(super) fn partition(&self, route: &str, id: &MessageId) -> Result<Partition, QueueError> {
        let route = self.route(route)?;
        Ok(route.at(id.partition(route.count())).0.clone())
    }
}

impl Tables {
    /// `unchanged`: the route as it is.
    fn new(
        store: Arc<RedisStore>,
        shown: &BTreeMap<Arc<str>, ShownRoute>,
        registry: &Arc<RouteRegistry>,
        unchanged: impl Fn(&str) -> Option<Arc<QueueRoute>>,
    ) -> Self {
        let route = |settings: &RouteSettings| {
            let name = settings.name.clone();
            if let Some(route) = unchanged(&name) {
                return (name, route);
            }
            let own = Arc::new(store.of_route(&name));
            let coalesced = |partition: Partition| {
                let coalescer = Coalescer::spawn(own.clone(), registry.clone(), partition.clone());
                (partition, coalescer)
            };
            let partitions = Partition::all(&name, settings.partitions).map(coalesced).collect();
            let shown = shown.get(&name).cloned().unwrap_or_default();
            (
                name,
                Arc::new(QueueRoute {
                    shown,
                    pending: Mutex::default(),
                    max_payload: settings.max_payload,
                    partitions,
                }),
            )
        };
        let routes = store.routes().map(route).collect();
        Self { store, routes }
    }
}

impl QueueRoute {
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.partitions.len()).expect("configured as u16")
    }

    /// `index`: the index of a partition of the route.
    pub(super) fn at(&self, index: u16) -> &(Partition, Coalescer) {
        &self.partitions[usize::from(index)]
    }

    pub(super) fn own(&self, partition: &Partition, ids: &[MessageId]) -> Vec<MessageId> {
        ids.iter().filter(|id| id.partition(self.count()) == partition.index).cloned().collect()
    }
}

/// Refuses a delay that would be stored as a time that no release can read.
///
/// # Errors
/// `Refused` with the error text.
pub fn check_due(due: Due) -> Result<(), StoreError> {
    match due {
        Due::After(millis) if millis > MAX_DELAY_MILLIS => {
            let text = format!("a delay of {millis} ms is too long: at most {MAX_DELAY_MILLIS}, which are 7,900 years");
            Err(StoreError::Refused { slug: "invalid-due".into(), text })
        }
        _ => Ok(()),
    }
}
