//! `punctual serve`: starts everything, runs until a signal, and stops in order.
//!
//! Start: API (livez 200, readyz 503), embedded Redis, preparation of Redis, and then wake-ups, scheduler and sources.
//! Stop: sources and claims end, sends complete, other claimed messages are released, the API completes its requests,
//! the sinks close, then the embedded Redis stops. A second signal ends the waiting.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::Router;
use futures::future::OptionFuture;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinHandle},
    time::{Instant, interval, timeout_at},
};

use super::{
    backend::Backend,
    embedded::{self, Embedded, Home},
    instance::{Instance, Opened},
    keeper,
    listening::{listen, listen_for_probes},
    memory, open_files,
    reload::{Load, Reloader},
    settings, sources,
    spans::{self, Exporting},
    unit::Panic,
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

/// Maximum number of calls that wait until the configuration is read again.
const MAX_RELOADS: usize = 16;

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

/// Runs an instance until SIGTERM or SIGINT, then returns within `shutdown_timeout`. `load` reads the configuration again.
///
/// # Errors
/// The reason.
pub async fn serve(config: Config, load: Load) -> Result<(), ServeError> {
    run(config, load, None).await
}

/// Like `serve`, with a development clock and an inbox. To be called before Redis is used in this process.
///
/// # Errors
/// The reason.
pub async fn serve_in_development(config: Config, load: Load, inbox: Arc<Inbox>) -> Result<(), ServeError> {
    use_development_clock();
    run(config, load, Some(inbox)).await
}

async fn run(config: Config, load: Load, inbox: Option<Arc<Inbox>>) -> Result<(), ServeError> {
    let (mut stop, mut hangups) = (Stop::listen()?, listen_for(SignalKind::hangup())?);
    let recorder = install_recorder()?;
    open_files::raise_limit();
    let sinks = settings::check(&config).map_err(ServeError::Configuration)?;
    let (listener, certificate) = listen(&config.server)?;
    let probes = listen_for_probes(&config.server)?;
    let home = home(&config)?;
    let backend = Backend::new(&config.redis, home.as_ref().map(Home::url)).map_err(ServeError::Configuration)?;
    let backend = Arc::new(backend);
    let sources = sources::all(&config, &backend, |_| true).map_err(ServeError::Configuration)?;
    let incidents = Incidents::default();
    let (spans, exporter) = spans::open(&config, &incidents).map_err(ServeError::Configuration)?;
    let exporting = exporter.map(Exporting::start);
    let (config, opened, around) = (Arc::new(config), Opened { sinks, sources }, (incidents, spans));
    let (opening, (panics, panicked)) = (watch::Sender::new(false), mpsc::unbounded_channel());
    let watched = (opening.subscribe(), panics);
    let instance = Instance::new(config.clone(), backend.clone(), opened, around, watched, rand::random());
    let instance = Arc::new(instance);

    let (stopping, stopped) = watch::channel(false);
    let statuses = instance.statuses(config.server.request_timeout.mul_f64(STATUS_SHARE));
    let page = MetricsPage::new(instance.queue.clone(), recorder, statuses.sources.clone());
    let (reloads, mut requests) = mpsc::channel(MAX_RELOADS);
    let api = Api::new(instance.queue.clone(), &config.server, statuses, page, api::ulids());
    let api = Arc::new(api.reloading(reloads));
    api::keep_charts(api.clone());
    let limits = ConnectionLimits::of_process(config.server.max_connections_per_address);
    let calls = api::serve(listener, router(&instance, &api, inbox), limits, asked(stopped.clone()));
    let probes = probes.map(|probes| serve_probes(probes, api.clone(), stopped.clone()));
    let mut server = tokio::spawn(async {
        tokio::join!(calls, OptionFuture::from(probes));
    });
    tell_of_start(&config);

    instance.check_sinks(|_, sink| !sink.is_on_redis());
    let mut embedded = None;
    let started = match home {
        None => Ok(true),
        Some(home) => tokio::select! {
            started = Embedded::start_in(home) => started.map(|server| embedded = Some(server)).map(|()| true),
            () = stop.asked() => embedded::shut_down(&config.redis.data_dir).await.map(|()| false),
        },
    };

    let (prepared, preparation) = oneshot::channel();
    let generations = instance.queue.store().servers().generations();
    let subscriptions = instance.wakes.subscriptions();
    let whole = Arc::new(OnceLock::new());
    let mut deliveries =
        tokio::spawn(deliver(instance.clone(), preparation, opening, panicked, stopped, whole.clone()));
    let (incidents, waiting) = (instance.incidents.clone(), instance.waiting());
    let waiting = &waiting;
    let reports = incidents.report(|subject| async move { waiting.count(&subject).await });
    let queue = instance.queue.clone();
    let reloader = Reloader { load, instance: instance.clone(), api, certificate, removed: Vec::new() };
    let ended = match started {
        Ok(false) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(true) => tokio::select! {
            () = stop.asked() => Ok(()),
            () = reports => Ok(()),
            () = backend.follow() => Ok(()),
            () = reloader.run(&mut requests, &mut hangups) => Ok(()),
            refused = keeper::keep(queue, generations, subscriptions, prepared, incidents.clone()) => Err(refused.to_string()),
            // If one of them ended alone, nothing would be delivered or served while /livez replies 200.
            end = &mut deliveries => Err(format!("deliveries ended: {}", told(end))),
            end = &mut server => Err(format!("the API ended: {}", told(end))),
        },
    };
    drop(requests);

    tracing::info!(timeout = ?config.shutdown_timeout, "stopping");
    let end = Instant::now() + config.shutdown_timeout;
    let redis_share = if embedded.is_some() { config.shutdown_timeout.mul_f64(REDIS_SHARE) } else { Duration::ZERO };
    let _ = whole.set(end - redis_share);
    stopping.send_replace(true);
    instance.begin_stop();
    let orderly = async {
        finish("deliveries", &mut deliveries, end - redis_share).await;
        finish("requests", &mut server, end - redis_share).await;
        for (name, sink) in instance.sinks() {
            if timeout_at(end - redis_share, sink.close()).await.is_err() {
                tracing::warn!(sink = name, "did not close in time");
            }
        }
        if let Some(exporting) = exporting {
            exporting.finish(end - redis_share).await;
        }
    };
    tokio::select! {
        () = orderly => {}
        () = stop.asked() => tracing::warn!("told twice: not waiting any longer"),
    }
    instance.incidents.finish();
    if let Some(embedded) = embedded
        && timeout_at(end, embedded.stop()).await.is_err()
    {
        tracing::warn!("the embedded redis-server still runs; the next start takes it over");
    }
    if ended.is_ok() {
        tracing::info!("stopped");
    }
    Ok(ended?)
}

async fn serve_probes(listener: TcpListener, api: Arc<Api>, stopped: watch::Receiver<bool>) {
    api::serve(listener, api::probes(api), ConnectionLimits::of_probes(), asked(stopped)).await;
}

/// Opens the parts when Redis is prepared, and waits for their end after `stopped`. `end`: set before the stop.
async fn deliver(
    instance: Arc<Instance>,
    preparation: oneshot::Receiver<()>,
    opening: watch::Sender<bool>,
    mut panicked: mpsc::UnboundedReceiver<Panic>,
    stopped: watch::Receiver<bool>,
    end: Arc<OnceLock<Instant>>,
) {
    tokio::select! {
        Ok(()) = preparation => instance.check_sinks(|_, sink| sink.is_on_redis()),
        () = asked(stopped.clone()) => return,
    }
    opening.send_replace(true);
    let ended = async {
        asked(stopped).await;
        instance.stop(*end.get().expect("set before the stop")).await;
    };
    tokio::select! {
        () = ended => {}
        () = instance.wakes.run() => {}
        // A part must not stop unnoticed.
        Some(panic) = panicked.recv() => std::panic::resume_unwind(panic),
    }
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
    let digest = config.digest();
    metrics::reloaded(true);
    metrics::config(digest.number(), false);
    let (address, tls) = (&config.server.listen, config.server.tls.is_some());
    let health = config.server.health_listen.map(tracing::field::display);
    tracing::info!(%address, tls, health, %digest, routes = config.routes.len(), sinks = config.sinks.len(), "punctual is listening");
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
        Ok(Self { terminate: listen_for(SignalKind::terminate())?, interrupt: listen_for(SignalKind::interrupt())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Replaces the default action of the signal, which would end the process.
fn listen_for(kind: SignalKind) -> Result<Signal, String> {
    signal(kind).map_err(|error| format!("cannot listen for signals: {error}"))
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
