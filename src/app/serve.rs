//! `punctual serve`: starts everything, runs until a signal, and stops in order.
//!
//! Start: API (livez 200, readyz 503), embedded Redis, preparation of Redis, and then wake-ups, scheduler and sources.
//! Stop: sources and claims end, sends complete, other claimed messages are released, the API completes its requests,
//! the sinks close, then the embedded Redis stops. A second signal ends the waiting.

use std::{sync::Arc, time::Duration};

use axum::Router;
use futures::future::OptionFuture;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{oneshot, watch},
    task::{JoinError, JoinHandle},
    time::{Instant, interval, timeout_at},
};

use super::{
    backend::Backend,
    embedded::{self, Embedded, Home},
    instance::Instance,
    keeper,
    listening::{listen, listen_for_probes},
    memory, open_files, settings,
    sinks::RunningSink,
    sources,
    spans::{self, Exporting},
};
use crate::{
    api::{self, Api, ConnectionLimits, MetricsPage},
    config::{Config, RedisTopology},
    incidents::Incidents,
    metrics,
    sink::inbox::Inbox,
    store::redis::use_development_clock,
};

/// Interval at which the exporter aggregates its samples. Samples that are not aggregated yet take memory.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Share of `shutdown_timeout` that is reserved for the embedded Redis.
const REDIS_SHARE: f64 = 0.3;

/// Share of `request_timeout` that GET /v1/sinks and /v1/sources wait for checks.
const STATUS_SHARE: f64 = 0.5;

/// The reason why an instance ended without a signal.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A setting that only a library can check is wrong.
    #[error("{0}")]
    Configuration(String),
    /// An address in use, an unusable Redis, an embedded Redis that does not start, or a defect.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for ServeError {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

/// Runs an instance until SIGTERM or SIGINT, then returns within `shutdown_timeout`.
///
/// # Errors
/// The reason.
pub async fn serve(config: Config) -> Result<(), ServeError> {
    run(config, None).await
}

/// Like `serve`, with a development clock and an inbox. To be called before Redis is used in this process.
///
/// # Errors
/// The reason.
pub async fn serve_in_development(config: Config, inbox: Arc<Inbox>) -> Result<(), ServeError> {
    use_development_clock();
    run(config, Some(inbox)).await
}

