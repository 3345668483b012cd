//! The queues in Redis.
//!
//! Each partition of a route has its own keys under one hash tag (`keys`). Only Lua scripts move a message between the
//! sorted sets pending, unack and dead: one file per transition in `lua/`, each with one typed function here.
//! Scheduling and related calls are in `schedule` and `dead`, claiming and settling (the scheduler's `Store`) in
//! `engine`, moves of other programs' messages in `external`. Small calls of the scheduler are bundled (`bundler`).
//! Calls of producers go through `writes`, which can wait for replicas. Wake-ups arrive on a separate connection
//! (`wake`).

mod acceptance;
mod bundler;
pub mod connection;
mod dead;
mod development;
mod edit;
mod engine;
mod external;
mod filter;
mod flows;
mod forward;
mod generations;
mod groups;
mod history;
mod keys;
mod message_pack;
mod pending;
mod queries;
mod registered;
mod repartition;
mod replication;
mod reply;
mod rights;
mod route;
mod safety;
mod schedule;
mod schedules;
mod script;
#[cfg(test)]
pub mod simulated;
#[cfg(test)]
mod tests;
mod wake;
mod writes;

pub use dead::Evicted;
pub use development::Coming;
pub use engine::MAX_ERROR_BYTES;
pub use external::{ExternalDue, ExternalEntry, ExternalPlace, MoveOutcome, MovedEntry, PendingCapacity};
pub use filter::FILTERED_BYTES;
pub use forward::{HOLD, Outbox, Outgoing, Turn};
pub use groups::{CancelledGroup, GroupMember, GroupMembers};
pub use history::{EndPlace, EndsPart};
pub use keys::DelayQueueKeys;
pub use pending::Named;
pub use queries::{HORIZONS, Listed, ListedPart, PartitionForecast, PartitionStats};
pub use repartition::{Carried, Moved};
pub use rights::{check_list, check_place};
pub use route::{Registration, RegistrationError, Registrations, RouteSettings};
pub use safety::{Safety, SafetyError};
pub use script::use_development_clock;
pub use wake::WakeListener;
pub use writes::Durability;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use bundler::Bundler;
use generations::Generations;
use keys::PartitionKeys;
use parking_lot::Mutex;
use writes::Writes;

use crate::{
    message::FlowLimits,
    store::{
        Partition, RouteFlow, StoreError, WakeSignal,
        redis::connection::{Connection, Servers},
    },
};

/// Version of the keys and of their content, as stored in `P:routes`.
pub const DATA_VERSION: u32 = 1;

/// The kind of `StoreError::Unavailable` when a partition is not open in Redis with the layout of this instance: Redis
/// was emptied, or the number of partitions changed.
pub const UNREGISTERED: &str = "unregistered";

/// Maximum bytes of bodies in a script's reply. With a thousand ids, error texts and the protocol, the reply stays
/// below 8 MiB, which Redis and this process buffer at once.
pub const MAX_BODIES_BYTES: u64 = 7 * 1024 * 1024;

/// Maximum bytes of a script call that carries bodies.
pub const MAX_CALL_BYTES: usize = 4 * 1024 * 1024;

/// Maximum number of ids in one script call. Lua's `unpack` takes 7,999 values, and a script uses up to two for an id.
/// Such a call blocks Redis for 1-4 ms.
pub const MAX_BATCH: usize = 1000;

/// The queues of one Redis or one cluster. Cheap to create: the API and the scheduler have one each, so that a large
/// claim does not delay a call of the API.
pub struct RedisStore {
    servers: Servers,
    /// `None` on a cluster, where a call is for one partition only.
    bundlers: Option<Bundlers>,
    /// For calls of producers and sources: schedule, reschedule, cancel, bury.
    writes: Arc<Writes>,
    /// For `get` and `list`, which have large replies.
    listings: Servers,
    prefix: String,
    routes: BTreeMap<Arc<str>, StoreRoute>,
    /// Notified when a message of the route becomes dead.
    burials: BTreeMap<Arc<str>, Vec<Arc<WakeSignal>>>,
}

#[derive(Clone)]
struct Bundlers {
    claims: Arc<Bundler>,
    settlements: Arc<Bundler>,
    transfers: Arc<Bundler>,
}

struct StoreRoute {
    settings: RouteSettings,
    /// One for each partition.
    keys: Vec<PartitionKeys>,
    state: Arc<RouteState>,
}

