//! Keeps Redis prepared for the queues: safe to use, scripts loaded, routes registered.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::{
    sync::Mutex,
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

/// The kind of `punctual_redis_errors_total` for a server that has lost what it had.
const EMPTIED: &str = "emptied";

/// While the rights of the user suffice, they are tried once in this time at most, however often readiness is asked for: it
/// takes 25 commands. After a refusal they are tried each time.
const RIGHTS_INTERVAL: Duration = Duration::from_secs(10);

/// Registers scripts and routes in Redis, again when it lost them.
pub struct RouteRegistry {
    store: Arc<RedisStore>,
    allow_eviction: bool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The connection's generation that knows scripts and routes.
    generation: Option<u64>,
    /// When the rights of this user were tried last, and sufficed.
    permitted: Option<Instant>,
    /// Whether it was logged that this user may not load scripts.
    told_of_load: bool,
    /// Whether it was logged that this user may not publish wake-ups.
    told_of_publish: bool,
}

/// Why the queues cannot be used yet, or at all.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Safety(#[from] SafetyError),
    #[error(transparent)]
    Registration(#[from] RegistrationError),
}

impl StartError {
    /// Whether waiting cannot help, so that a start must end.
    pub fn is_definite(&self) -> bool {
        match self {
            StartError::Safety(error) => error.is_definite(),
            StartError::Registration(error) => error.is_definite(),
        }
    }

    /// Whether Redis reads its data, and is usable once it has them.
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
        Self { store, allow_eviction, known: Mutex::default() }
    }

    /// Registers scripts and routes, unless the server has them: then this is one command. A server that lost registered
    /// routes was emptied: that is logged as an error, because messages were lost.
    ///
    /// Of two instances that are configured with different numbers of partitions, the newer number wins: its instance begins
    /// to move the messages, also when Redis came back with older data. The other one is not ready from then on, or does not
    /// start.
    ///
    /// # Errors
    /// See `StartError::is_definite`.
    pub async fn prepare(&self) -> Result<(), StartError> {
        let mut known = self.known.lock().await;
        let first = known.generation.is_none();
        // At first before anything else: a server that is refused need not know of routes.
        let safety = if first { Some(self.check_safety().await?) } else { None };
        known.check_rights(&self.store).await?;
        let is_registered = self.store.is_registered().await.map_err(RegistrationError::Store)?;
        let generation = self.generation();
        if is_registered && known.generation == Some(generation) {
            self.store.servers().found_master(generation).await;
            return Ok(());
        }
        if !first {
            self.check_safety().await?;
        }
        let generation = self.generation();
        let registrations = self.store.register().await?;
        if !first {
            tell_of_loss(&registrations);
        }
        let may_wake = self.store.may_wake().await.map_err(RegistrationError::Store)?;
        if let Some(safety) = safety {
            tell_of(&safety);
            let guarantee = self.store.guarantee().await.map_err(RegistrationError::Store)?;
            if let Some(guarantee) = guarantee {
                tracing::info!(guarantee, "replicas of redis");
            }
        }
        known.tell_of_rights(registrations.may_load, may_wake);
        known.generation = Some(generation);
        self.store.servers().found_master(generation).await;
        Ok(())
    }

    /// Whether some of it can be served although `prepare` fails, as a primary of a cluster does not answer.
    pub async fn may_serve_a_part(&self) -> bool {
        self.store.is_partly_open().await
    }

    /// Makes a call that is refused, with nothing done, while its partition is not open; once more where Redis had only
    /// forgotten that, all of it or this partition: the first post after that is often who notices. Opening it takes no
    /// longer than one command may.
    ///
    /// # Errors
    /// Those of the call; why its partition cannot be opened.
    pub async fn when_open<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T, StoreError> {
        match call().await {
            Err(StoreError::Unavailable { kind: UNREGISTERED, .. }) => {
                let limit = self.store.servers().timeout();
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
    /// What stands in the way.
    pub async fn check(&self) -> Result<(), StartError> {
        self.check_safety().await?;
        // It writes, too.
        self.prepare().await
    }

    /// A script was refused, or had no answer: the rights of the user are tried again by the next `prepare`.
    pub async fn distrust(&self) {
        self.known.lock().await.permitted = None;
    }

    async fn check_safety(&self) -> Result<Safety, SafetyError> {
        let safety = self.store.check_safety(self.allow_eviction).await?;
        if let Some(memory) = safety.memory {
            metrics::redis_memory(memory.used, memory.max);
        }
        Ok(safety)
    }

    fn generation(&self) -> u64 {
        *self.store.servers().generations().borrow()
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
            "redis does not let its user ask for everything: see yourself that it is 6.2 or later, a master and set \
             to noeviction, or grant the right to ask with `ACL SETUSER <user> +info`"
        );
    }
}

fn tell_of_loss(registrations: &Registrations) {
    let any = |wanted| registrations.routes.iter().any(|(_, registration)| *registration == wanted);
    if any(Registration::Created) {
        metrics::redis_error(EMPTIED);
        tracing::error!("redis has lost its data: routes that were registered are gone, and their messages with them");
    } else if any(Registration::Reopened) {
        metrics::redis_error(EMPTIED);
        tracing::error!("redis has lost keys of a partition: it is open again, but messages may be gone");
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
