//! The result of the last poll of a partition, in local time, and the time of the next poll.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::Claim;

/// One millisecond after its deadline a lease has expired, whether Redis compares with `<` or `<=`.
const LEASE_SLACK: Duration = Duration::from_millis(1);

/// Reasons for a wake-up without a signal; labels of `punctual_wakeups_total`.
const TIMER: &str = "timer";
const FALLBACK: &str = "fallback";

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of one reply")]
pub struct LastPoll {
    /// When the last poll was answered.
    pub polled: Instant,
    /// Whether to poll at once; reset when a poll is answered.
    pub again: bool,
    /// The first wake-up since the last poll.
    pub woken: Option<Instant>,
    paused: bool,
    /// When the head is due; never earlier than by Redis' clock.
    due: Option<Instant>,
    /// The last poll parked messages.
    parks: bool,
    /// When the earliest lease has expired.
    pub lease: Option<Instant>,
    /// Suspects were deferred: the next claim may take some.
    pub suspects: bool,
}

impl LastPoll {
    /// Before the first poll, which is due at once.
    pub fn new(now: Instant) -> Self {
        Self {
            polled: now,
            again: true,
            woken: None,
            paused: false,
            due: None,
            parks: false,
            lease: None,
            suspects: false,
        }
    }

    /// Stores the reply of a poll. All instants count from `received`: Redis read its clock before that, so none is too
    /// early. Returns whether leases had expired by Redis' clock.
    pub fn update(&mut self, claim: &Claim, received: Instant) -> bool {
        let at = |micros: u64| received + Duration::from_micros(micros.saturating_sub(claim.clock.micros));
        self.polled = received;
        self.again = false;
        self.woken = None;
        self.paused = claim.paused;
        self.suspects = claim.suspects > 0;
        self.due = claim.next_due.map(|due| {
            let late = Duration::from_micros(claim.clock.micros.saturating_sub(due.get() * 1000));
            // Behind messages that were parked there are often others of their flow. They are not late.
            let late = if claim.parked > 0 { Duration::ZERO } else { late };
            received.checked_sub(late).filter(|_| !late.is_zero()).unwrap_or_else(|| at(due.get() * 1000))
        });
        self.parks = claim.parked > 0;
        self.lease = claim.next_lease.map(|deadline| at(deadline) + LEASE_SLACK);
        claim.next_lease.is_some_and(|deadline| deadline < claim.clock.micros)
    }

    /// The time of the next poll, at most `fallback`, and its label. `sharing_delay`: how long due messages are left to
    /// other instances. `recover_from`: an expired lease causes no poll before this time.
    pub fn next(&self, fallback: Instant, sharing_delay: Duration, recover_from: Instant) -> (Instant, &'static str) {
        if self.again {
            return (self.polled, TIMER);
        }
        // Messages that were overdue at the last poll are not taken by another instance: no delay. A backlog is parked by
        // the instance that serves the partition.
        let due = self.due.map(|at| if at <= self.polled && !self.parks { at } else { at + sharing_delay });
        let woken = self.woken.map(|at| at + sharing_delay);
        let lease = self.lease.map(|at| at.max(recover_from));
        let timer = [due.filter(|_| !self.paused), woken, lease].into_iter().flatten().min();
        timer.filter(|at| *at <= fallback).map_or((fallback, FALLBACK), |at| (at, TIMER))
    }

    /// Since when the head was overdue at the last poll; `None` if it was not.
    pub fn overdue_since(&self) -> Option<Instant> {
        self.due.filter(|due| !self.paused && *due <= self.polled)
    }

    /// Whether a message is due, as far as known.
    pub fn has_due(&self) -> bool {
        !self.paused && (self.woken.is_some() || self.due.is_some_and(|due| due <= Instant::now()))
    }
}

/// Whether a due time in milliseconds has passed by the clock of the reply.
pub fn overdue(claim: &Claim, due: u64) -> bool {
    due * 1000 <= claim.clock.micros
}
