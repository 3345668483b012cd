//! Leases that end too late: the clock of the store stepped back, or a server with a clock that is behind became the
//! master.
//!
//! A live holder settles within its lease, with its token. So the claimer does not end such a lease at once: it first
//! waits for one lease on its own clock. A holder that has not settled by that time is considered dead.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::CutLeases;

/// Added to twice the lease: an instance may have a longer `lease` for a while, until all have the same configuration.
const MARGIN: Duration = Duration::from_mins(1);

/// The time of the next check, and the result of the last one.
#[derive(Debug)]
pub struct Overlong {
    lease: Duration,
    pub look_at: Instant,
    /// The deadline that leases exceeded at the last check, in microseconds.
    beyond: Option<u64>,
}

impl Overlong {
    pub fn new(lease: Duration, now: Instant) -> Self {
        Self { lease, look_at: now + lease, beyond: None }
    }

    /// No lease that is given between two checks ends later than this, counted from the first check.
    pub fn longest(&self) -> Duration {
        2 * self.lease + MARGIN
    }

    /// Leases with a later deadline have existed for a whole lease since the check that found them.
    pub fn cut_from(&self) -> Option<u64> {
        self.beyond
    }

    pub fn looked(&mut self, found: CutLeases, now: Instant) {
        // A check ends a bounded number of leases: the others have waited too.
        if found.cut > 0 && found.beyond.is_some() {
            self.look_at = now;
        } else {
            (self.look_at, self.beyond) = (now + self.lease, found.beyond);
        }
    }

    pub fn look_later(&mut self, at: Instant) {
        self.look_at = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_cut_one_lease_after_the_check_that_found_it() {
        let now = Instant::now();
        let mut overlong = Overlong::new(LEASE, now);
        assert_eq!(
            (overlong.look_at, overlong.longest(), overlong.cut_from()),
            (now + LEASE, 2 * LEASE + MARGIN, None)
        );
        let first = now + LEASE;
        overlong.looked(CutLeases { cut: 0, beyond: Some(7) }, first);
        assert_eq!((overlong.look_at, overlong.cut_from()), (first + LEASE, Some(7)));
        // A check that ended as many as it can is repeated at once.
        overlong.looked(CutLeases { cut: 1000, beyond: Some(9) }, first + LEASE);
        assert_eq!((overlong.look_at, overlong.cut_from()), (first + LEASE, Some(7)));
        overlong.looked(CutLeases { cut: 5, beyond: None }, first + LEASE);
        assert_eq!((overlong.look_at, overlong.cut_from()), (first + 2 * LEASE, None));
        overlong.look_later(now);
        assert_eq!(overlong.look_at, now);
    }
}
