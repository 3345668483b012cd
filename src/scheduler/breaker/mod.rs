//! The breaker of one sink in one instance, shared by the routes of the sink. It determines the cause of each failure
//! and which messages may be sent.
//!
//! `Evidence` records successes and failures by failure domain, and names the cause of each failure: the message, its
//! domain or the sink. `Machine` is the breaker of the whole sink. `Breaker` puts both under one lock, wakes the tasks
//! that wait, and reports incidents and metrics.

mod down;
mod evidence;
mod latest;
mod machine;
mod streak;

#[cfg(test)]
mod tests;

use std::{mem, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use self::{
    down::MessageKey,
    evidence::{Attempted, Cause, Evidence},
    machine::{ClaimGrant, Machine, Readiness},
};
pub use self::{evidence::DownDomain, machine::BreakerState};
use crate::{
    incidents::{Incidents, Subject},
    metrics::SinkMetrics,
    scheduler::decide::Attribution,
    sink::{Domain, Outcome},
};

pub struct Breaker {
    sink: Arc<str>,
    metrics: SinkMetrics,
    inner: Mutex<Inner>,
    changed: Notify,
    /// Tasks that wait for a probe queue here, so that every route of the sink has its turn.
    turn: tokio::sync::Mutex<()>,
}

/// Maximum messages that a probe of the sink skips because they were lost before: a message that was not lost shows
/// more.
const MAX_PASSED_OVER: u32 = 10;

struct Inner {
    machine: Machine,
    /// Messages in flight. Messages granted to a claim without an answer do not count yet.
    claimed: usize,
    /// Messages skipped since the last probe.
    passed_over: u32,
    evidence: Evidence,
    last_error: Option<String>,
    /// When the sink became up or down; at first, when the breaker was created.
    since: Instant,
    last_error_at: Option<Instant>,
    last_success_at: Option<Instant>,
    incidents: Incidents,
    is_retired: bool,
}

/// The status shown to operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerStatus {
    pub state: BreakerState,
    /// The latest error since the start, also after the sink recovered.
    pub last_error: Option<String>,
    /// Since when the sink is up or down.
    pub since: Instant,
    pub last_error_at: Option<Instant>,
    pub last_success_at: Option<Instant>,
    /// Messages claimed for the sink by this instance.
    pub in_flight: usize,
    /// Failure domains that are down, by name.
    pub down: Vec<DownDomain>,
}

