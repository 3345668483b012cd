//! The breaker's states and what moves it between them. No clock, no lock: instants are arguments.

use std::time::Duration;

use tokio::time::Instant;

use crate::{message::MessageId, outcome::Outcome};

/// Between two probes of an open breaker, over all routes of its sink.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Between two probes with a suspect: each holds up every route of this process until it is settled.
const SUSPECT_PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// Throttled in a row, over so many distinct ids, opens.
const THROTTLED_IN_A_ROW: usize = 5;

/// Messages in flight for the sink right after it came back. Each confirmation adds one, which doubles the
/// window per round trip.
const FIRST_WINDOW: usize = 10;

#[derive(Debug)]
pub struct Machine {
    state: State,
    /// Counts changes of state. An outcome counts only in the epoch in which its message was claimed: a batch
    /// sent before an outage says nothing about the sink after it.
    epoch: u64,
    /// Messages that the routes of the sink may have in flight together.
    ceiling: usize,
    in_flight: usize,
    /// Distinct ids throttled since the last success.
    throttled: Vec<MessageId>,
    last_error: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// `window`: messages in flight during a slow start.
    Closed { window: Option<usize> },
    Open {
        next_probe: Instant,
        next_suspect: Instant,
        /// Probes under way.
        probes: usize,
    },
}

/// As `GET /v1/sinks` and the gauge show it. Half-open: a probe is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

/// Whether messages may leave for the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    Now,
    At(Instant),
    /// When something comes back from the sink.
    Later,
}

/// So many messages may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub messages: usize,
    pub at: Instant,
    pub epoch: u64,
    pub probe: bool,
}

impl Machine {
    pub fn new() -> Self {
        Self {
            state: State::Closed { window: None },
            epoch: 0,
            ceiling: 0,
            in_flight: 0,
            throttled: Vec::new(),
            last_error: None,
        }
    }

