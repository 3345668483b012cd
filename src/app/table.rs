//! The parts of the present configuration, for readers that show them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::{FutureExt, future::join_all};

use super::{clock::RedisClock, reachability::Reachability, sources::RunningSource};
use crate::{
    api::{BreakerState, DownDomain, Failing, FailingSinks, SinkStatus, SinkStatuses, SourceStatuses, Statuses},
    config::Config,
    scheduler,
    sink::Delivery,
};

/// The table of the present configuration. A reload replaces it.
pub type CurrentTable = Arc<ArcSwap<Table>>;

pub struct Table {
    /// As far as it takes effect without a restart.
    pub config: Arc<Config>,
    pub sinks: BTreeMap<String, Reachability>,
    pub sources: BTreeMap<String, RunningSource>,
}

/// The data of GET /v1/sinks and GET /v1/sources. Each waits at most for `max_wait`.
pub fn statuses(table: &CurrentTable, clock: &Arc<RedisClock>, max_wait: Duration) -> Statuses {
    Statuses { sinks: sinks(table, clock, max_wait), failing: failing(table), sources: sources(table, clock, max_wait) }
}

fn failing(table: &CurrentTable) -> FailingSinks {
    let table = table.clone();
    Arc::new(move |name, route, snapshot| {
        let table = table.load();
        let sink = table.sinks.get(name)?.sink();
        let status = sink.breaker().status();
        if status.state != scheduler::BreakerState::Closed {
            return Some(Failing { domain: None, error: status.last_error, since: status.since });
        }
        if status.down.is_empty() {
            return None;
        }
        let message = snapshot.message.as_ref().ok()?;
        let domain = sink.domain(&Delivery {
            id: snapshot.id.clone(),
            route: route.into(),
            attempt: snapshot.attempts + 1,
            due: message.due,
            metadata: message.metadata.clone(),
            payload: message.payload.clone(),
            send_until: None,
        })?;
        let down = status.down.into_iter().find(|down| down.name == domain)?;
        Some(Failing { domain: Some(down.name), error: Some(down.error), since: down.since })
    })
}

fn sources(table: &CurrentTable, clock: &Arc<RedisClock>, max_wait: Duration) -> SourceStatuses {
    let (table, clock) = (table.clone(), clock.clone());
    Arc::new(move || {
        let (table, clock) = (table.load_full(), clock.clone());
        async move { join_all(table.sources.values().map(|source| source.status(max_wait, &clock))).await }.boxed()
    })
}

fn sinks(table: &CurrentTable, clock: &Arc<RedisClock>, max_wait: Duration) -> SinkStatuses {
    let (table, clock) = (table.clone(), clock.clone());
    Arc::new(move || {
        let (table, clock) = (table.load_full(), clock.clone());
        async move { join_all(table.sinks.iter().map(|(name, sink)| status(name, sink, max_wait, &clock))).await }
            .boxed()
    })
}

async fn status(name: &str, reachability: &Reachability, max_wait: Duration, clock: &RedisClock) -> SinkStatus {
    let (check, clock) = tokio::join!(reachability.answer(max_wait), clock.read(max_wait));
    let check = check.map(|answer| answer.err().unwrap_or_else(|| "ok".to_owned()));
    let at = |instant| clock.map(|clock| clock.millis_at(instant));
    let status = reachability.sink().breaker().status();
    SinkStatus {
        name: name.to_owned(),
        r#type: reachability.sink().kind(),
        check,
        breaker: match status.state {
            scheduler::BreakerState::Closed => BreakerState::Closed,
            scheduler::BreakerState::HalfOpen => BreakerState::HalfOpen,
            scheduler::BreakerState::Open => BreakerState::Open,
        },
        since: at(status.since),
        last_error: status.last_error,
        last_error_at: status.last_error_at.and_then(at),
        last_success_at: status.last_success_at.and_then(at),
        in_flight: status.in_flight,
        down_domains: (status.down.into_iter())
            .map(|down| DownDomain { name: down.name, error: down.error, since: at(down.since) })
            .collect(),
    }
}
