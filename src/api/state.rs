//! The state that the handlers share.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::extract::FromRef;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    auth::{CurrentGuard, Guard},
    body::BodyMemory,
    deadline::Calls,
    health::Readiness,
    ids::NewId,
    metrics_page::MetricsPage,
    readers::Readers,
    reloads::Reloads,
    replaced::Replacements,
    statuses::Statuses,
    steps::Steps,
};
use crate::{
    config::{AuthConfig, Listen, ServerConfig},
    queue::Queue,
    time::wall_millis,
};

/// The queue, the bounds on calls, and other data that calls show.
pub struct Api {
    pub queue: Arc<Queue>,
    pub guard: CurrentGuard,
    pub has_console: bool,
    pub max_payload: usize,
    pub request_timeout: Duration,
    pub body_memory: BodyMemory,
    pub calls: Arc<Calls>,
    pub readers: Readers,
    pub readiness: Readiness,
    pub statuses: Statuses,
    pub metrics: MetricsPage,
    pub replacements: Replacements,
    pub new_id: NewId,
    /// `None`: the instance cannot read its configuration again.
    pub reloads: Option<Reloads>,
    pub started: Instant,
    /// The numbers of the charts.
    pub steps: Mutex<Steps>,
}

impl Api {
    /// `new_id` makes the ids of messages that come without one: `ulids()`, or predictable ids in a test.
    pub fn new(
        queue: Arc<Queue>,
        config: &ServerConfig,
        statuses: Statuses,
        metrics: MetricsPage,
        new_id: NewId,
    ) -> Self {
        let is_open = matches!(config.listen, Listen::Tcp(_));
        Self {
            guard: Arc::new(ArcSwap::from_pointee(Guard::new(config.auth.as_ref(), is_open, config.console))),
            readiness: Readiness::new(Arc::clone(&queue)),
            queue,
            has_console: config.console,
            max_payload: config.max_payload,
            request_timeout: config.request_timeout,
            body_memory: BodyMemory::default(),
            calls: Arc::new(Calls::new(config.request_timeout)),
            readers: Readers::default(),
            statuses,
            metrics,
            replacements: Replacements::default(),
            new_id,
            reloads: None,
            started: Instant::now(),
            steps: Mutex::new(Steps::new(wall_millis().get())),
        }
    }

    /// Adds the calls that read the configuration again.
    #[must_use]
    pub fn reloading(self, reloads: Reloads) -> Self {
        Self { reloads: Some(reloads), ..self }
    }

    /// Replaces the tokens.
    pub fn replace_tokens(&self, config: Option<&AuthConfig>) {
        let guard = self.guard.load().replaced(config);
        self.guard.store(Arc::new(guard));
    }
}

impl FromRef<Arc<Api>> for Readiness {
    fn from_ref(api: &Arc<Api>) -> Self {
        api.readiness.clone()
    }
}

impl FromRef<Arc<Api>> for Statuses {
    fn from_ref(api: &Arc<Api>) -> Self {
        api.statuses.clone()
    }
}