    /// A route joins that may have so many messages in flight.
    pub fn join(&mut self, max_in_flight: usize) {
        self.ceiling += max_in_flight;
    }

    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { probes: 0, .. } => BreakerState::Open,
            State::Open { .. } => BreakerState::HalfOpen,
        }
    }

    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// `suspect`: for a message that must be alone.
    pub fn leave(&self, now: Instant, suspect: bool) -> Leave {
        match self.state {
            State::Closed { window: Some(window) } if self.in_flight >= window => Leave::Later,
            State::Closed { .. } => Leave::Now,
            State::Open { next_probe, next_suspect, .. } => {
                let at = if suspect { next_probe.max(next_suspect) } else { next_probe };
                if at <= now { Leave::Now } else { Leave::At(at) }
            }
        }
    }

    /// From when on a suspect may leave; `None` while closed.
    pub fn suspects_from(&self) -> Option<Instant> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { next_probe, next_suspect, .. } => Some(next_probe.max(next_suspect)),
        }
    }

    /// Up to `want` messages; `None` unless `leave` says now. What is not used is to be returned.
    pub fn admit(&mut self, now: Instant, want: usize, suspect: bool) -> Option<Grant> {
        if want == 0 || self.leave(now, suspect) != Leave::Now {
            return None;
        }
        let epoch = self.epoch;
        let (messages, probe) = match &mut self.state {
            State::Closed { window } => (window.map_or(want, |window| want.min(window - self.in_flight)), false),
            State::Open { next_probe, next_suspect, probes } => {
                *next_probe = now + PROBE_INTERVAL;
                if suspect {
                    *next_suspect = now + SUSPECT_PROBE_INTERVAL;
                }
                *probes += 1;
                (1, true)
            }
        };
        self.in_flight += messages;
        Some(Grant { messages, at: now, epoch, probe })
    }

    /// So many granted messages are no longer in flight.
    pub fn leave_flight(&mut self, messages: usize) {
        self.in_flight -= messages;
    }

    /// A probe came to nothing: nothing was claimed, or nothing sent. Unless another has left since, the next
    /// may leave at once.
    pub fn probe_unused(&mut self, grant: Grant, now: Instant) {
        if let State::Open { next_probe, probes, .. } = &mut self.state
            && grant.epoch == self.epoch
        {
            *probes -= 1;
            if *next_probe == grant.at + PROBE_INTERVAL {
                *next_probe = now;
            }
        }
    }

    /// What became of one sent message of an earlier grant.
    pub fn record(&mut self, now: Instant, grant: Grant, id: &MessageId, outcome: &Outcome) {
        if grant.epoch != self.epoch {
            return;
        }
        if let Some(error) = outcome.error() {
            self.last_error = Some(error.to_owned());
        }
        match &mut self.state {
            State::Open { probes, .. } => {
                *probes -= 1;
                // A rejection is an answer too: the sink is there.
                if matches!(outcome, Outcome::Confirmed | Outcome::Rejected { .. }) {
                    self.turn(State::Closed { window: Some(FIRST_WINDOW) });
                }
            }
            State::Closed { window } => match outcome {
                Outcome::Confirmed | Outcome::Rejected { .. } => {
                    self.throttled.clear();
                    *window = window.map(|window| window + 1).filter(|window| *window < self.ceiling);
                }
                Outcome::Failed { .. } => {}
                Outcome::Throttled { .. } => {
                    if !self.throttled.contains(id) {
                        self.throttled.push(id.clone());
                    }
                    if self.throttled.len() >= THROTTLED_IN_A_ROW {
                        self.open(now);
                    }
                }
                Outcome::Unavailable { .. } => self.open(now),
                Outcome::Unsendable { .. } => {}
            },
        }
    }

    fn open(&mut self, now: Instant) {
        let first = now + PROBE_INTERVAL;
        self.turn(State::Open { next_probe: first, next_suspect: first, probes: 0 });
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.epoch += 1;
        self.throttled.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Bench {
        machine: Machine,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let mut machine = Machine::new();
            machine.join(40);
            Self { machine, now: Instant::now() }
        }

        fn opened() -> Self {
            let mut bench = Self::new();
            bench.round_trip("a", &unavailable());
            bench
        }

        fn admit(&mut self, want: usize) -> Option<Grant> {
            self.machine.admit(self.now, want, false)
        }

        fn report(&mut self, grant: Grant, id: &str, outcome: &Outcome) {
            self.machine.record(self.now, grant, &MessageId::parse(id).unwrap(), outcome);
            self.machine.leave_flight(1);
        }

        fn round_trip(&mut self, id: &str, outcome: &Outcome) {
            let grant = self.admit(1).expect("it may leave");
            self.report(grant, id, outcome);
        }
    }

    fn unavailable() -> Outcome {
        Outcome::Unavailable { error: "refused".into() }
    }

    fn throttled() -> Outcome {
        Outcome::Throttled { error: "HTTP 429".into(), retry_after: None }
    }

    #[test]
    fn one_unavailable_opens_at_once_and_the_error_is_kept() {
        let bench = Bench::opened();
        assert_eq!(bench.machine.state(), BreakerState::Open);
        assert_eq!(bench.machine.last_error(), Some("refused"));
        assert_eq!(bench.machine.leave(bench.now, false), Leave::At(bench.now + SECOND));
    }

    #[test]
    fn five_throttled_open_only_over_distinct_ids_without_a_success_between() {
        let mut bench = Bench::new();
        (0..20).for_each(|_| bench.round_trip("same", &throttled()));
        for id in ["b", "c", "d"] {
            bench.round_trip(id, &throttled());
        }
        bench.round_trip("e", &Outcome::Confirmed);
        for id in ["a", "b", "c", "d"] {
            bench.round_trip(id, &throttled());
        }
        bench.round_trip("x", &Outcome::Failed { error: "HTTP 500".into(), retry_after: None });
        assert_eq!(bench.machine.state(), BreakerState::Closed);
        bench.round_trip("e", &throttled());
        assert_eq!(bench.machine.state(), BreakerState::Open);
    }

    #[test]
    fn an_open_breaker_lets_one_probe_a_second_pass() {
        let mut bench = Bench::opened();
        assert_eq!(bench.admit(100), None);
        bench.now += SECOND;
        let probe = bench.admit(100).unwrap();
        assert!(probe.probe && probe.messages == 1);
        assert_eq!(bench.machine.state(), BreakerState::HalfOpen);
        assert_eq!(bench.admit(1), None);
        bench.report(probe, "a", &throttled());
        assert_eq!(bench.machine.state(), BreakerState::Open);
        assert_eq!(bench.admit(1), None, "a failed probe does not bring the next one forward");
        bench.now += SECOND;
        assert!(bench.admit(1).is_some());
    }

    #[test]
    fn a_probe_that_found_nothing_is_another_routes_to_use() {
        let mut bench = Bench::opened();
        bench.now += SECOND;
        let probe = bench.admit(1).unwrap();
        bench.machine.probe_unused(probe, bench.now);
        bench.machine.leave_flight(1);
        assert!(bench.admit(1).is_some());
    }

    #[test]
    fn suspects_probe_rarely() {
        let mut bench = Bench::opened();
        bench.now += SECOND;
        let probe = bench.machine.admit(bench.now, 1, true).unwrap();
        bench.report(probe, "a", &throttled());
        assert_eq!(bench.machine.leave(bench.now, true), Leave::At(bench.now + SUSPECT_PROBE_INTERVAL));
        assert_eq!(bench.machine.leave(bench.now, false), Leave::At(bench.now + SECOND));
    }

    #[test]
    fn after_a_confirmed_or_rejected_probe_the_window_doubles_per_round_trip() {
        for outcome in [Outcome::Confirmed, Outcome::Rejected { error: String::new() }] {
            let mut bench = Bench::opened();
            bench.now += SECOND;
            bench.round_trip("a", &outcome);
            let mut windows = Vec::new();
            for _ in 0..3 {
                let grant = bench.admit(1000).unwrap();
                windows.push(grant.messages);
                (0..grant.messages).for_each(|_| bench.report(grant, "x", &Outcome::Confirmed));
            }
            assert_eq!(windows, [10, 20, 1000], "40 are configured");
        }
    }

    #[test]
    fn outcomes_from_before_a_change_of_state_say_nothing() {
        let mut bench = Bench::new();
        let early = bench.admit(10).unwrap();
        bench.report(early, "a", &unavailable());
        bench.report(early, "b", &Outcome::Confirmed);
        assert_eq!(bench.machine.state(), BreakerState::Open);
        bench.now += SECOND;
        bench.round_trip("c", &Outcome::Confirmed);
        bench.report(early, "d", &unavailable());
        assert_eq!(bench.machine.state(), BreakerState::Closed);
    }
}