/// Facts about a route in Redis that stores with other settings of the route share.
#[derive(Default)]
struct RouteState {
    /// The number of partitions from which messages are moved, or 0.
    former: AtomicU16,
    /// The generations that this instance knows.
    generations: Mutex<Generations>,
}

impl StoreRoute {
    fn former(&self) -> Option<u16> {
        Some(self.state.former.load(Ordering::Relaxed)).filter(|former| *former > 0)
    }

    /// The version with which the `route` key of a partition begins.
    fn version(&self) -> String {
        format!("{DATA_VERSION}{}", if self.former().is_some() { "m" } else { "" })
    }

    fn generations(&self) -> Generations {
        self.state.generations.lock().clone()
    }

    fn learn(&self, others: &Generations) {
        self.state.generations.lock().unite(others);
    }

    /// The keys of a script, and behind them the flow keys of the partition, if the route has flows.
    fn with_flow<'a>(&self, mut all: Vec<&'a str>, keys: &'a PartitionKeys) -> Vec<&'a str> {
        all.extend(self.settings.flow.iter().flat_map(|_| keys.flow.all()));
        all
    }

    /// Like `with_flow`, with the keys of the history before those of the flows: for scripts that end messages.
    fn with_history<'a>(&self, mut all: Vec<&'a str>, keys: &'a PartitionKeys) -> Vec<&'a str> {
        all.extend(self.settings.history.iter().flat_map(|_| [&*keys.history, &keys.ended]));
        self.with_flow(all, keys)
    }

    /// Like `with_history`, with the outbox of a route that forwards its dead letters first: for scripts that make
    /// messages dead.
    fn with_outbox<'a>(&self, mut all: Vec<&'a str>, keys: &'a PartitionKeys) -> Vec<&'a str> {
        all.extend(self.settings.forwards.then_some(&*keys.outbox));
        self.with_history(all, keys)
    }

    /// Whether calls of the route have keys that `with_outbox` adds.
    fn has_features(&self) -> bool {
        self.settings.forwards || self.settings.history.is_some() || self.settings.flow.is_some()
    }

    /// The limits of the history as lua/include/history.lua reads them; empty without a history.
    fn history_settings(&self) -> String {
        self.settings.history_shares().map_or_else(String::new, |(age, max)| format!("{max} {age}"))
    }

    /// Whether the flows of the route are ordered.
    fn has_order(&self) -> bool {
        self.settings.flow.as_ref().is_some_and(|flow| flow.limits.ordered)
    }

    /// The settings of the flows as lua/include/rates.lua reads them; empty without flows.
    fn flow_settings(&self) -> String {
        let Some(RouteFlow { limits, .. }) = &self.settings.flow else { return String::new() };
        let FlowLimits { rate, burst, parallel, ordered } = limits;
        let rate = rate.map_or_else(|| "-".to_owned(), |rate| rate.to_string());
        let parallel = parallel.map_or_else(|| "-".to_owned(), |parallel| parallel.to_string());
        format!("{rate} {burst} {parallel} {}", u8::from(*ordered))
    }

    /// The `route` key of an open partition.
    fn opened(&self, number: u16) -> String {
        format!("{} {} {number} {}", self.version(), self.settings.partitions, self.settings.to_text())
    }

    fn mismatch(&self, stored: String) -> RegistrationError {
        let (route, partitions) = (self.settings.name.to_string(), self.settings.partitions);
        RegistrationError::Mismatch { route, stored, partitions }
    }

    fn set_former(&self, former: Option<u16>) {
        self.state.former.store(former.unwrap_or(0), Ordering::Relaxed);
    }
}

impl RedisStore {
    pub fn new(servers: impl Into<Servers>, prefix: &str, routes: impl IntoIterator<Item = RouteSettings>) -> Self {
        let servers = servers.into();
        let bundlers = |connection: &Arc<Connection>| {
            let bundler = |script| Bundler::new(script, connection.clone());
            Bundlers {
                claims: bundler(&script::CLAIMS),
                settlements: bundler(&script::SETTLEMENTS),
                transfers: bundler(&script::TRANSFERS),
            }
        };
        let store = Self {
            bundlers: servers.single().map(bundlers),
            writes: Writes::new(servers.clone(), None),
            listings: servers.clone(),
            servers,
            prefix: prefix.to_owned(),
            routes: BTreeMap::new(),
            burials: BTreeMap::new(),
        };
        store.serving(routes)
    }

