//! The windows of a route, on the clock of the store as a claimer knows it.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    calendar::{Calendar, Span},
    store::Claim,
    time::{ServerClock, UnixMillis},
};

/// Open or closed, by the reply of the last poll.
pub struct Opening {
    /// `None`: always open.
    calendar: Option<Arc<Calendar>>,
    known: Option<(Span, ServerClock)>,
}

impl Opening {
    pub fn new(calendar: Option<Arc<Calendar>>) -> Self {
        Self { calendar, known: None }
    }

    /// Whether the route is known to be open at `now`. Before the first reply, and after the end of an open span, it is
    /// not: a poll that takes nothing reads the clock first.
    pub fn is_open(&self, now: Instant) -> bool {
        self.calendar.is_none()
            || self.known.is_some_and(|(span, clock)| span.open && clock.at(now) < span.until * 1000)
    }

    /// Reads the clock of a reply. While the route is closed, its head is due at the opening. Returns whether the route
    /// is open.
    pub fn polled(&mut self, claim: &mut Claim) -> bool {
        let Some(calendar) = &self.calendar else { return true };
        let now = claim.clock.micros / 1000;
        let known = self.known.map(|(span, _)| span).filter(|span| (span.since..span.until).contains(&now));
        let span = known.unwrap_or_else(|| calendar.at(now));
        self.known = Some((span, claim.clock));
        if !span.open {
            let opens = UnixMillis::new(span.until).unwrap_or_default();
            claim.next_due = claim.next_due.map(|due| due.max(opens));
        }
        span.open
    }

    /// The opening in microseconds on the clock of the store; 0 if the route is always open. Lateness counts from it.
    pub fn since(&self) -> u64 {
        self.known.map_or(0, |(span, _)| span.since * 1000)
    }
}
