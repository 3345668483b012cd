//! One per sink and instance, shared by the routes of the sink: lets messages leave, learns from what becomes
//! of them, and keeps everything but a probe a second at home while the sink is away.
//!
//! `Machine` decides; this wraps it in a lock, wakes those who wait, and shows it to people.

mod blame;
mod machine;

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use self::blame::Blame;
pub use self::machine::BreakerState;
use self::machine::{Grant, Leave, Machine};
use super::lock;
use crate::{message::MessageId, metrics::SinkMetrics, outcome::Outcome};

pub struct Breaker {
    sink: Arc<str>,
    metrics: SinkMetrics,
    machine: Mutex<Machine>,
    blame: Mutex<Blame>,
    /// Seats that are taken; what is granted for a claim under way is not yet.
    seated: AtomicUsize,
    changed: Notify,
    /// Who waits for a probe queues here, so that every route of the sink has its turn.
    turn: tokio::sync::Mutex<()>,
}

/// What people see of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerStatus {
    pub state: BreakerState,
    /// The latest one since the start, also after the sink came back.
    pub last_error: Option<String>,
    /// Messages claimed for the sink by this instance.
    pub in_flight: usize,
}

impl Breaker {
    /// Closed.
    pub fn new(sink: &str) -> Arc<Self> {
        let metrics = SinkMetrics::new(sink);
        metrics.breaker.set(0.0);
        Arc::new(Self {
            sink: sink.into(),
            metrics,
            machine: Mutex::new(Machine::new()),
            blame: Mutex::default(),
            seated: AtomicUsize::new(0),
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
        let machine = lock(&self.machine);
        BreakerStatus {
            state: machine.state(),
            last_error: machine.last_error().map(str::to_owned),
            in_flight: self.seated.load(Ordering::Relaxed),
        }
    }

    /// A route joins that may have so many messages in flight.
    pub(super) fn join(&self, max_in_flight: usize) {
        lock(&self.machine).join(max_in_flight);
    }

    /// Waits until messages may leave, in the order of asking while the breaker is open. Cancel-safe.
    pub(super) async fn ready(&self) {
        if self.is_closed() && lock(&self.machine).leave(Instant::now(), false) == Leave::Now {
            return;
        }
        let _turn = self.turn.lock().await;
        loop {
            let changed = self.changed.notified();
            let leave = lock(&self.machine).leave(Instant::now(), false);
            match leave {
                Leave::Now => return,
                Leave::Later => changed.await,
                Leave::At(at) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    /// Waits until it is closed. Cancel-safe.
    pub(super) async fn closed(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_closed() {
                return;
            }
            changed.await;
        }
    }

    /// From when on a suspect may leave; `None` while closed.
    pub(super) fn suspects_from(&self) -> Option<Instant> {
        lock(&self.machine).suspects_from()
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.machine).state() == BreakerState::Closed
    }

    /// Seats for up to `want` messages; `None` when none may leave now.
    pub(super) fn admit(self: &Arc<Self>, want: usize, suspect: bool) -> Option<Admission> {
        let grant = self.with(|machine, now| machine.admit(now, want, suspect))?;
        Some(Admission { breaker: Arc::clone(self), grant })
    }

    /// What the outcome says about the message, now that it is known how others fare: a lost connection that is its
    /// own doing is its failure.
    pub(super) fn judge<'a>(&self, route: &Arc<str>, id: &MessageId, outcome: &'a Outcome) -> Cow<'a, Outcome> {
        let mut blame = lock(&self.blame);
        match outcome {
            Outcome::Unavailable { error } if blame.lost(route, id) => {
                let error = format!("{error}; again and again with this message, while others get through");
                return Cow::Owned(Outcome::Failed { error, retry_after: None });
            }
            Outcome::Unavailable { .. } => {}
            answered => blame.answered(route, id, *answered == Outcome::Confirmed),
        }
        Cow::Borrowed(outcome)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Machine, Instant) -> T) -> T {
        let mut machine = lock(&self.machine);
        let before = machine.state();
        let result = change(&mut machine, Instant::now());
        let after = machine.state();
        if before != after {
            self.metrics.breaker.set(match after {
                BreakerState::Closed => 0.0,
                BreakerState::HalfOpen => 1.0,
                BreakerState::Open => 2.0,
            });
            if after == BreakerState::Closed {
                tracing::info!(sink = %self.sink, "the sink is back: slow start");
            } else if before == BreakerState::Closed {
                let error = machine.last_error().unwrap_or_default();
                tracing::warn!(sink = %self.sink, error, "the sink is away: one probe a second");
            }
        }
        drop(machine);
        self.changed.notify_waiters();
        result
    }
}

/// Seats granted for one claim; those not taken are given back on drop.
pub(super) struct Admission {
    breaker: Arc<Breaker>,
    grant: Grant,
}

impl Admission {
    pub fn messages(&self) -> u32 {
        u32::try_from(self.grant.messages).unwrap_or(u32::MAX)
    }

    pub fn is_probe(&self) -> bool {
        self.grant.probe
    }

    /// For one claimed message; at most as many as were granted.
    pub fn seat(&mut self) -> Seat {
        self.grant.messages -= 1;
        self.breaker.seated.fetch_add(1, Ordering::Relaxed);
        Seat { breaker: Arc::clone(&self.breaker), grant: self.grant, reported: false }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.grant.messages == 0 {
            return;
        }
        self.breaker.with(|machine, now| {
            machine.leave_flight(self.grant.messages);
            if self.grant.probe {
                machine.probe_unused(self.grant, now);
            }
        });
    }
}

/// One message in flight for the sink, until it is dropped.
pub(super) struct Seat {
    breaker: Arc<Breaker>,
    grant: Grant,
    reported: bool,
}

impl Seat {
    pub fn is_probe(&self) -> bool {
        self.grant.probe
    }

    /// What became of the attempt; at most once.
    pub fn report(&mut self, id: &MessageId, outcome: &Outcome) {
        debug_assert!(!self.reported, "one outcome per attempt");
        self.reported = true;
        self.breaker.with(|machine, now| machine.record(now, self.grant, id, outcome));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.breaker.seated.fetch_sub(1, Ordering::Relaxed);
        self.breaker.with(|machine, now| {
            machine.leave_flight(1);
            if self.grant.probe && !self.reported {
                machine.probe_unused(self.grant, now);
            }
        });
    }
}