    /// A store of these routes over the connections of this one, without signals of deaths. It knows what this store
    /// knows about their partitions in Redis.
    #[must_use]
    pub fn serving(&self, routes: impl IntoIterator<Item = RouteSettings>) -> Self {
        let keys_of = PartitionKeys::naming(self.servers.cluster().is_some());
        let route = |settings: RouteSettings| {
            let all = Partition::all(&settings.name, settings.partitions);
            let keys = all.map(|partition| keys_of(&self.prefix, &partition)).collect();
            let known = self.routes.get(&settings.name);
            let known = known.filter(|known| known.settings.partitions == settings.partitions);
            let state = known.map_or_else(Arc::default, |known| known.state.clone());
            (settings.name.clone(), StoreRoute { settings, keys, state })
        };
        Self {
            servers: self.servers.clone(),
            bundlers: self.bundlers.clone(),
            writes: self.writes.clone(),
            listings: self.listings.clone(),
            prefix: self.prefix.clone(),
            routes: routes.into_iter().map(route).collect(),
            burials: BTreeMap::new(),
        }
    }

    /// A store of one route of this one, over the same connections and with the same signals of deaths.
    #[must_use]
    pub fn of_route(&self, name: &str) -> Self {
        let settings = self.routes.get(name).map(|route| route.settings.clone());
        let burials = self.burials.get_key_value(name).map(|(name, signals)| (name.clone(), signals.clone()));
        self.serving(settings).notifying_of_deaths(burials.into_iter().collect())
    }

    /// Uses a separate connection for `get` and `list`.
    #[must_use]
    pub fn listing_over(self, listings: impl Into<Servers>) -> Self {
        Self { listings: listings.into(), ..self }
    }

    /// Makes calls of producers succeed only once replicas have confirmed them. `servers` must be for these calls only.
    #[must_use]
    pub fn confirming_over(self, servers: impl Into<Servers>, durability: Durability) -> Self {
        Self { writes: Writes::new(servers.into(), Some(durability)), ..self }
    }

    /// Adds signals that notify when this store makes messages of their routes dead.
    #[must_use]
    pub fn notifying_of_deaths(self, burials: BTreeMap<Arc<str>, Vec<Arc<WakeSignal>>>) -> Self {
        Self { burials, ..self }
    }

    fn buried(&self, partition: &Partition) {
        for signal in self.burials.get(&partition.route).into_iter().flatten() {
            signal.notify();
        }
    }

    /// The limits of a partition of a route: messages, and bytes of bodies. `None`: no limit.
    pub fn limits_of_partition(&self, route: &str) -> [Option<u64>; 2] {
        let [messages, bytes, _] = self.routes.get(route).map_or([0; 3], |route| route.settings.shares());
        [messages, bytes].map(|share| (share > 0).then_some(share))
    }

    /// The routes that this store serves, by name.
    pub fn routes(&self) -> impl Iterator<Item = &RouteSettings> {
        self.routes.values().map(|route| &route.settings)
    }

    /// Whether the route has flows.
    pub fn has_flows(&self, route: &str) -> bool {
        self.routes.get(route).is_some_and(|route| route.settings.flow.is_some())
    }

    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    fn route(&self, name: &str) -> Result<&StoreRoute, StoreError> {
        let unknown = || StoreError::Refused { slug: "unknown-route".into(), text: format!("no route `{name}`") };
        self.routes.get(name).ok_or_else(unknown)
    }

    fn keys(&self, partition: &Partition) -> Result<&PartitionKeys, StoreError> {
        let unknown =
            || StoreError::Refused { slug: "unknown-route".into(), text: format!("no partition {partition}") };
        let route = self.routes.get(&partition.route).filter(|route| route.settings.partitions == partition.count);
        route.and_then(|route| route.keys.get(usize::from(partition.index))).ok_or_else(unknown)
    }

    /// The keys of a partition of any route and count.
    fn any_keys(&self, partition: &Partition) -> PartitionKeys {
        PartitionKeys::naming(self.servers.cluster().is_some())(&self.prefix, partition)
    }

    /// The beginning of the partition's `route` key while the partition is open with the layout of this instance.
    fn layout(&self, partition: &Partition) -> Result<String, StoreError> {
        let route = self.route(&partition.route)?;
        Ok(format!("{} {} {} ", route.version(), partition.count, partition.index))
    }
}

/// Makes the refusal of a closed partition `Unavailable`, because that can change. Other refusals are permanent.
fn unless_closed(error: StoreError) -> StoreError {
    match error {
        StoreError::Refused { slug, text } if slug == UNREGISTERED => {
            StoreError::Unavailable { kind: UNREGISTERED, text }
        }
        other => other,
    }
}
