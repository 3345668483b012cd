//! Handles of metrics that are used per message. Counters begin at 0 when their handle is made.

use std::sync::Arc;

use metrics::{Counter, Histogram, Label, counter, gauge, histogram};
use parking_lot::Mutex;

use super::{
    BREAKER, DEAD, DELIVERED, DOMAINS_DOWN, FAILURES, FLOW_WAIT, HTTP_RESPONSES, IN_FLIGHT, LATENESS, LEASES_CUT,
    LEASES_EXPIRED, RELEASED, RETRIED, SINK_ATTEMPTS, SINK_SEND, SINK_UP, SOURCE_CONFLICTS, SOURCE_INVALID,
    SOURCE_KNOWN, SOURCE_NEAR_LIMIT, SOURCE_RESETS, SOURCE_SKIPPED, SOURCE_TAKEN, STALE, WAKEUPS,
};
use crate::{
    message::DeadReason,
    sink::{CONFIRMED, FAILURE_KINDS, UNSENT},
};

/// The handles that the scheduler uses for each message of a route.
#[derive(Clone)]
pub struct RouteMetrics {
    route: String,
    sink: String,
    pub delivered: Counter,
    pub retried: Counter,
    pub released: Counter,
    pub leases_expired: Counter,
    pub leases_cut: Counter,
    /// In seconds.
    pub lateness: Histogram,
    /// In seconds; `None` on a route without flows.
    pub flow_wait: Option<Histogram>,
}

/// The `op` label of `punctual_stale_settlements_total`.
const SETTLEMENTS: [&str; 5] = ["ack", "retry", "bury", "release", "transfer"];

/// The `reason` label of `punctual_wakeups_total`.
const WAKE_REASONS: [&str; 4] = ["timer", "notify", "fallback", "resubscribe"];

impl RouteMetrics {
    /// Starts all counters of the route at 0.
    pub fn new(route: &str, sink: &str, has_flows: bool) -> Self {
        let labels = || vec![Label::new("route", route.to_owned())];
        let mut with_sink = labels();
        with_sink.push(Label::new("sink", sink.to_owned()));
        let metrics = Self {
            route: route.to_owned(),
            sink: sink.to_owned(),
            delivered: counter!(DELIVERED, with_sink),
            retried: counter!(RETRIED, labels()),
            released: counter!(RELEASED, labels()),
            leases_expired: counter!(LEASES_EXPIRED, labels()),
            leases_cut: counter!(LEASES_CUT, labels()),
            lateness: histogram!(LATENESS, labels()),
            flow_wait: has_flows.then(|| histogram!(FLOW_WAIT, labels())),
        };
        for reason in DeadReason::ALL {
            metrics.dead(reason, 0);
        }
        for kind in FAILURE_KINDS {
            metrics.failures(kind, 0);
        }
        for op in SETTLEMENTS {
            metrics.stale(op, 0);
        }
        for reason in WAKE_REASONS {
            counter!(WAKEUPS, "reason" => reason).increment(0);
        }
        metrics.in_flight(0);
        metrics
    }

    pub fn dead(&self, reason: DeadReason, count: u64) {
        counter!(DEAD, "route" => self.route.clone(), "reason" => reason.as_str()).increment(count);
    }

    /// `kind`: a value of `Outcome::failure_kind`.
    pub fn failure(&self, kind: &'static str) {
        self.failures(kind, 1);
    }

    fn failures(&self, kind: &'static str, count: u64) {
        counter!(FAILURES, "route" => self.route.clone(), "sink" => self.sink.clone(), "kind" => kind).increment(count);
    }

    /// `op`: ack, retry, bury, release or transfer.
    pub fn stale(&self, op: &'static str, count: u64) {
        counter!(STALE, "route" => self.route.clone(), "op" => op).increment(count);
    }