async fn run(config: Config, inbox: Option<Arc<Inbox>>) -> Result<(), ServeError> {
    let mut stop = Stop::listen()?;
    let recorder = install_recorder()?;
    open_files::raise_limit();
    let running_sinks = settings::check(&config).map_err(ServeError::Configuration)?;
    let listener = listen(&config.server).await?;
    let probes = listen_for_probes(&config.server).await?;
    let home = home(&config)?;
    let backend = Backend::new(&config.redis, home.as_ref().map(Home::url)).map_err(ServeError::Configuration)?;
    let running_sources = sources::all(&config, &backend).map_err(ServeError::Configuration)?;
    let incidents = Incidents::default();
    let (spans, exporter) = spans::open(&config, &incidents).map_err(ServeError::Configuration)?;
    let exporting = exporter.map(Exporting::start);
    let around = (incidents, spans);
    let instance = Instance::new(&config, &backend, running_sinks, running_sources, around, rand::random());

    let (stopping, stopped) = watch::channel(false);
    let statuses = instance.statuses(config.server.request_timeout.mul_f64(STATUS_SHARE));
    let page = MetricsPage::new(instance.queue.clone(), recorder, statuses.sources.clone());
    let api = Arc::new(Api::new(instance.queue.clone(), &config.server, statuses, page, api::ulids()));
    let limits = ConnectionLimits::of_process(config.server.max_connections_per_address);
    let calls = api::serve(listener, router(&instance, &api, inbox), limits, asked(stopped.clone()));
    let probes = probes
        .map(|probes| api::serve(probes, api::probes(api), ConnectionLimits::of_probes(), asked(stopped.clone())));
    let mut server = tokio::spawn(async {
        tokio::join!(calls, OptionFuture::from(probes));
    });
    tell_of_start(&config);

    let check_own_lists = instance.check_sinks();
    let mut embedded = None;
    let started = match home {
        None => Ok(true),
        Some(home) => tokio::select! {
            started = Embedded::start_in(home) => started.map(|server| embedded = Some(server)).map(|()| true),
            () = stop.asked() => embedded::shut_down(&config.redis.data_dir).await.map(|()| false),
        },
    };

    let (prepared, preparation) = oneshot::channel();
    let generations = instance.store.servers().generations();
    let subscriptions = instance.wakes.subscriptions();
    let (queue, wakes, scheduler) = (instance.queue.clone(), instance.wakes, instance.scheduler);
    let upkeep =
        instance.upkeep.run(queue.clone(), instance.store.clone(), instance.incidents.clone(), stopped.clone());
    let sources = sources::run(instance.running_sources, queue.clone(), instance.incidents.clone(), stopped.clone());
    let mut deliveries = tokio::spawn(async move {
        tokio::select! {
            Ok(()) = preparation => check_own_lists(),
            () = asked(stopped.clone()) => return,
        }
        let work = async { tokio::join!(scheduler.run(stopped.clone()), sources, upkeep) };
        tokio::select! {
            // Without routes `work` ends at once.
            _ = work => asked(stopped).await,
            () = wakes.run() => {}
        }
    });
    let (incidents, waiting) = (instance.incidents.clone(), &instance.waiting);
    let reports = incidents.report(|subject| async move { waiting.count(&subject).await });
    let ended = match started {
        Ok(false) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(true) => tokio::select! {
            () = stop.asked() => Ok(()),
            () = reports => Ok(()),
            () = backend.follow() => Ok(()),
            refused = keeper::keep(queue, generations, subscriptions, prepared, incidents.clone()) => Err(refused.to_string()),
            // If one of them ended alone, nothing would be delivered or served while /livez replies 200.
            end = &mut deliveries => Err(format!("deliveries ended: {}", told(end))),
            end = &mut server => Err(format!("the API ended: {}", told(end))),
        },
    };

    tracing::info!(timeout = ?config.shutdown_timeout, "stopping");
    let whole = Instant::now() + config.shutdown_timeout;
    let redis_share = if embedded.is_some() { config.shutdown_timeout.mul_f64(REDIS_SHARE) } else { Duration::ZERO };
    stopping.send_replace(true);
    instance.running_sinks.values().for_each(RunningSink::stop);
    let orderly = async {
        finish("deliveries", &mut deliveries, whole - redis_share).await;
        finish("requests", &mut server, whole - redis_share).await;
        for (name, sink) in &instance.running_sinks {
            if timeout_at(whole - redis_share, sink.close()).await.is_err() {
                tracing::warn!(sink = name, "did not close in time");
            }
        }
        if let Some(exporting) = exporting {
            exporting.finish(whole - redis_share).await;
        }
    };
    tokio::select! {
        () = orderly => {}
        () = stop.asked() => tracing::warn!("told twice: not waiting any longer"),
    }
    instance.incidents.finish();
    if let Some(embedded) = embedded
        && timeout_at(whole, embedded.stop()).await.is_err()
    {
        tracing::warn!("the embedded redis-server still runs; the next start takes it over");
    }
    if ended.is_ok() {
        tracing::info!("stopped");
    }
    Ok(ended?)
}

fn router(instance: &Instance, api: &Arc<Api>, inbox: Option<Arc<Inbox>>) -> Router {
    match inbox {
        None => api::router(api.clone()),
        Some(inbox) => api::development_router(instance.development(api.clone(), inbox)),
    }
}

/// The directory of the embedded Redis, if it is used.
fn home(config: &Config) -> Result<Option<Home>, ServeError> {
    Ok(match config.redis.topology() {
        RedisTopology::Embedded => {
            let home = Home::open(&config.redis.data_dir).map_err(|error| error.to_string())?;
            Some(home.with_max_memory(config.redis.max_memory.0))
        }
        RedisTopology::Url(_) | RedisTopology::Sentinel(_) | RedisTopology::Cluster(_) => None,
    })
}

fn tell_of_start(config: &Config) {
    let (address, tls) = (&config.server.listen, config.server.tls.is_some());
    let health = config.server.health_listen.map(tracing::field::display);
    tracing::info!(%address, tls, health, routes = config.routes.len(), sinks = config.sinks.len(), "punctual is listening");
    memory::check(config);
}

fn told(end: Result<(), JoinError>) -> String {
    end.err().map_or_else(|| "for no reason".to_owned(), |error| error.to_string())
}

async fn asked(mut stopped: watch::Receiver<bool>) {
    // A dropped sender is a request to stop, too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Aborts the task at the deadline. The leases of its messages expire, and the messages are delivered again.
async fn finish(what: &str, task: &mut JoinHandle<()>, deadline: Instant) {
    if task.is_finished() {
        return;
    }
    match timeout_at(deadline, &mut *task).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "{what} ended with a defect"),
        Err(_) => {
            tracing::warn!("{what} did not end in time");
            task.abort();
        }
    }
}

/// SIGTERM or SIGINT.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn install_recorder() -> Result<PrometheusHandle, String> {
    let recorder = PrometheusBuilder::new()
        .set_buckets(&metrics::BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| format!("metrics: {error}"))?;
    metrics::describe();
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        let mut ticks = interval(UPKEEP_INTERVAL);
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(recorder)
}
