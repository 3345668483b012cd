//! Routes in Redis: registered with their partitions, paused and resumed.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    DATA_VERSION, RedisStore, StoreRoute, UNREGISTERED,
    generations::Generations,
    keys::{PartitionKeys, routes_key},
    script,
};
use crate::{
    message::{HistoryLimits, MAX_PARTITIONS, MessageId, Metadata, Remember, RouteLimits},
    sink::template::FlowTemplate,
    store::{Partition, RouteFlow, StoreError},
    time::MAX_DELAY_MILLIS,
};

/// The result of registering a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    Created,
    Kept,
    /// The route was known, but one of its partitions was not open.
    Reopened,
}

/// The result of registering all routes.
#[derive(Clone, Debug)]
pub struct Registrations {
    /// The results by route name.
    pub routes: Vec<(String, Registration)>,
    /// Whether this user has the right to load scripts. Otherwise calls carry the script's text.
    pub may_load: bool,
}

/// Attempts to register a route that other instances change at the same time: each instance changes it once.
const MAX_ATTEMPTS: usize = 20;

/// Why a route cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    #[error(
        "route `{route}` is stored as {stored}, but this release and configuration want version {DATA_VERSION} \
         and {partitions} partitions. While its messages are moved from a `former` number of partitions, another move \
         cannot begin: set `routes.{route}.partitions` as stored until it is done"
    )]
    Mismatch { route: String, stored: String, partitions: u16 },
    #[error(
        "route `{route}` has {stored} partitions, which replaced the {partitions} of this configuration: an older number does \
         not replace a newer one by itself. Set `routes.{route}.partitions: {stored}`; to go back on purpose, run `punctual \
         repartition {route} {partitions}` against an instance that runs, then start this one again"
    )]
    Outdated { route: String, stored: u16, partitions: u16 },
    #[error(
        "route `{route}` has {stored} partitions in Redis and {partitions} in this configuration. On a cluster their number \
         cannot be changed: set `routes.{route}.partitions` to {stored}, or give a route of another name {partitions} partitions"
    )]
    OnCluster { route: String, stored: u16, partitions: u16 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RegistrationError {
    /// Whether waiting cannot help.
    pub fn is_definite(&self) -> bool {
        !matches!(self, Self::Store(_))
    }
}

/// The settings for scheduling on a route.
#[derive(Clone, Debug)]
pub struct RouteSettings {
    pub name: Arc<str>,
    /// 1 to `MAX_PARTITIONS`.
    pub partitions: u16,
    /// Bytes, at most 3 MiB.
    pub max_payload: usize,
    pub remember: Option<Remember>,
    pub limits: RouteLimits,
    pub flow: Option<RouteFlow>,
    /// Dead letters are forwarded to another route.
    pub forwards: bool,
    /// `None`: nothing is kept of messages that end.
    pub history: Option<HistoryLimits>,
}

/// The JSON of a route in `P:routes`.
#[derive(Serialize, Deserialize)]
struct StoredRoute {
    version: u32,
    partitions: u16,
    max_payload: usize,
    /// The number of partitions from which messages are moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    former: Option<u16>,
    /// Absent while the route has had one number of partitions only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generations: Option<Generations>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remember: Option<StoredRemember>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limits: Option<StoredLimits>,
}

#[derive(Serialize, Deserialize)]
struct StoredRemember {
    /// Milliseconds.
    r#for: u64,
    max: u32,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<u64>,
}

impl StoredLimits {
    fn new(limits: RouteLimits) -> Option<Self> {
        let RouteLimits { messages, bytes, delay } = limits;
        (limits != RouteLimits::default()).then(|| Self { messages, bytes, delay: delay.map(whole_millis) })
    }
}

impl From<StoredLimits> for RouteLimits {
    fn from(StoredLimits { messages, bytes, delay }: StoredLimits) -> Self {
        Self { messages, bytes, delay: delay.map(Duration::from_millis) }
    }
}

/// Milliseconds, at most `MAX_DELAY_MILLIS`.
fn whole_millis(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX).min(MAX_DELAY_MILLIS)
}

/// A route as stored in `P:routes`.
pub(super) struct KnownRoute {
    pub settings: RouteSettings,
    /// The number of partitions from which messages are moved.
    pub former: Option<u16>,
    pub generations: Generations,
}

impl RouteSettings {
    /// One partition, and none of the features that a route can have.
    #[cfg(any(test, feature = "testing"))]
    pub fn plain(name: &str, max_payload: usize) -> Self {
        Self {
            name: name.into(),
            partitions: 1,
            max_payload,
            remember: None,
            limits: RouteLimits::default(),
            flow: None,
            forwards: false,
            history: None,
        }
    }