    pub fn in_flight(&self, messages: usize) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        gauge!(IN_FLIGHT, "route" => self.route.clone()).set(messages as f64);
    }

    /// `reason`: timer, notify, fallback or resubscribe.
    pub fn woke(&self, reason: &'static str) {
        counter!(WAKEUPS, "reason" => reason).increment(1);
    }
}

/// The handles of one sink.
#[derive(Clone)]
pub struct SinkMetrics {
    /// In seconds.
    pub send: Histogram,
    /// 0 closed, 1 half-open, 2 open.
    pub breaker: metrics::Gauge,
    pub domains_down: metrics::Gauge,
    /// 1 while the breaker is closed.
    pub up: metrics::Gauge,
    /// By outcome.
    attempts: [(&'static str, Counter); FAILURE_KINDS.len() + 2],
    sink: String,
    /// By status, at most a thousand. Without this, the registry would look up a text for each reply.
    responses: Arc<Mutex<Vec<(u16, Counter)>>>,
}

impl SinkMetrics {
    /// A sink that is up; all counters are 0.
    pub fn new(sink: &str) -> Self {
        let [failed, throttled, rejected, unavailable] = FAILURE_KINDS;
        let attempts = [CONFIRMED, failed, throttled, rejected, unavailable, UNSENT].map(|outcome| {
            let counter = counter!(SINK_ATTEMPTS, "sink" => sink.to_owned(), "outcome" => outcome);
            counter.increment(0);
            (outcome, counter)
        });
        let up = gauge!(SINK_UP, "sink" => sink.to_owned());
        up.set(1.0);
        Self {
            up,
            attempts,
            sink: sink.to_owned(),
            responses: Arc::default(),
            send: histogram!(SINK_SEND, "sink" => sink.to_owned()),
            breaker: gauge!(BREAKER, "sink" => sink.to_owned()),
            domains_down: gauge!(DOMAINS_DOWN, "sink" => sink.to_owned()),
        }
    }

    /// `outcome`: a value of `Outcome::kind`.
    pub fn attempt(&self, outcome: &'static str) {
        if let Some((_, counter)) = self.attempts.iter().find(|(name, _)| *name == outcome) {
            counter.increment(1);
        }
    }

    /// `code`: the HTTP status of the reply.
    pub fn http_response(&self, code: u16) {
        let mut responses = self.responses.lock();
        if let Some((_, counter)) = responses.iter().find(|(known, _)| *known == code) {
            return counter.increment(1);
        }
        let counter = counter!(HTTP_RESPONSES, "sink" => self.sink.clone(), "code" => code.to_string());
        counter.increment(1);
        responses.push((code, counter));
    }
}

/// The handles of one source.
#[derive(Clone)]
pub struct SourceMetrics {
    pub taken: Counter,
    pub invalid: Counter,
    pub conflicts: Counter,
    pub known: Counter,
    pub skipped: Counter,
    pub near_limit: Counter,
    pub resets: Counter,
}

impl SourceMetrics {
    pub fn new(source: &str) -> Self {
        let of = |name: &'static str| counter!(name, "source" => source.to_owned());
        Self {
            taken: of(SOURCE_TAKEN),
            invalid: of(SOURCE_INVALID),
            conflicts: of(SOURCE_CONFLICTS),
            known: of(SOURCE_KNOWN),
            skipped: of(SOURCE_SKIPPED),
            near_limit: of(SOURCE_NEAR_LIMIT),
            resets: of(SOURCE_RESETS),
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn what_has_not_happened_yet_is_a_series_at_zero() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || RouteMetrics::new("r", "s", false));
        let page = recorder.handle().render();
        for reason in DeadReason::ALL {
            let series = format!("{DEAD}{{route=\"r\",reason=\"{}\"}} 0\n", reason.as_str());
            assert!(page.contains(&series), "{series}{page}");
        }
        for name in [DELIVERED, RETRIED, RELEASED, LEASES_EXPIRED, IN_FLIGHT] {
            assert!(page.contains(&format!("{name}{{route=\"r\"")), "{name}: {page}");
        }
    }
}
