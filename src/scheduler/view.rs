//! What the last poll of a partition showed, in this machine's time, and when the next one is worth it.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Claim;

/// A lease has expired a millisecond after its deadline at the latest, whichever way Redis compares.
const LEASE_SLACK: Duration = Duration::from_millis(1);

/// Why a sleeper wakes by itself; labels of `punctual_wakeups_total`.
const TIMER: &str = "timer";
const FALLBACK: &str = "fallback";

#[derive(Debug)]
pub struct View {
    /// When the last poll was answered.
    pub polled: Instant,
    /// A reason to poll at once that stands until a poll is answered.
    pub again: bool,
    /// A wake-up came that no poll has followed yet.
    pub woken: Option<Instant>,
    paused: bool,
    /// When the head is due, by Redis' clock not a moment too early.
    due: Option<Instant>,
    /// When the earliest lease ends.
    pub lease: Option<Instant>,
    /// Suspects were put off: the next claim may take one.
    pub suspects: bool,
}

impl View {
    /// Nothing was seen yet: poll.
    pub fn new(now: Instant) -> Self {
        Self { polled: now, again: true, woken: None, paused: false, due: None, lease: None, suspects: false }
    }

    /// `received` is the base for every instant: Redis read its clock before it, so nothing comes too early.
    /// Returns whether leases had expired by then.
    pub fn update(&mut self, claim: &Claim, received: Instant) -> bool {
        let at = |micros: u64| received + Duration::from_micros(micros.saturating_sub(claim.clock.micros));
        self.polled = received;
        self.again = false;
        self.woken = None;
        self.paused = claim.paused;
        self.suspects = claim.suspects > 0;
        self.due = claim.next_due.map(|due| {
            let late = Duration::from_micros(claim.clock.micros.saturating_sub(due.get() * 1000));
            received.checked_sub(late).filter(|_| !late.is_zero()).unwrap_or_else(|| at(due.get() * 1000))
        });
        self.lease = claim.next_lease.map(|deadline| at(deadline) + LEASE_SLACK);
        claim.next_lease.is_some_and(|deadline| deadline < claim.clock.micros)
    }

    /// When to poll next, `fallback` at the latest, and the label of that. `sharing_delay`: how long what is due is left to other
    /// instances. `recover_from`: when an ended lease is worth a poll.
    pub fn next(&self, fallback: Instant, sharing_delay: Duration, recover_from: Instant) -> (Instant, &'static str) {
        if self.again {
            return (self.polled, TIMER);
        }
        // What was overdue at the last poll, no other instance takes.
        let due = self.due.map(|at| if at <= self.polled { at } else { at + sharing_delay });
        let woken = self.woken.map(|at| at + sharing_delay);
        let lease = self.lease.map(|at| at.max(recover_from));
        let timer = [due.filter(|_| !self.paused), woken, lease].into_iter().flatten().min();
        timer.filter(|at| *at <= fallback).map_or((fallback, FALLBACK), |at| (at, TIMER))
    }

    /// Since when the head had been overdue at the last poll, if it was.
    pub fn overdue_since(&self) -> Option<Instant> {
        self.due.filter(|due| !self.paused && *due <= self.polled)
    }

    /// Whether a message is due, as far as is known.
    pub fn has_due(&self) -> bool {
        !self.paused && (self.woken.is_some() || self.due.is_some_and(|due| due <= Instant::now()))
    }
}

/// Whether a due time in milliseconds has passed by the clock of the reply.
pub fn overdue(claim: &Claim, due: u64) -> bool {
    due * 1000 <= claim.clock.micros
}
