//! A live source, made from its configuration.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

use super::{backend::Backend, clock::RedisClock};
use crate::{
    api,
    config::{Config, all_or_errors},
    incidents::Incidents,
    metrics,
    queue::Queue,
    source::{Bells, Intake, QueueRedis, Source, SourceHealth, SourceSettings, SourceSetup, SourceState, SourceStatus},
};

/// A source of one route.
#[derive(Clone)]
pub struct RunningSource {
    name: Arc<str>,
    kind: &'static str,
    route: Arc<str>,
    source: Arc<dyn Source>,
    health: Arc<SourceHealth>,
}

/// The configured sources with names that `wanted` returns true for, by name.
///
/// # Errors
/// Everything that cannot be used, one line each.
pub fn all(
    config: &Config,
    backend: &Backend,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, RunningSource>, String> {
    let open = |(name, source): (&String, &Arc<dyn SourceSettings>)| {
        let source = RunningSource::new(name, &**source, || Ok(backend), config.max_sleep)?;
        Ok((name.clone(), source))
    };
    all_or_errors(config.sources.iter().filter(|(name, _)| wanted(name)).map(open))
}

/// Makes and drops all parts that can be made without Redis.
///
/// # Errors
/// Everything that cannot be used, one line each.
pub fn check_settings(config: &Config) -> Result<(), String> {
    let elsewhere = config.sources.iter().filter(|(_, source)| !source.is_on_redis());
    all_or_errors(elsewhere.map(|(name, source)| {
        RunningSource::new(name, &**source, || Err("needs Redis".into()), config.max_sleep).map(drop)
    }))
}

impl RunningSource {
    /// `backend` is called only by sources on the queue's Redis. `max_sleep`: maximum time that such a source sleeps
    /// without a signal.
    ///
    /// # Errors
    /// The source's name and its error, if the configuration cannot be used.
    pub fn new<'a>(
        name: &str,
        settings: &dyn SourceSettings,
        backend: impl Fn() -> Result<&'a Backend, String>,
        max_sleep: Duration,
    ) -> Result<Self, String> {
        let redis = || {
            let (connection, database) = backend()?.connection()?;
            Ok(QueueRedis { database, connection })
        };
        let setup = SourceSetup { redis: &redis, max_sleep, new_id: api::ulids(), seed: rand::random() };
        let source = settings.open(setup).map_err(|error| format!("sources.{name}: {error}"))?;
        let (kind, route) = (settings.kind(), settings.route().clone());
        Ok(Self { name: name.into(), kind, route, source, health: Arc::default() })
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The depth, as `Source::depth` returns it.
    pub async fn depth(&self) -> Option<u64> {
        self.source.depth().await
    }

    pub fn route(&self) -> &Arc<str> {
        &self.route
    }

    /// The configured `type`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Signals that wake the source while it runs.
    pub fn bells(&self) -> Option<&Bells> {
        self.source.bells()
    }

    /// # Errors
    /// The error as text for a person.
    pub async fn check(&self) -> Result<(), String> {
        self.source.check().await
    }

    /// A recommendation for a safer setup as text for a person, if `check` found no error.
    pub async fn advice(&self) -> Option<String> {
        self.source.advice().await
    }

    /// The data of GET /v1/sources. Also sets the metric of the depth, unless reading it takes longer than `max_wait`.
    pub async fn status(&self, max_wait: Duration, clock: &RedisClock) -> SourceStatus {
        let (depth, clock) = tokio::join!(timeout(max_wait, self.source.depth()), clock.read(max_wait));
        let depth = depth.unwrap_or_default();
        let times = self.health.times();
        let at = |instant| clock.map(|clock| clock.millis_at(instant));
        let (state, last_error) = self.health.get();
        metrics::source(&self.name, self.kind, state == SourceState::Running, depth);
        SourceStatus {
            name: self.name.to_string(),
            r#type: self.kind,
            route: self.route.to_string(),
            state,
            since: at(times.since),
            last_error,
            last_error_at: times.last_error.and_then(at),
            last_success_at: times.last_success.and_then(at),
            depth,
        }
    }

    /// Takes messages until `stop`. Reports outages to `incidents`.
    pub async fn run(self, queue: Arc<Queue>, incidents: Incidents, stop: watch::Receiver<bool>) {
        let intake = Intake::new(queue, &self.name, self.route, self.health, stop.clone());
        self.source.run(intake.reporting_to(incidents), stop).await;
    }
}
