//! The scheduler on a paused clock, over the in-memory store and sinks with given outcomes.

mod accounting;
mod breaking;
mod calls;
mod crashing;
mod domains;
mod flowing;
mod recurring;
mod room;
mod settling;
mod showing;
mod simulation;
mod sink;
mod store;
mod waking;
mod windows;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use self::{
    sink::FakeSink,
    store::{Faults, TestStore},
};
use super::{Breaker, Policy, Pool, RouteSetup, Scheduler, Target, Unanswered};
use crate::{
    incidents::Incidents,
    message::Metadata,
    retry::{Backoff, RetryPolicy},
    sink::{Delivery, Element, Outcome},
    spans::Spans,
    store::{Partition, Store},
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const MAX_SLEEP: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(3);

fn partition(route: &str) -> Partition {
    Partition { route: route.into(), index: 0, count: 1 }
}

fn policy() -> Policy {
    Policy {
        lease: LEASE,
        max_in_flight: 1000,
        max_in_flight_bytes: 64 << 20,
        largest_message: 1 << 20,
        retry: RetryPolicy { max_attempts: 3, backoff: Backoff::new(SECOND, 2.0, MINUTE, 0.2).unwrap() },
    }
}

fn to_sink(sink: &Arc<FakeSink>, breaker: &Arc<Breaker>) -> Target {
    Target::Sink { sink: sink.clone(), breaker: Arc::clone(breaker) }
}

fn to_list(key: &str, breaker: &Arc<Breaker>) -> Target {
    let list: Arc<str> = key.into();
    let render = Arc::new(move |delivery: &Delivery| {
        Ok(Element { list: Arc::clone(&list), value: delivery.id.to_string().into() })
    });
    Target::List { render, one_list: true, breaker: Arc::clone(breaker) }
}

fn setup(store: &TestStore, route: &str, target: Target, policy: Policy) -> RouteSetup {
    let partition = partition(route);
    let signal = store.subscribe(&partition);
    RouteSetup {
        route: route.into(),
        partitions: vec![(partition, signal)],
        policy,
        window: None,
        has_flows: false,
        keeps_history: false,
        target,
        spans: Spans::default(),
        instance: "test:1".into(),
    }
}

/// One scheduler, as one process runs it.
struct Instance {
    shutdown: watch::Sender<bool>,
    task: JoinHandle<()>,
    settling: Unanswered,
}

impl Instance {
    fn start(store: &Arc<TestStore>, routes: Vec<RouteSetup>) -> Self {
        let (seed, store): (_, Arc<dyn Store>) = (store.next_seed(), store.clone());
        Self::start_over(&store, seed, routes)
    }

    fn start_over(store: &Arc<dyn Store>, seed: u64, routes: Vec<RouteSetup>) -> Self {
        let (shutdown, receiver) = watch::channel(false);
        let scheduler = Scheduler::new(MAX_SLEEP, &Pool::new(1 << 40), seed, &Incidents::default());
        let works = routes.into_iter().map(|setup| scheduler.route(Arc::clone(store), setup));
        let works: Vec<_> = works.map(|work| work.run(receiver.clone())).collect();
        let task = async { drop(join_all(works).await) };
        Self { shutdown, task: tokio::spawn(task), settling: scheduler.settling() }
    }

    /// One route `r` with the usual policy.
    fn of_one(store: &Arc<TestStore>, sink: &Arc<FakeSink>) -> Self {
        Self::of_policy(store, sink, policy())
    }

    /// One route `r`.
    fn of_policy(store: &Arc<TestStore>, sink: &Arc<FakeSink>, policy: Policy) -> Self {
        Self::start(store, vec![setup(store, "r", to_sink(sink, &Breaker::new("s")), policy)])
    }

    async fn stop(self) {
        self.shutdown.send_replace(true);
        self.task.await.expect("no panic");
    }

    /// Like `kill -9`.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Lets the paused clock run until `condition` holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..600_000 {
        if condition() {
            return;
        }
        sleep(MILLI).await;
    }
    panic!("ten minutes passed without: {what}");
}

async fn until_empty(store: &TestStore, route: &str) {
    until("an empty queue", || {
        let (pending, unack, _) = store.count(&partition(route));
        pending + unack == 0
    })
    .await;
}

fn schedule(store: &TestStore, ids: impl IntoIterator<Item = impl AsRef<str>>, delay: Duration) {
    for id in ids {
        store.schedule(&partition("r"), id.as_ref(), delay, Metadata::default());
    }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n:05}")).collect()
}

fn unavailable() -> Outcome {
    Outcome::Unavailable { error: "connection refused".into() }
}

fn lost() -> Outcome {
    Outcome::Unavailable { error: "connection reset".into() }
}

fn failed() -> Outcome {
    Outcome::Failed { error: "HTTP 500".into(), retry_after: None }
}

fn unsent() -> Outcome {
    Outcome::Unsent { error: "no connection was free in time".into() }
}

fn throttled() -> Outcome {
    Outcome::Throttled { error: "HTTP 429".into(), retry_after: None }
}

fn recorder() -> PrometheusRecorder {
    // Buckets, because summaries are slow to render.
    PrometheusBuilder::new().set_buckets(&[1.0]).expect("a bucket").build_recorder()
}

/// The sum of a counter over all label sets that contain `label`.
fn counted(recorder: &PrometheusRecorder, name: &str, label: &str) -> u64 {
    let page = recorder.handle().render();
    let samples = page.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}
