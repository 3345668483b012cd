//! Keeps Redis prepared for the queues: safe to use, scripts loaded, routes registered.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::FutureExt;
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, timeout},
};

use crate::{
    metrics,
    store::{
        StoreError,
        redis::{
            RedisStore, Registration, RegistrationError, Registrations, Safety, SafetyError, UNREGISTERED,
            connection::is_loading,
        },
    },
};

/// The kind of `punctual_redis_errors_total` for a server that lost its data.
const EMPTIED: &str = "emptied";

/// Minimum interval of checks of the user's permissions while they suffice, independent of the number of readiness
/// checks: a check takes 25 commands. After a refusal every call checks them.
const RIGHTS_INTERVAL: Duration = Duration::from_secs(10);

/// Registers scripts and routes in Redis, and again after Redis lost them.
pub struct RouteRegistry {
    /// Has the routes of the latest configuration.
    store: ArcSwap<RedisStore>,
    /// Number of times that the store was replaced.
    replaced: AtomicU64,
    allow_eviction: bool,
    known: Mutex<Known>,
    /// Number of times that routes were registered that were not there.
    registered: watch::Sender<u64>,
}

#[derive(Default)]
struct Known {
    /// The generation of the connection that has scripts and routes.
    generation: Option<u64>,
    /// The number of replacements of the store at the latest registration.
    replaced: u64,
    /// Names of routes that were registered. Their absence is a loss.
    routes: BTreeSet<String>,
    /// The latest time at which the permissions of this user were checked and sufficed.
    permitted: Option<Instant>,
    /// Whether it was logged that this user is not allowed to load scripts.
    told_of_load: bool,
    /// Whether it was logged that this user is not allowed to publish wake-ups.
    told_of_publish: bool,
}

/// The reason why the queues cannot be used, for now or permanently.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Safety(#[from] SafetyError),
    #[error(transparent)]
    Registration(#[from] RegistrationError),
}

impl StartError {
    /// Whether the error is permanent, so that the start must fail.
    pub fn is_definite(&self) -> bool {
        match self {
            StartError::Safety(error) => error.is_definite(),
            StartError::Registration(error) => error.is_definite(),
        }
    }

    /// Whether Redis is loading its data, and will be usable after that.
    pub fn is_loading(&self) -> bool {
        match self {
            StartError::Safety(SafetyError::Store(error))
            | StartError::Registration(RegistrationError::Store(error)) => is_loading(error),
            _ => false,
        }
    }
}

impl RouteRegistry {
    pub fn new(store: Arc<RedisStore>, allow_eviction: bool) -> Self {
        metrics::begin_redis_errors([EMPTIED]);
        metrics::wakeups_denied(0);
        Self {
            store: ArcSwap::new(store),
            replaced: AtomicU64::new(0),
            allow_eviction,
            known: Mutex::default(),
            registered: watch::Sender::new(0),
        }
    }

    /// Replaces the store. The next `prepare` registers its routes.
    pub fn serve(&self, store: Arc<RedisStore>) {
        self.store.store(store);
        self.replaced.fetch_add(1, Ordering::SeqCst);
    }

    fn store(&self) -> Arc<RedisStore> {
        self.store.load_full()
    }

    /// Registers scripts and routes. If the server has them, this takes one command, plus the check of permissions. A
    /// server that lost registered routes was emptied, which is logged as an error because messages were lost.
    ///
    /// If two instances are configured with different numbers of partitions, the newer number takes effect: its
    /// instance begins to move the messages, also when Redis comes back with older data. The other instance is not
    /// ready from then on, or does not start.
    ///
    /// # Errors
    /// See `StartError::is_definite`.
    pub async fn prepare(&self) -> Result<(), StartError> {
        let mut known = self.known.lock().await;
        let first = known.generation.is_none();
        // Read before the store: a replacement after this is registered by the next call.
        let replaced = self.replaced.load(Ordering::SeqCst);
        let store = self.store();
        // At the first call safety is checked first, so that a refused server gets no routes.
        let safety = if first { Some(self.check_safety().await?) } else { None };
        known.check_rights(&store).await?;
        let is_registered = store.is_registered().await.map_err(RegistrationError::Store)?;
        let generation = self.generation();
        if is_registered && known.generation == Some(generation) && known.replaced == replaced {
            store.servers().found_master(generation).await;
            return Ok(());
        }
        if !first {
            self.check_safety().await?;
        }
        let generation = self.generation();
        let registrations = store.register().await?;
        if registrations.routes.iter().any(|(_, registration)| *registration != Registration::Kept) {
            self.registered.send_modify(|times| *times += 1);
        }
        if !first {
            known.tell_of_loss(&registrations);
        }
        known.routes.extend(registrations.routes.iter().map(|(name, _)| name.clone()));
        let may_wake = store.may_wake().await.map_err(RegistrationError::Store)?;
        if let Some(safety) = safety {
            tell_of(&safety);
            let guarantee = store.guarantee().await.map_err(RegistrationError::Store)?;
            if let Some(guarantee) = guarantee {
                tracing::info!(guarantee, "replicas of redis");
            }
        }
        known.tell_of_rights(registrations.may_load, may_wake);
        known.generation = Some(generation);
        known.replaced = replaced;
        store.servers().found_master(generation).await;
        Ok(())
    }

