//! `GET /metrics`: the recorder's page. The gauges of the queues are read at the time of the scrape.

use std::{array, collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::{
    extract::{MatchedPath, Request},
    http::Method,
    middleware::Next,
    response::Response,
};
use futures::future::join_all;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::{Instant, timeout};

use super::statuses::SourceStatuses;
use crate::{
    metrics::{self, QueueGauges},
    queue::{HORIZONS, Queue, QueueError, RouteStats},
    store::StoreError,
};

/// Time that a scrape waits for the numbers of the queues: below the request timeout and the usual 10 s of a scraper,
/// so that the counters are served while Redis is down.
pub const STATS_TIMEOUT: Duration = Duration::from_secs(2);

/// Renders the page.
pub struct MetricsPage {
    queue: Arc<Queue>,
    recorder: PrometheusHandle,
    sources: SourceStatuses,
    /// Labels of removed parts, such as `route="jobs"`: the recorder keeps their series, and the page leaves them out.
    removed: ArcSwap<Vec<String>>,
}

impl MetricsPage {
    /// `recorder`: the handle of the recorder that is installed for the process.
    pub fn new(queue: Arc<Queue>, recorder: PrometheusHandle, sources: SourceStatuses) -> Self {
        Self { queue, recorder, sources, removed: ArcSwap::default() }
    }

    /// The recorder's page, unordered. The gauges of queues are those of the latest scrape.
    pub fn recorded(&self) -> String {
        let (page, removed) = (self.recorder.render(), self.removed.load());
        if removed.is_empty() {
            return page;
        }
        let stays = |line: &&str| !removed.iter().any(|label| has_label(line, label));
        page.lines().filter(stays).flat_map(|line| [line, "\n"]).collect()
    }

    /// Leaves out the series with one of these labels from now on, and no others.
    pub fn leave_out(&self, removed: Vec<String>) {
        self.removed.store(Arc::new(removed));
    }

    /// The page. When the numbers of a route cannot be read within `max_wait`, its gauges keep their last values.
    /// `ready`: the check of readiness.
    pub async fn render(&self, max_wait: Duration, ready: impl Future<Output = Result<(), String>>) -> String {
        let routes = self.queue.routes();
        // Tasks continue after the timeout: the store must reach its own timeout to detect a dead connection.
        let stats = join_all(routes.iter().cloned().map(|route| {
            let queue = Arc::clone(&self.queue);
            timeout(max_wait, tokio::spawn(async move { queue.stats(&route).await }))
        }));
        // Reading the state of the sources sets their gauges.
        let depths = timeout(max_wait, (self.sources)());
        let (stats, _, ready) = tokio::join!(stats, depths, timeout(max_wait, ready));
        let answers = |stats: &_| matches!(stats, Ok(Ok(Ok(_) | Err(QueueError::Store(StoreError::WrongType { .. })))));
        metrics::health(stats.iter().any(answers), matches!(ready, Ok(Ok(()))));
        for (route, stats) in routes.iter().zip(stats) {
            // While Redis is down, the gauges keep their last values, and `punctual_redis_up` is 0.
            if let Ok(Ok(Ok(stats))) = stats {
                metrics::queue(route, gauges(&stats));
            }
        }
        metrics_process::Collector::default().collect();
        ordered(&self.recorded())
    }
}

fn has_label(line: &str, label: &str) -> bool {
    let at = line.find(label);
    at.is_some_and(|at| line[..at].ends_with(['{', ',']) && line[at + label.len()..].starts_with(['}', ',']))
}

/// Counts and times each call. All unknown paths and methods are counted as one call, `other`.
pub async fn measure(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let known = matches!(*request.method(), Method::GET | Method::POST | Method::PATCH | Method::DELETE);
    let call = match request.extensions().get::<MatchedPath>().filter(|_| known) {
        Some(path) => format!("{} {}", request.method(), path.as_str()),
        None => "other".to_owned(),
    };
    let response = next.run(request).await;
    metrics::api_request(&call.into(), response.status().as_u16(), began.elapsed());
    response
}

fn gauges(stats: &RouteStats) -> QueueGauges {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; milliseconds below 2^53 are exact in one")]
    let next_due = stats.next_due.map(|due| due.get() as f64 / 1000.0);
    QueueGauges {
        pending: stats.pending,
        due: stats.due,
        unacked: stats.unack,
        dead: stats.dead,
        next_due,
        oldest_overdue: stats.oldest_overdue_seconds,
        retrying: stats.retrying,
        paused: stats.paused,
        due_within: array::from_fn(|n| (HORIZONS[n].0, stats.due_within[n])),
        waiting_for_flow: stats.waiting_for_flow,
        waiting_flows: stats.waiting_flows,
        stored_bytes: stats.bytes,
        limits_used: [("messages", stats.limits_used[0]), ("bytes", stats.limits_used[1])],
    }
}

/// The page of the recorder in a stable order, without absent samples, which the recorder holds as NaN.
fn ordered(page: &str) -> String {
    let mut families: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut family = "";
    for line in page.lines().filter(|line| !line.is_empty() && !line.ends_with(" NaN")) {
        if let Some(comment) = line.strip_prefix("# ") {
            family = comment.split(' ').nth(1).unwrap_or_default();
        }
        families.entry(family).or_default().push(line);
    }
    // Keeps the buckets of a series together, in order.
    let series = |line: &str| {
        let labels =
            line.split_once('{').map_or("", |(_, labels)| labels.rsplit_once('}').map_or("", |(labels, _)| labels));
        let own = labels.split(',').filter(|label| !label.starts_with("le="));
        (!line.starts_with('#'), own.collect::<Vec<_>>().join(","))
    };
    let mut text = String::with_capacity(page.len());
    for mut lines in families.into_values().filter(|lines| lines.iter().any(|line| !line.starts_with('#'))) {
        lines.sort_by_cached_key(|line| series(line));
        for line in lines {
            text.extend([line, "\n"]);
        }
    }
    text
}
