//! The windows of a route, on the clock of the store as a claimer knows it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    calendar::{Calendar, Span},
    store::Claim,
    time::{ServerClock, UnixMillis},
};

/// Time after which a span without an end is looked up again.
const LOOK_UP: Duration = Duration::from_hours(24);

/// Open or closed, by the reply of the last poll.
pub struct Opening {
    /// `None`: always open.
    calendar: Option<Arc<Calendar>>,
    known: Option<Known>,
}

#[derive(Clone, Copy)]
struct Known {
    span: Span,
    /// Validity of `span`: from and until, in milliseconds on the clock of the store.
    from: u64,
    until: u64,
    /// The clock of the last reply.
    clock: ServerClock,
}

impl Opening {
    pub fn new(calendar: Option<Arc<Calendar>>) -> Self {
        Self { calendar, known: None }
    }

    /// Whether the route is known to be open at `now`. Before the first reply, and after the end of an open span, it is
    /// not: a poll that takes nothing reads the clock first.
    pub fn is_open(&self, now: Instant) -> bool {
        let is_open = |known: Known| known.span.open && known.clock.at(now) < known.until * 1000;
        self.calendar.is_none() || self.known.is_some_and(is_open)
    }

    /// Reads the clock of a reply. While the route is closed, its head is due at the opening. Returns whether the route
    /// is open.
    pub fn polled(&mut self, claim: &mut Claim) -> bool {
        let Some(calendar) = &self.calendar else { return true };
        let now = claim.clock.micros / 1000;
        let known = self.known.filter(|known| (known.from..known.until).contains(&now)).unwrap_or_else(|| {
            let span = calendar.at(now);
            let longest = now + u64::try_from(LOOK_UP.as_millis()).expect("a day");
            let (from, until) = (span.since.unwrap_or(now), span.until.unwrap_or(longest));
            Known { span, from, until, clock: claim.clock }
        });
        self.known = Some(Known { clock: claim.clock, ..known });
        if !known.span.open {
            let opens = UnixMillis::new(known.until).unwrap_or_default();
            claim.next_due = claim.next_due.map(|due| due.max(opens));
        }
        known.span.open
    }

    /// When the open span ends; `None` if it has no end.
    pub fn closes(&self) -> Option<Instant> {
        let Known { span, clock, .. } = self.known?;
        Some(clock.taken + Duration::from_micros((span.until? * 1000).saturating_sub(clock.micros)))
    }

    /// The opening in microseconds on the clock of the store; 0 if the route is always open. Lateness counts from it.
    pub fn since(&self) -> u64 {
        self.known.and_then(|known| known.span.since).map_or(0, |since| since * 1000)
    }
}
