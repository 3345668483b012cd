//! The state that the handlers share.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::extract::FromRef;
use tokio::time::Instant;

use super::{
    auth::Guard, body::BodyMemory, deadline::Calls, health::Readiness, ids::NewId, metrics_page::MetricsPage,
    readers::Readers, replaced::Replacements, statuses::Statuses,
};
use crate::{
    config::{Listen, ServerConfig},
    queue::Queue,
};

/// The queue, the bounds on calls, and other data that calls show.
pub struct Api {
    pub queue: Arc<Queue>,
    pub routes: Arc<BTreeSet<Arc<str>>>,
    pub guard: Arc<Guard>,
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
    pub started: Instant,
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
        let routes: Arc<BTreeSet<_>> = Arc::new(queue.routes().into_iter().collect());
        let is_open = matches!(config.listen, Listen::Tcp(_));
        Self {
            guard: Arc::new(Guard::new(config.auth.as_ref(), is_open, config.console, Arc::clone(&routes))),
            readiness: Readiness::new(Arc::clone(&queue)),
            routes,
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
            started: Instant::now(),
        }
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
