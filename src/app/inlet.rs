//! A configured source, live. A new kind of source is one line in `Inlet::new`.

use std::sync::Arc;

use tokio::{sync::watch, task::JoinSet};

use super::backend::Backend;
use crate::{
    api,
    config::SourceConfig,
    metrics,
    queue::Queue,
    source::{Intake, Source, SourceStatus, Status, rabbitmq::RabbitMqSource},
};

/// Where the messages of some route come from.
#[derive(Clone)]
pub struct Inlet {
    name: Arc<str>,
    kind: &'static str,
    route: Arc<str>,
    source: Arc<dyn Source>,
    status: Arc<Status>,
}

impl Inlet {
    /// # Errors
    /// When the configuration cannot be used, with the source's name.
    pub fn new(name: &str, config: &SourceConfig, backend: &Backend) -> Result<Self, String> {
        let made: Result<(&'static str, Arc<dyn Source>), String> = match config {
            SourceConfig::RabbitMq(config) => RabbitMqSource::new(config, api::ulids(), rand::random())
                .map(|source| ("rabbitmq", Arc::new(source) as Arc<dyn Source>)),
            _ => Err("not yet".into()),
        };
        let (kind, source) = made.map_err(|error| format!("sources.{name}: {error}"))?;
        let _ = backend;
        Ok(Self { name: name.into(), kind, route: config.route().clone(), source, status: Arc::default() })
    }

    /// # Errors
    /// What is wrong, for a person.
    pub async fn check(&self) -> Result<(), String> {
        self.source.check().await
    }

    /// What GET /v1/sources tells; the depth goes into the metrics too.
    pub async fn status(&self) -> SourceStatus {
        let depth = self.source.depth().await;
        metrics::source_depth(&self.name, depth);
        let (state, last_error) = self.status.get();
        SourceStatus {
            name: self.name.to_string(),
            r#type: self.kind,
            route: self.route.to_string(),
            state,
            last_error,
            depth,
        }
    }
}

/// Runs all of them until `stop` says so.
///
/// # Panics
/// When one of them does.
pub async fn run(inlets: Vec<Inlet>, queue: Arc<Queue>, stop: watch::Receiver<bool>) {
    let mut tasks = JoinSet::new();
    for inlet in inlets {
        let intake = Intake::new(queue.clone(), &inlet.name, inlet.route, inlet.status, stop.clone());
        let stop = stop.clone();
        tasks.spawn(async move { inlet.source.run(intake, stop).await });
    }
    while let Some(end) = tasks.join_next().await {
        if let Err(error) = end
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
