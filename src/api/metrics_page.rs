//! `GET /metrics`: the recorder's page, with the queue gauges read at the moment of the scrape.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, http::header, response::IntoResponse};
use futures::future::join_all;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::timeout;

use super::{Api, SourceStatuses};
use crate::{
    metrics::{self, QueueGauges},
    queue::{Queue, RouteStats},
};

/// How long a scrape waits for the numbers of the queues: below the request timeout and the usual 10 s of a
/// scraper, so that the counters are served while Redis is down.
const STATS_TIMEOUT: Duration = Duration::from_secs(2);

/// Renders the page.
pub struct MetricsPage {
    queue: Arc<Queue>,
    recorder: PrometheusHandle,
    sources: SourceStatuses,
}

impl MetricsPage {
    /// `recorder`: of the recorder that is installed for the process.
    pub fn new(queue: Arc<Queue>, recorder: PrometheusHandle, sources: SourceStatuses) -> Self {
        Self { queue, recorder, sources }
    }

    /// The gauges omit a route whose numbers cannot be read within `patience`.
    async fn render(&self, patience: Duration) -> String {
        let routes = self.queue.routes();
        // In tasks that continue after the timeout: the store must reach its own timeout to detect a dead connection.
        let stats = join_all(routes.iter().cloned().map(|route| {
            let queue = Arc::clone(&self.queue);
            timeout(patience, tokio::spawn(async move { queue.stats(&route).await }))
        }));
        // It sets their gauges.
        let depths = timeout(patience, (self.sources)());
        let (stats, _) = tokio::join!(stats, depths);
        for (route, stats) in routes.iter().zip(stats) {
            match stats {
                Ok(Ok(Ok(stats))) => metrics::queue(route, gauges(&stats)),
                _ => metrics::queue_unknown(route),
            }
        }
        metrics::without_absent(&self.recorder.render())
    }
}

pub async fn page(State(api): State<Arc<Api>>) -> impl IntoResponse {
    let page = api.metrics.render(STATS_TIMEOUT.min(api.request_timeout / 2)).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
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
    }
}
