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

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::calendar::Window;

    /// Noon of a day, in milliseconds since the epoch.
    const NOON: u64 = 1_700_136_000_000;

    /// The reply of a poll at this time, with a head that is due an hour before.
    fn claim(millis: u64, taken: Instant) -> Claim {
        let clock = ServerClock { micros: millis * 1000, taken };
        Claim { next_due: UnixMillis::new(millis - 3_600_000), ..Claim::empty(clock) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_is_open_from_the_opening_to_the_closing_by_the_clock_of_the_store() {
        let window = Window { days: [true; 7], from: 12 * 60, to: 13 * 60, zone: TimeZone::UTC };
        let mut opening = Opening::new(Calendar::new(vec![window]).map(Arc::new));
        let now = Instant::now();
        assert!(!opening.is_open(now) && opening.closes().is_none() && opening.since() == 0);
        let mut before = claim(NOON - 1, now);
        assert!(!opening.polled(&mut before) && !opening.is_open(now));
        assert_eq!(before.next_due, UnixMillis::new(NOON));
        let mut open = claim(NOON + 1000, now);
        assert!(opening.polled(&mut open) && opening.is_open(now));
        assert_eq!((open.next_due, opening.since()), (UnixMillis::new(NOON + 1000 - 3_600_000), NOON * 1000));
        let closes = now + Duration::from_secs(3599);
        assert_eq!(opening.closes(), Some(closes));
        assert!(opening.is_open(closes - Duration::from_micros(1)) && !opening.is_open(closes));
        // The clock of the store was set forward since.
        let later = now + Duration::from_mins(1);
        assert!(opening.polled(&mut claim(NOON + 120_000, later)));
        assert_eq!(opening.closes(), Some(later + Duration::from_mins(58)));
        let mut over = claim(NOON + 3_600_000, now);
        assert!(!opening.polled(&mut over));
        assert_eq!(over.next_due, UnixMillis::new(NOON + 24 * 3_600_000));

        let mut always = Opening::new(None);
        assert!(always.is_open(now) && always.polled(&mut claim(NOON, now)));
        assert_eq!((always.closes(), always.since()), (None, 0));
    }
}
