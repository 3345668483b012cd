//! What a partition's last look showed, in this machine's time, and when the next one is worth it.

use std::time::Duration;

use tokio::time::Instant;

use crate::port::Claim;

/// A lease has expired a millisecond after its deadline at the latest, whichever way Redis compares.
const LEASE_SLACK: Duration = Duration::from_millis(1);

/// What to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Ordinary,
    /// A message that crashed its process twice, with nothing else in flight.
    Suspect,
}

/// Why a sleeper woke; a label of `punctual_wakeups_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    Timer,
    Fallback,
}

#[derive(Debug)]
pub struct View {
    /// When the look was answered.
    pub looked: Instant,
    /// A reason to look that stands until a look is answered.
    pub again: bool,
    paused: bool,
    /// When the head is due, by Redis' clock not a moment too early.
    due: Option<Instant>,
    /// When the earliest lease ends.
    pub lease: Option<Instant>,
    pub suspects: u32,
}

impl View {
    /// Nothing was seen yet: look.
    pub fn new(now: Instant) -> Self {
        Self { looked: now, again: true, paused: false, due: None, lease: None, suspects: 0 }
    }

    /// `received` is the base for every instant: Redis read its clock before it, so nothing comes too early.
    /// Returns whether leases had expired by then.
    pub fn update(&mut self, claim: &Claim, look: Look, received: Instant) -> bool {
        let at = |micros: u64| received + Duration::from_micros(micros.saturating_sub(claim.clock.micros));
        let nothing = claim.messages.is_empty();
        self.looked = received;
        self.again = false;
        self.paused = claim.paused;
        self.suspects = match look {
            Look::Ordinary => claim.suspects,
            Look::Suspect if nothing => 0,
            Look::Suspect => self.suspects.saturating_sub(1),
        };
        // When only suspects are due, it is they that the head shows; `suspects` is the reason to look then.
        let only_suspects = nothing && look == Look::Ordinary && self.suspects > 0;
        self.due =
            claim.next_due.filter(|due| !only_suspects || !overdue(claim, due.get())).map(|due| at(due.get() * 1000));
        self.lease = claim.next_lease.map(|deadline| at(deadline) + LEASE_SLACK);
        claim.next_lease.is_some_and(|deadline| deadline < claim.clock.micros)
    }

    /// When to look next, and for what. `suspect_at`: when a suspect may leave, `None` for at once; suspects go
    /// before others that are overdue. `recover_from`: when an ended lease is worth a look.
    pub fn next(
        &self,
        max_sleep: Duration,
        suspect_at: Option<Instant>,
        recover_from: Instant,
    ) -> (Instant, Look, Wake) {
        if self.again {
            return (self.looked, Look::Ordinary, Wake::Timer);
        }
        let waiting = !self.paused;
        [
            (waiting && self.suspects > 0).then_some((suspect_at.unwrap_or(self.looked), Look::Suspect, Wake::Timer)),
            self.due.filter(|_| waiting).map(|at| (at, Look::Ordinary, Wake::Timer)),
            self.lease.map(|at| (at.max(recover_from), Look::Ordinary, Wake::Timer)),
        ]
        .into_iter()
        .flatten()
        .chain([(self.looked + max_sleep, Look::Ordinary, Wake::Fallback)])
        .min_by_key(|(at, ..)| *at)
        .expect("there is always the fallback")
    }
}

/// Whether a due time in milliseconds has passed by the clock of the reply.
pub fn overdue(claim: &Claim, due: u64) -> bool {
    due * 1000 <= claim.clock.micros
}
