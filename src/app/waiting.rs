//! The number of messages that wait while a subject is down.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time::timeout;

use super::table::CurrentTable;
use crate::{incidents::Subject, queue::Queue};

/// Maximum time of a count, for which a log line waits.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// Counts messages for log lines.
pub struct Waiting {
    pub queue: Arc<Queue>,
    pub table: CurrentTable,
}

impl Waiting {
    /// For Redis, a sink and its domains: messages of their routes that are due within a minute, because messages of a
    /// domain that is down are deferred by less. For a source: messages in its external system. `None` if the number
    /// cannot be read now.
    pub async fn count(&self, subject: &Subject) -> Option<u64> {
        timeout(COUNT_TIMEOUT, async {
            match subject {
                Subject::Redis => self.due(|_| true).await,
                Subject::Sink(sink) | Subject::Domain { sink, .. } => self.due(|other| *other == **sink).await,
                Subject::Source(name) => self.table.load_full().sources.get(&**name)?.depth().await,
                Subject::Collector => None,
            }
        })
        .await
        .ok()
        .flatten()
    }

    async fn due(&self, counts: impl Fn(&str) -> bool) -> Option<u64> {
        let config = self.table.load().config.clone();
        let routes = config.routes.iter().filter(|(_, route)| counts(&route.sink));
        let stats = join_all(routes.map(|(route, _)| self.queue.stats(route))).await;
        stats.into_iter().map(|stats| stats.ok().map(|stats| stats.due_within[0])).sum()
    }
}