    /// The next preparation is like the first one: Redis is emptied on purpose.
    pub async fn forget(&self) {
        self.known.lock().await.generation = None;
    }

    /// Changes when routes are registered that were not there.
    pub fn registered(&self) -> watch::Receiver<u64> {
        self.registered.subscribe()
    }

    /// Whether some partitions can be served although `prepare` fails because a primary of a cluster is down.
    pub async fn may_serve_a_part(&self) -> bool {
        self.store().is_partly_open().await
    }

    /// Makes a call that is refused without effect while its partition is not open. If Redis lost its data or this
    /// partition, opens the partition and repeats the call once: the first post after such a loss often detects it.
    /// Opening takes at most the timeout of one command.
    ///
    /// # Errors
    /// Those of the call, and the error of opening its partition.
    pub async fn when_open<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, StoreError> {
        match call().await {
            Err(StoreError::Unavailable { kind: UNREGISTERED, .. }) => {
                let limit = self.store().servers().timeout();
                let opened =
                    timeout(limit, self.prepare().boxed()).await.map_err(|_| format!("not opened in {limit:?}"));
                let opened = opened.and_then(|prepared| prepared.map_err(|error| error.to_string()));
                opened.map_err(|text| StoreError::Unavailable { kind: UNREGISTERED, text })?;
                call().await
            }
            answer => answer,
        }
    }

    /// Whether messages are accepted and delivered now.
    ///
    /// # Errors
    /// The obstacle.
    pub async fn check(&self) -> Result<(), StartError> {
        self.check_safety().await?;
        // `prepare` also checks that Redis accepts writes.
        self.prepare().await
    }

    /// After a refused script or a call without a reply, the next `prepare` checks the user's permissions again.
    pub async fn distrust(&self) {
        self.known.lock().await.permitted = None;
    }

    async fn check_safety(&self) -> Result<Safety, SafetyError> {
        let safety = self.store().check_safety(self.allow_eviction).await?;
        if let Some(memory) = safety.memory {
            metrics::redis_memory(memory.used, memory.max);
        }
        Ok(safety)
    }

    fn generation(&self) -> u64 {
        *self.store().servers().generations().borrow()
    }
}

fn tell_of(safety: &Safety) {
    if let Some(policy) = &safety.evicting {
        tracing::warn!(policy, "redis evicts keys when it is full; noeviction is the safe policy");
    }
    if !safety.unchecked.is_empty() {
        let unchecked = safety.unchecked.join(", ");
        tracing::warn!(
            unchecked,
            "redis does not let its user ask for everything: see yourself that it is 6.2 or later, a primary and set \
             to noeviction, or grant the right to ask with `ACL SETUSER <user> +info`"
        );
    }
}

impl Known {
    async fn check_rights(&mut self, store: &RedisStore) -> Result<(), SafetyError> {
        if self.permitted.is_none_or(|at| at.elapsed() >= RIGHTS_INTERVAL) {
            self.permitted = None;
            store.check_rights().await?;
            self.permitted = Some(Instant::now());
        }
        Ok(())
    }

    /// Logs the loss of routes that were registered before.
    fn tell_of_loss(&self, registrations: &Registrations) {
        let known = |(name, registration): &(String, Registration), wanted| {
            *registration == wanted && self.routes.contains(name)
        };
        let any = |wanted| registrations.routes.iter().any(|one| known(one, wanted));
        if any(Registration::Created) {
            metrics::redis_error(EMPTIED);
            tracing::error!(
                "redis has lost its data: routes that were registered are gone, and their messages with them"
            );
        } else if any(Registration::Reopened) {
            metrics::redis_error(EMPTIED);
            tracing::error!("redis has lost keys of a partition: it is open again, but messages may be gone");
        }
    }

    fn tell_of_rights(&mut self, may_load: bool, may_wake: bool) {
        if !may_load && !self.told_of_load {
            tracing::warn!("redis denies its user SCRIPT LOAD: scripts are sent with the first call of each instead");
            self.told_of_load = true;
        }
        if !may_wake {
            metrics::wakeups_denied(1);
            if !self.told_of_publish {
                tracing::warn!(
                    "redis denies its user PUBLISH: what it schedules may be late by up to `max_sleep`; grant it with \
                     `ACL SETUSER <user> +publish &<channel>`"
                );
                self.told_of_publish = true;
            }
        }
    }
}
