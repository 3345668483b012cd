//! Keeps Redis prepared for the queues: safe to use, scripts loaded, routes registered.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::{
    metrics,
    store::redis::{RedisStore, Registration, RegistrationError, SafetyError},
};

/// The kind of `punctual_redis_errors_total` for a server that has lost what it had.
const EMPTIED: &str = "emptied";

/// What a Redis has been told, and may have forgotten.
pub struct Registry {
    store: Arc<RedisStore>,
    allow_eviction: bool,
    /// The connection's generation that knows scripts and routes.
    registered: Mutex<Option<u64>>,
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
            StartError::Registration(error) => matches!(error, RegistrationError::Mismatch { .. }),
        }
    }
}

impl Registry {
    pub fn new(store: Arc<RedisStore>, allow_eviction: bool) -> Self {
        metrics::begin_redis_errors([EMPTIED]);
        Self { store, allow_eviction, registered: Mutex::new(None) }
    }

    /// Makes the server know scripts and routes, unless it does: then this is one command. A server that has forgotten
    /// routes it knew was emptied: that is told loudly, because messages are gone.
    ///
    /// Only the first time it may change the number of partitions of an empty route. Of two instances that want
    /// different ones the later to start has its way, and the other is not ready from then on.
    ///
    /// # Errors
    /// See `StartError::is_definite`.
    pub async fn prepare(&self) -> Result<(), StartError> {
        let mut registered = self.registered.lock().await;
        let known = self.store.is_registered().await.map_err(RegistrationError::Store)?;
        if known && *registered == Some(self.generation()) {
            return Ok(());
        }
        let evicting = self.check_safety().await?;
        let generation = self.generation();
        let first = registered.is_none();
        let routes = self.store.register(first).await?;
        if !first && routes.iter().any(|(_, registration)| *registration == Registration::Created) {
            metrics::redis_error(EMPTIED);
            tracing::error!(
                "redis has lost its data: routes that were registered are gone, and their messages with them"
            );
        }
        if let (true, Some(policy)) = (first, evicting) {
            tracing::warn!(policy, "redis evicts keys when it is full; noeviction is the safe policy");
        }
        *registered = Some(generation);
        Ok(())
    }

    /// Whether messages are accepted and delivered now.
    ///
    /// # Errors
    /// What stands in the way.
    pub async fn check(&self) -> Result<(), StartError> {
        self.check_safety().await?;
        self.prepare().await?;
        self.store.check_writable().await.map_err(RegistrationError::Store)?;
        Ok(())
    }

    /// The policy of an evicting server that is accepted.
    async fn check_safety(&self) -> Result<Option<String>, SafetyError> {
        self.store.check_safety(self.allow_eviction).await
    }

    fn generation(&self) -> u64 {
        *self.store.connection().generations().borrow()
    }
}
