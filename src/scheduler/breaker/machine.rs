//! The states of a breaker and their transitions. No clock, no lock: instants are arguments.

use tokio::time::Instant;

use super::down::PROBE_INTERVAL;

/// Maximum messages in flight for the sink right after it recovered. Each confirmation adds one, which doubles the
/// window per round trip.
const FIRST_WINDOW: usize = 10;

#[derive(Debug)]
pub struct Machine {
    state: MachineState,
    /// Counts changes of state. An outcome counts only in the epoch in which its message was claimed: a batch sent
    /// before an outage shows nothing about the sink after the outage.
    epoch: u64,
    /// Messages that the routes of the sink may have in flight together.
    ceiling: usize,
    in_flight: usize,
}

#[derive(Clone, Copy, Debug)]
enum MachineState {
    /// `window`: maximum messages in flight during a slow start.
    Closed { window: Option<usize> },
    Open {
        next_probe: Instant,
        /// Probes in flight.
        probes: usize,
    },
}

/// The state in `GET /v1/sinks` and in the gauge. Half-open: a probe is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

/// Whether messages may leave for the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Now,
    At(Instant),
    /// When a message is no longer in flight.
    Later,
}

/// The permission to claim a number of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimGrant {
    pub messages: usize,
    pub at: Instant,
    pub epoch: u64,
    pub probe: bool,
}

impl Machine {
    pub fn new() -> Self {
        Self { state: MachineState::Closed { window: None }, epoch: 0, ceiling: 0, in_flight: 0 }
    }

    /// Adds a route with its `max_in_flight`.
    pub fn join(&mut self, max_in_flight: usize) {
        self.ceiling += max_in_flight;
    }

    /// Removes a route that joined. A slow start ends at the next confirmation if its window reached the new ceiling.
    pub fn leave(&mut self, max_in_flight: usize) {
        self.ceiling -= max_in_flight;
    }

    pub fn state(&self) -> BreakerState {
        match self.state {
            MachineState::Closed { .. } => BreakerState::Closed,
            MachineState::Open { probes: 0, .. } => BreakerState::Open,
            MachineState::Open { .. } => BreakerState::HalfOpen,
        }
    }

    pub fn readiness(&self, now: Instant) -> Readiness {
        match self.state {
            MachineState::Closed { window: Some(window) } if self.in_flight >= window => Readiness::Later,
            MachineState::Closed { .. } => Readiness::Now,
            MachineState::Open { next_probe, .. } if next_probe <= now => Readiness::Now,
            MachineState::Open { next_probe, .. } => Readiness::At(next_probe),
        }
    }

    /// Whether messages may have to wait. If not, `readiness` is always `Now`.
    pub fn may_wait(&self) -> bool {
        !matches!(self.state, MachineState::Closed { window: None })
    }

    /// Grants up to `want` messages; `None` unless `readiness` is `Now`. Unused permits must be returned.
    pub fn admit(&mut self, now: Instant, want: usize) -> Option<ClaimGrant> {
        if want == 0 || self.readiness(now) != Readiness::Now {
            return None;
        }
        let epoch = self.epoch;
        let (messages, probe) = match &mut self.state {
            MachineState::Closed { window } => (window.map_or(want, |window| want.min(window - self.in_flight)), false),
            MachineState::Open { next_probe, probes } => {
                *next_probe = now + PROBE_INTERVAL;
                *probes += 1;
                (1, true)
            }
        };
        self.in_flight += messages;
        Some(ClaimGrant { messages, at: now, epoch, probe })
    }

    /// Records that `messages` granted messages are no longer in flight.
    pub fn leave_flight(&mut self, messages: usize) {
        self.in_flight -= messages;
    }

    /// A probe was not used: nothing was claimed, or nothing sent. The next probe may be sent at once, unless another
    /// one was sent since.
    pub fn probe_unused(&mut self, grant: ClaimGrant, now: Instant) {
        if let MachineState::Open { next_probe, probes } = &mut self.state
            && grant.epoch == self.epoch
        {
            *probes -= 1;
            if *next_probe == grant.at + PROBE_INTERVAL {
                *next_probe = now;
            }
        }
    }

    /// The destination answered: a probe closes the breaker, with a slow start.
    pub fn answered(&mut self, grant: ClaimGrant) {
        if grant.epoch != self.epoch {
            return;
        }
        match &mut self.state {
            MachineState::Open { .. } => self.turn(MachineState::Closed { window: Some(FIRST_WINDOW) }),
            MachineState::Closed { window } => {
                *window = window.map(|window| window + 1).filter(|window| *window < self.ceiling);
            }
        }
    }

