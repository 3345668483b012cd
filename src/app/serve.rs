//! `punctual serve`: starts everything, runs until a signal, and stops in order.
//!
//! Start: embedded Redis, API (livez 200, readyz 503), then, once Redis was prepared, wake-ups and scheduler.
//! Stop: no more claims, what is being sent ends, the rest is released, the API finishes its requests, the sinks
//! let go, the embedded Redis is the last to leave.

use std::{sync::Arc, time::Duration};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, interval, timeout_at},
};

use super::{backend::Backend, embedded::Embedded, instance::Instance, keeper};
use crate::{
    api::{self, Api, MetricsPage},
    config::{Config, RedisUrl},
    metrics,
};

/// How often the exporter folds its samples: unscraped ones take memory until then.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Runs an instance until SIGTERM or SIGINT, and returns within `shutdown_timeout` then.
///
/// # Errors
/// What ended the start: an address in use, a Redis that must not be used, an embedded one that does not start.
pub async fn serve(config: Config) -> Result<(), String> {
    let mut stop = Stop::listen()?;
    let recorder = install_recorder()?;
    let listen = config.server.listen;
    let listener = TcpListener::bind(listen).await.map_err(|error| format!("server.listen {listen}: {error}"))?;
    let embedded = match config.redis.url {
        RedisUrl::Embedded => Some(Embedded::start(&config.redis.data_dir).await.map_err(|error| error.to_string())?),
        RedisUrl::Url(_) => None,
    };
    let result = run(&config, listener, recorder, embedded.as_ref(), &mut stop).await;
    if let Some(embedded) = embedded {
        embedded.stop().await;
    }
    result
}

async fn run(
    config: &Config,
    listener: TcpListener,
    recorder: PrometheusHandle,
    embedded: Option<&Embedded>,
    stop: &mut Stop,
) -> Result<(), String> {
    let backend = Backend::new(&config.redis, embedded.map(Embedded::url))?;
    let instance = Instance::new(config, &backend, rand::random())?;
    let (stopping, stopped) = watch::channel(false);

    let page = MetricsPage::new(instance.queue.clone(), recorder);
    let api = Api::new(instance.queue.clone(), &config.server, instance.statuses(), page, api::ulids());
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let api_stopped = asked(stopped.clone());
    let server = tokio::spawn(api::serve(listener, api::router(api), api_stopped));
    tracing::info!(%address, routes = config.routes.len(), sinks = config.sinks.len(), "punctual is listening");

    let (prepared, preparation) = oneshot::channel();
    let generations = instance.store.connection().generations();
    let mut keeper = tokio::spawn(keeper::keep(Arc::clone(&instance.queue), generations, prepared));
    let (wakes, scheduler) = (instance.wakes, instance.scheduler);
    let scheduler = tokio::spawn(async move {
        tokio::select! {
            Ok(()) = preparation => {}
            () = asked(stopped.clone()) => return,
        }
        tokio::select! {
            () = scheduler.run(stopped) => {}
            () = wakes.run() => {}
        }
    });

    let refusal = tokio::select! {
        () = stop.asked() => None,
        refused = &mut keeper => Some(refused.map_or_else(|panic| panic.to_string(), |error| error.to_string())),
    };
    keeper.abort();
    tracing::info!(timeout = ?config.shutdown_timeout, "stopping");
    let deadline = Instant::now() + config.shutdown_timeout;
    stopping.send_replace(true);
    finish("deliveries", scheduler, deadline).await;
    finish("requests", server, deadline).await;
    for (name, destination) in &instance.destinations {
        if timeout_at(deadline, destination.close()).await.is_err() {
            tracing::warn!(sink = name, "did not close in time");
        }
    }
    if let Some(error) = refusal {
        return Err(error);
    }
    tracing::info!("stopped");
    Ok(())
}

async fn asked(mut stopped: watch::Receiver<bool>) {
    // A sender that is gone asks, too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Past the deadline the rest is dropped: leases bring its messages back.
async fn finish(what: &str, mut task: JoinHandle<()>, deadline: Instant) {
    match timeout_at(deadline, &mut task).await {
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