    /// `former`: the number of partitions from which messages are moved.
    pub(super) fn to_json(&self, former: Option<u16>, generations: &Generations) -> String {
        let Self { name: _, partitions, max_payload, .. } = *self;
        let remember = self.remember.filter(|_| self.keep_millis() > 0);
        let remember = remember.map(|one| StoredRemember { r#for: self.keep_millis(), max: one.max });
        let limits = StoredLimits::new(self.limits);
        let is_first = generations.is_empty() || *generations == Generations::first(partitions);
        let generations = (!is_first).then(|| generations.clone());
        let stored =
            StoredRoute { version: DATA_VERSION, partitions, max_payload, former, generations, remember, limits };
        serde_json::to_string(&stored).expect("numbers always serialize")
    }

    /// `None`: written by another release or program.
    pub(super) fn from_json(name: &str, json: &str) -> Option<KnownRoute> {
        let StoredRoute { version, partitions, max_payload, former, generations, remember, limits } =
            serde_json::from_str(json).ok()?;
        let possible = |partitions| (1..=MAX_PARTITIONS).contains(&partitions);
        let ours = version == DATA_VERSION && possible(partitions) && former.is_none_or(possible);
        let remember = remember.map(|one| Remember { period: Duration::from_millis(one.r#for), max: one.max });
        let limits = limits.map_or_else(RouteLimits::default, RouteLimits::from);
        let generations = generations.unwrap_or_else(|| Generations::first(partitions));
        let name = name.into();
        let settings =
            Self { name, partitions, max_payload, remember, limits, flow: None, forwards: false, history: None };
        ours.then_some(KnownRoute { settings, former, generations })
    }

    /// How long a completed message is remembered, in milliseconds; 0: not at all.
    pub(super) fn keep_millis(&self) -> u64 {
        self.remember.map_or(0, |remember| whole_millis(remember.period))
    }

    /// The limits of one partition: messages, and bytes of bodies; then the maximum delay in ms. 0: no limit.
    pub(super) fn shares(&self) -> [u64; 3] {
        let RouteLimits { messages, bytes, delay } = self.limits;
        let share = |limit: Option<u64>| limit.map_or(0, |limit| (limit / u64::from(self.partitions)).max(1));
        [share(messages), share(bytes), delay.map_or(0, |delay| whole_millis(delay).max(1))]
    }

    /// The metadata of a message as it is stored: with its flow, if the route has flows and the message has none of its
    /// own.
    pub(super) fn with_flow<'a>(&self, metadata: &'a Metadata) -> Cow<'a, Metadata> {
        let own = metadata.flow.as_ref().is_some_and(|flow| !flow.is_empty());
        let key = self.flow.as_ref().and_then(|flow| flow.key.as_ref());
        let flow = key.filter(|_| !own).map(|key| key.render(&self.name, metadata));
        match flow.filter(|flow| !flow.is_empty()) {
            Some(flow) => Cow::Owned(Metadata { flow: Some(flow), ..metadata.clone() }),
            None => Cow::Borrowed(metadata),
        }
    }

    /// The rest of a partition's `route` key, after version, partitions and index.
    pub(super) fn to_text(&self) -> String {
        let text = format!("{} {}", self.max_payload, self.keep_millis());
        let limits = if self.limits == RouteLimits::default() {
            String::new()
        } else {
            let [messages, bytes, delay] = self.shares();
            format!(" {messages} {bytes} {delay}")
        };
        let flow = self.flow.as_ref().map_or_else(String::new, |flow| {
            let key = flow.key.as_ref().map_or_else(String::new, FlowTemplate::to_string);
            format!(" flow {key}")
        });
        let history = self.history_shares().map_or_else(String::new, |(age, max)| format!(" history {age} {max}"));
        format!("{text}{limits}{history}{flow}")
    }

    /// The limits of the history of one partition: age in milliseconds, and number of ends.
    pub(super) fn history_shares(&self) -> Option<(u64, u32)> {
        let HistoryLimits { period, max } = self.history?;
        Some((whole_millis(period), max.div_ceil(u32::from(self.partitions)).max(1)))
    }

    /// How many completed messages a partition remembers.
    pub(super) fn kept_by_partition(&self) -> u32 {
        self.remember.map_or(0, |remember| remember.max.div_ceil(u32::from(self.partitions)))
    }
}

impl RedisStore {
    /// Loads the scripts, registers every route and opens its partitions. Safe to repeat: writes only what differs. If
    /// a route is stored with an older number of partitions, one script changes the number and closes the former
    /// partitions, from which `move_some` moves the messages. From then on, an instance that wants the former number
    /// can schedule nothing.
    pub async fn register(&self) -> Result<Registrations, RegistrationError> {
        let may_load = self.load_scripts().await?;
        let mut registrations = Vec::new();
        for (name, route) in &self.routes {
            registrations.push((name.to_string(), self.register_route(route).await?));
        }
        Ok(Registrations { routes: registrations, may_load })
    }

    async fn load_scripts(&self) -> Result<bool, StoreError> {
        for connection in self.servers.all().await? {
            for script in script::all() {
                if !script.load(&connection).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn register_route(&self, route: &StoreRoute) -> Result<Registration, RegistrationError> {
        let settings = &route.settings;
        let mut stored = String::new();
        for _ in 0..MAX_ATTEMPTS {
            stored = match self.try_to_register(route, &stored).await? {
                Ok(registration) => {
                    route.learn(&Generations::first(settings.partitions));
                    return Ok(registration);
                }
                Err(stored) => stored,
            };
            let Some(known) = RouteSettings::from_json(&settings.name, &stored) else {
                return Err(route.mismatch(stored));
            };
            route.learn(&known.generations);
            if known.settings.partitions == settings.partitions {
                route.set_former(known.former);
            } else {
                self.replace_number(route, &known, &stored).await?;
            }
        }
        let text = format!("other instances change route `{}` at the same time", settings.name);
        Err(StoreError::Unavailable { kind: UNREGISTERED, text }.into())
    }

    /// Begins to move the route from the number of partitions of `known`, which is stored as `stored`, unless that
    /// number is newer.
    async fn replace_number(
        &self,
        route: &StoreRoute,
        known: &KnownRoute,
        stored: &str,
    ) -> Result<(), RegistrationError> {
        let RouteSettings { name, partitions, .. } = &route.settings;
        let generations = self.replacing((name, *partitions), known, stored, route.generations())?;
        Ok(self.begin_move(route, known, stored, &generations).await?)
    }

    /// The generations of a route after its number of partitions is replaced. `generations`: the known ones.
    fn replacing(
        &self,
        (name, partitions): (&str, u16),
        known: &KnownRoute,
        stored: &str,
        mut generations: Generations,
    ) -> Result<Generations, RegistrationError> {
        let (route, registered) = (name.to_owned(), known.settings.partitions);
        if self.servers.cluster().is_some() {
            return Err(RegistrationError::OnCluster { route, stored: registered, partitions });
        }
        let own = generations.of(partitions);
        if own > 0 && own <= generations.of(registered) {
            return Err(RegistrationError::Outdated { route, stored: registered, partitions });
        }
        if known.former.is_some() {
            return Err(RegistrationError::Mismatch { route, stored: stored.to_owned(), partitions });
        }
        if own == 0 {
            generations.choose(partitions);
        }
        Ok(generations)
    }

    /// The number of partitions from which a start with `partitions` would move the messages of a route; `None` if it
    /// would not. Only reads.
    ///
    /// # Errors
    /// Those with which the start would be refused.
    pub async fn would_move(&self, name: &str, partitions: u16) -> Result<Option<u16>, RegistrationError> {
        let routes_key = routes_key(&self.prefix);
        let stored: Option<String> =
            self.servers.run(&routes_key, redis::cmd("HGET").arg(&routes_key).arg(name)).await?;
        let Some(stored) = stored else { return Ok(None) };
        let Some(known) = RouteSettings::from_json(name, &stored) else {
            return Err(RegistrationError::Mismatch { route: name.to_owned(), stored, partitions });
        };
        if known.settings.partitions == partitions {
            return Ok(None);
        }
        self.replacing((name, partitions), &known, &stored, known.generations.clone())?;
        Ok(Some(known.settings.partitions))
    }

    /// Makes `partitions` the newest number of `route`: the next instance that starts with it moves the messages there,
    /// even if another number replaced it before. Returns whether it was not the newest.
    ///
    /// # Errors
    /// `Refused` on a cluster.
    pub async fn choose_partitions(&self, route: &str, partitions: u16) -> Result<bool, StoreError> {
        let route = self.route(route)?;
        if self.servers.cluster().is_some() {
            let text = "on a redis cluster the number of partitions cannot be changed".to_owned();
            return Err(StoreError::Refused { slug: "cluster".into(), text });
        }
        let (name, routes_key) = (&route.settings.name, routes_key(&self.prefix));
        for _ in 0..MAX_ATTEMPTS {
            let stored: Option<String> =
                self.servers.run(&routes_key, redis::cmd("HGET").arg(&routes_key).arg(&**name)).await?;
            let known = stored.as_ref().and_then(|stored| RouteSettings::from_json(name, stored));
            let (Some(stored), Some(known)) = (stored, known) else {
                let text = format!("route `{name}` is not registered");
                return Err(StoreError::Unavailable { kind: UNREGISTERED, text });
            };
            route.learn(&known.generations);
            let mut generations = route.generations();
            generations.choose(partitions);
            let text = known.settings.to_json(known.former, &generations);
            let call = script::REGISTER.keys(&[&routes_key]).arg(&**name).arg(stored).arg(text);
            let reply: String = call.run(&self.servers).await?;
            if matches!(reply.as_str(), "kept" | "updated") {
                return Ok(reply == "updated");
            }
        }
        let text = format!("other instances change route `{name}` at the same time");
        Err(StoreError::Unavailable { kind: UNREGISTERED, text })
    }

    /// `stored`: the route as it was read last, or empty. The inner error: the different route that is stored.
    async fn try_to_register(
        &self,
        route: &StoreRoute,
        stored: &str,
    ) -> Result<Result<Registration, String>, StoreError> {
        let StoreRoute { settings, keys, .. } = route;
        let routes_key = routes_key(&self.prefix);
        let is_cluster = self.servers.cluster().is_some();
        let opened = if is_cluster { &[] } else { &keys[..] };
        let all: Vec<&str> = [&*routes_key].into_iter().chain(opened.iter().map(|keys| keys.route.as_str())).collect();
        let mut call = script::REGISTER.keys(&all).arg(&*settings.name).arg(stored);
        call = call.arg(settings.to_json(route.former(), &route.generations()));
        for (index, _) in (0..).zip(opened) {
            call = call.arg(route.opened(index));
        }
        let reply: String = call.run(&self.servers).await?;
        let registration = match reply.as_str() {
            "created" => Registration::Created,
            "reopened" => Registration::Reopened,
            "kept" | "updated" => Registration::Kept,
            _ => return Ok(Err(reply)),
        };
        if !is_cluster {
            return Ok(Ok(registration));
        }
        let is_reopened = self.open_each(route).await?;
        Ok(Ok(if is_reopened && registration == Registration::Kept { Registration::Reopened } else { registration }))
    }

    /// Whether this user has the right to publish wake-ups, tested with one wake-up for each route: a script does not
    /// report that its own is denied, and only users with more rights can ask in advance (ACL DRYRUN).
    pub async fn may_wake(&self) -> Result<bool, StoreError> {
        for keys in self.routes.values().filter_map(|route| route.keys.first()) {
            if self.publish(keys, "").await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Publishes a wake-up, like lua/include/wake.lua. Returns the number of receivers; `None` if this user has no
    /// right to publish.
    pub(super) async fn publish(&self, keys: &PartitionKeys, text: &str) -> Result<Option<u64>, StoreError> {
        let publish = async |command: &str| {
            let mut command = redis::cmd(command);
            command.arg(&keys.wake).arg(text);
            self.servers.run_if_permitted(&keys.wake, &command).await
        };
        if self.servers.cluster().is_some()
            && let Some(heard) = publish("SPUBLISH").await?
        {
            return Ok(Some(heard));
        }
        publish("PUBLISH").await
    }

    /// The registered routes with this release's data version, by name. Includes routes that other instances
    /// registered.
    pub async fn known_routes(&self) -> Result<Vec<RouteSettings>, StoreError> {
        Ok(self.known().await?.into_iter().map(|known| known.settings).collect())
    }

    async fn known(&self) -> Result<Vec<KnownRoute>, StoreError> {
        let routes_key = routes_key(&self.prefix);
        let known: BTreeMap<String, String> =
            self.servers.run(&routes_key, redis::cmd("HGETALL").arg(&routes_key)).await?;
        Ok(known.iter().filter_map(|(name, json)| RouteSettings::from_json(name, json)).collect())
    }

    /// The partitions of all registered routes that `id` belongs to, also former ones.
    pub async fn known_partitions(&self, id: &MessageId) -> Result<Vec<Partition>, StoreError> {
        let known = self.known().await?.into_iter();
        let partitions =
            known.flat_map(|KnownRoute { settings: RouteSettings { name, partitions, .. }, former, .. }| {
                let counts = [Some(partitions), former].into_iter().flatten();
                counts.map(move |count| Partition { route: name.clone(), index: id.partition(count), count })
            });
        Ok(partitions.collect())
    }

    /// Pauses a current or former partition of a route. `by`: one line. Waits for replicas, if durability requires it.
    /// Returns whether that changed anything.
    pub async fn pause(&self, partition: &Partition, by: &str, note: &str) -> Result<bool, StoreError> {
        self.set_paused(partition, &["pause", by, note]).await
    }

    /// Waits for replicas, as `pause`. Returns whether the partition was paused.
    pub async fn resume(&self, partition: &Partition) -> Result<bool, StoreError> {
        self.set_paused(partition, &["resume"]).await
    }

    async fn set_paused(&self, partition: &Partition, change: &[&str]) -> Result<bool, StoreError> {
        let keys = self.any_keys(partition);
        // A former partition is closed.
        let layout = if self.keys(partition).is_ok() { self.layout(partition)? } else { String::new() };
        let call = script::PAUSE.keys(&[&keys.paused, &keys.route]).arg(&keys.wake).arg(layout).arg(change);
        self.run_at_once(partition, call).await
    }
}