impl Breaker {
    /// Creates a closed breaker.
    pub fn new(sink: &str) -> Arc<Self> {
        let metrics = SinkMetrics::new(sink);
        metrics.breaker.set(0.0);
        metrics.domains_down.set(0.0);
        let inner = Inner {
            machine: Machine::new(),
            claimed: 0,
            passed_over: 0,
            evidence: Evidence::new(),
            last_error: None,
            since: Instant::now(),
            last_error_at: None,
            last_success_at: None,
            incidents: Incidents::default(),
            is_retired: false,
        };
        Arc::new(Self {
            sink: sink.into(),
            metrics,
            inner: Mutex::new(inner),
            changed: Notify::new(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    pub fn sink(&self) -> &str {
        &self.sink
    }

    pub fn metrics(&self) -> &SinkMetrics {
        &self.metrics
    }

    pub fn status(&self) -> BreakerStatus {
        let inner = self.inner.lock();
        BreakerStatus {
            state: inner.machine.state(),
            last_error: inner.last_error.clone(),
            since: inner.since,
            last_error_at: inner.last_error_at,
            last_success_at: inner.last_success_at,
            in_flight: inner.claimed,
            down: inner.evidence.down(),
        }
    }

    /// Adds a route with its `max_in_flight`. Outages are reported to `incidents`.
    pub(super) fn join(&self, max_in_flight: usize, incidents: &Incidents) {
        let mut inner = self.inner.lock();
        inner.machine.join(max_in_flight);
        if !inner.is_retired {
            inner.incidents = incidents.clone();
        }
    }

    /// Removes a route that joined.
    pub(super) fn leave(&self, max_in_flight: usize) {
        self.inner.lock().machine.leave(max_in_flight);
    }

    /// The breaker of a replaced sink: it reports no further outages and sets no gauges, because those are of the new
    /// breaker of the same name.
    pub fn retire(&self) {
        let mut inner = self.inner.lock();
        (inner.is_retired, inner.incidents) = (true, Incidents::silent());
    }

    /// Sets the gauges of a breaker that replaces another one.
    pub fn show(&self) {
        let inner = self.inner.lock();
        self.show_state(inner.machine.state());
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        self.metrics.domains_down.set(inner.evidence.count_down() as f64);
    }

    fn show_state(&self, state: BreakerState) {
        self.metrics.breaker.set(match state {
            BreakerState::Closed => 0.0,
            BreakerState::HalfOpen => 1.0,
            BreakerState::Open => 2.0,
        });
        self.metrics.up.set(f64::from(u8::from(state == BreakerState::Closed)));
    }

    /// Waits until messages may be sent. While the breaker is open, tasks continue in the order of their calls.
    /// Cancel-safe.
    pub(super) async fn ready(&self) {
        if self.is_closed() && self.inner.lock().machine.readiness(Instant::now()) == Readiness::Now {
            return;
        }
        let _turn = self.turn.lock().await;
        loop {
            let changed = self.changed.notified();
            let readiness = self.inner.lock().machine.readiness(Instant::now());
            match readiness {
                Readiness::Now => return,
                Readiness::Later => changed.await,
                Readiness::At(at) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.inner.lock().machine.state() == BreakerState::Closed
    }

    /// Permits for up to `want` messages; `None` when none may be sent now.
    pub(super) fn admit(self: &Arc<Self>, want: usize) -> Option<Admission> {
        let grant = self.with(|inner, now| inner.machine.admit(now, want))?;
        Some(Admission { breaker: Arc::clone(self), grant, claimed: 0 })
    }

    /// Whether a domain is down, so that the domain of a message must be checked before it is sent.
    pub(super) fn has_domains_down(&self) -> bool {
        self.inner.lock().evidence.count_down() > 0
    }

    fn cause(
        &self,
        inner: &mut Inner,
        now: Instant,
        grant: ClaimGrant,
        attempted: &Attempted<'_>,
        share: f64,
    ) -> Attribution {
        let Attempted { outcome, domain, .. } = *attempted;
        match outcome {
            Outcome::Confirmed | Outcome::Rejected { .. } => {
                if let (true, Some(domain)) = (inner.evidence.answered(now, attempted), domain) {
                    inner.incidents.ended(&self.domain(domain));
                }
                inner.machine.answered(grant);
                Attribution::Counts
            }
            // Nothing was sent.
            Outcome::Unsendable { .. } | Outcome::Unsent { .. } => {
                if grant.probe {
                    inner.machine.probe_unused(grant, now);
                }
                Attribution::Counts
            }
            _ => {
                let error = outcome.error().unwrap_or_default();
                let cause = inner.evidence.failed(now, attempted);
                let answered = !matches!(outcome, Outcome::Unavailable { .. });
                if cause == Cause::Domain && answered {
                    // The sink is reachable: the cause is the domain.
                    inner.machine.answered(grant);
                } else {
                    inner.machine.failed(now, grant, cause == Cause::Sink);
                }
                if let (Some(domain), Cause::Domain) = (domain, cause) {
                    inner.incidents.failed(&self.domain(domain), error);
                }
                if inner.machine.state() != BreakerState::Closed {
                    // Due again behind the other due messages, so that each probe is another message.
                    return Attribution::Waits(Duration::ZERO);
                }
                let pause = inner.evidence.pause(now, attempted, share);
                match (cause, pause) {
                    (Cause::Message(verdict), None) => verdict,
                    (_, pause) => Attribution::Waits(pause.unwrap_or_default()),
                }
            }
        }
    }

    fn domain(&self, domain: &Domain) -> Subject {
        Subject::Domain { sink: self.sink.clone(), domain: domain.clone() }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Inner, Instant) -> T) -> T {
        let mut inner = self.inner.lock();
        let (before, down_before) = (inner.machine.state(), inner.evidence.count_down());
        let may_wait = inner.machine.may_wait();
        let result = change(&mut inner, Instant::now());
        let down = inner.evidence.count_down();
        let reports = !inner.is_retired;
        if down != down_before && reports {
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            self.metrics.domains_down.set(down as f64);
            if down == 0 {
                inner.incidents.forget_domains(&self.sink);
            }
        }
        let after = inner.machine.state();
        if before != after {
            if reports {
                self.show_state(after);
            }
            let is_up = after == BreakerState::Closed;
            if is_up != (before == BreakerState::Closed) {
                inner.since = Instant::now();
            }
            if is_up && reports {
                inner.incidents.ended(&Subject::Sink(self.sink.clone()));
            }
        }
        let may_wait = may_wait || inner.machine.may_wait();
        drop(inner);
        if may_wait {
            self.changed.notify_waiters();
        }
        result
    }
}

/// Permits granted for one claim; those not taken are returned on drop.
pub(super) struct Admission {
    breaker: Arc<Breaker>,
    grant: ClaimGrant,
    /// Granted messages that are in flight.
    claimed: usize,
}

impl Admission {
    pub fn messages(&self) -> u32 {
        u32::try_from(self.grant.messages).unwrap_or(u32::MAX)
    }

    /// Records that `messages` were claimed, at most as many as were granted. Each takes its `sink_permit`.
    pub fn claimed(&mut self, messages: usize) {
        self.claimed += messages;
        self.breaker.inner.lock().claimed += messages;
    }

    /// The permit of one claimed message.
    pub fn sink_permit(&mut self, message: MessageKey) -> SinkPermit {
        self.grant.messages -= 1;
        self.claimed -= 1;
        let grant = ClaimGrant { messages: 1, ..self.grant };
        SinkPermit { admission: Self { breaker: Arc::clone(&self.breaker), grant, claimed: 1 }, message }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.grant.messages == 0 {
            return;
        }
        self.breaker.with(|inner, now| {
            inner.claimed -= self.claimed;
            inner.machine.leave_flight(self.grant.messages);
            if self.grant.probe {
                inner.machine.probe_unused(self.grant, now);
            }
        });
    }
}

/// One message in flight for the sink, until it is dropped.
pub(super) struct SinkPermit {
    admission: Admission,
    message: MessageKey,
}

impl SinkPermit {
    /// How long the message must wait, because its domain is down or another message shows more about the sink; `None`:
    /// it may be sent. `share`, in `0..=1`, spreads the waits.
    pub fn wait(&self, domain: Option<&Domain>, share: f64) -> Option<Duration> {
        let is_probe = self.admission.grant.probe;
        if !is_probe && domain.is_none() {
            return None;
        }
        let mut inner = self.admission.breaker.inner.lock();
        let Inner { evidence, passed_over, .. } = &mut *inner;
        if is_probe && *passed_over < MAX_PASSED_OVER && evidence.was_lost(&self.message) {
            *passed_over += 1;
            return Some(Duration::ZERO);
        }
        let wait = domain.and_then(|domain| evidence.wait(Instant::now(), domain, &self.message, share));
        if is_probe && wait.is_none() {
            *passed_over = 0;
        }
        wait
    }

    /// Takes over `other`, of the same breaker, so that both are freed at once. An unused probe is freed alone.
    pub fn absorb(&mut self, mut other: Self) {
        let (all, other) = (&mut self.admission, &mut other.admission);
        debug_assert!(Arc::ptr_eq(&all.breaker, &other.breaker));
        if !other.grant.probe {
            all.grant.messages += mem::take(&mut other.grant.messages);
            all.claimed += mem::take(&mut other.claimed);
        }
    }

    /// Forgets the losses of the message, which is dead.
    pub fn forget(&self) {
        self.admission.breaker.inner.lock().evidence.forget(&self.message);
    }

    /// Records the outcome and returns the cause of a failure. Called at most once. `share` as in `wait`.
    pub fn conclude(&mut self, sent: Instant, outcome: &Outcome, domain: Option<&Domain>, share: f64) -> Attribution {
        let Admission { breaker, grant, .. } = &mut self.admission;
        let attempted = Attempted { message: &self.message, sent, domain, outcome };
        let verdict = breaker.with(|inner, now| {
            let verdict = breaker.cause(inner, now, *grant, &attempted, share);
            if let Some(error) = outcome.error() {
                inner.last_error = Some(error.to_owned());
                inner.last_error_at = Some(now);
                if inner.machine.state() != BreakerState::Closed {
                    inner.incidents.failed(&Subject::Sink(breaker.sink.clone()), error);
                }
            } else {
                inner.last_success_at = Some(now);
            }
            verdict
        });
        // The probe is used.
        grant.probe = false;
        verdict
    }
}
