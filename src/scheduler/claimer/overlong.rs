//! Leases that end too late: the clock of the store stepped back, or a server whose clock is behind became the master.
//!
//! A holder that is alive settles within its lease, with the token that it has. So these leases are not ended at sight: the
//! claimer waits for one lease on its own clock first. A holder that did not settle by then is taken for dead.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::CutLeases;

/// Besides twice the lease: an instance may have a longer `lease` for a while, before all have the same configuration.
const MARGIN: Duration = Duration::from_mins(1);

/// When to look for them next, and what the last look found.
#[derive(Debug)]
pub struct Overlong {
    lease: Duration,
    pub look_at: Instant,
    /// The deadline that leases exceeded at the last look, in microseconds.
    beyond: Option<u64>,
}

impl Overlong {
    pub fn new(lease: Duration, now: Instant) -> Self {
        Self { lease, look_at: now + lease, beyond: None }
    }

    /// No lease that is given between two looks ends later than this from the first one.
    pub fn longest(&self) -> Duration {
        2 * self.lease + MARGIN
    }

    /// The leases beyond it have lasted for a whole lease since they were seen.
    pub fn cut_from(&self) -> Option<u64> {
        self.beyond
    }

    pub fn looked(&mut self, found: CutLeases, now: Instant) {
        // A look ends a bounded number: the others have waited too.
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