    /// An attempt failed. `sink_down`: the whole sink is the cause.
    pub fn failed(&mut self, now: Instant, grant: ClaimGrant, sink_down: bool) {
        if grant.epoch != self.epoch {
            return;
        }
        match &mut self.state {
            MachineState::Open { probes, .. } => *probes -= 1,
            MachineState::Closed { .. } if sink_down => {
                self.turn(MachineState::Open { next_probe: now + PROBE_INTERVAL, probes: 0 });
            }
            MachineState::Closed { .. } => {}
        }
    }

    fn turn(&mut self, state: MachineState) {
        self.state = state;
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct MachineFixture {
        machine: Machine,
        now: Instant,
    }

    impl MachineFixture {
        fn new() -> Self {
            let mut machine = Machine::new();
            machine.join(40);
            Self { machine, now: Instant::now() }
        }

        fn opened() -> Self {
            let mut fixture = Self::new();
            let grant = fixture.admit(1).unwrap();
            fixture.fail(grant, true);
            fixture
        }

        fn admit(&mut self, want: usize) -> Option<ClaimGrant> {
            self.machine.admit(self.now, want)
        }

        fn fail(&mut self, grant: ClaimGrant, sink_down: bool) {
            self.machine.failed(self.now, grant, sink_down);
            self.machine.leave_flight(1);
        }

        fn answer(&mut self, grant: ClaimGrant) {
            self.machine.answered(grant);
            self.machine.leave_flight(1);
        }
    }

    #[test]
    fn it_opens_only_for_a_failure_of_the_sink() {
        let mut fixture = MachineFixture::new();
        let grant = fixture.admit(1).unwrap();
        fixture.fail(grant, false);
        assert_eq!(fixture.machine.state(), BreakerState::Closed);
        let fixture = MachineFixture::opened();
        assert_eq!(fixture.machine.state(), BreakerState::Open);
        assert_eq!(fixture.machine.readiness(fixture.now), Readiness::At(fixture.now + SECOND));
    }

    #[test]
    fn an_open_breaker_lets_one_probe_a_second_pass() {
        let mut fixture = MachineFixture::opened();
        assert_eq!(fixture.admit(100), None);
        fixture.now += SECOND;
        let probe = fixture.admit(100).unwrap();
        assert!(probe.probe && probe.messages == 1);
        assert_eq!(fixture.machine.state(), BreakerState::HalfOpen);
        assert_eq!(fixture.admit(1), None);
        fixture.fail(probe, false);
        assert_eq!(fixture.machine.state(), BreakerState::Open);
        assert_eq!(fixture.admit(1), None, "a failed probe does not bring the next one forward");
        fixture.now += SECOND;
        assert!(fixture.admit(1).is_some());
    }

    #[test]
    fn a_probe_that_found_nothing_is_another_routes_to_use() {
        let mut fixture = MachineFixture::opened();
        fixture.now += SECOND;
        let probe = fixture.admit(1).unwrap();
        fixture.machine.probe_unused(probe, fixture.now);
        fixture.machine.leave_flight(1);
        assert!(fixture.admit(1).is_some());
    }

    #[test]
    fn after_an_answered_probe_the_window_doubles_per_round_trip() {
        let mut fixture = MachineFixture::opened();
        fixture.now += SECOND;
        let probe = fixture.admit(1).unwrap();
        fixture.answer(probe);
        let mut windows = Vec::new();
        for _ in 0..3 {
            let grant = fixture.admit(1000).expect("closed");
            windows.push(grant.messages);
            assert_eq!(fixture.admit(1).is_none(), grant.messages < 1000, "the window is full");
            (0..grant.messages).for_each(|_| fixture.answer(grant));
        }
        assert_eq!(windows, [10, 20, 1000], "no window from the ceiling of 40 on");
    }

    #[test]
    fn outcomes_from_before_a_change_of_state_are_ignored() {
        let mut fixture = MachineFixture::new();
        let (old, late) = (fixture.admit(1).unwrap(), fixture.admit(1).unwrap());
        fixture.fail(old, true);
        fixture.answer(late);
        assert_eq!(fixture.machine.state(), BreakerState::Open);
        fixture.now += SECOND;
        let probe = fixture.admit(1).unwrap();
        fixture.answer(probe);
        fixture.machine.failed(fixture.now, late, true);
        assert_eq!(fixture.machine.state(), BreakerState::Closed);
    }

    #[test]
    fn messages_never_wait_for_a_closed_breaker_without_a_window() {
        let mut fixture = MachineFixture::new();
        assert!(!fixture.machine.may_wait());
        fixture = MachineFixture::opened();
        assert!(fixture.machine.may_wait());
    }
}
