//! Successes and failures by failure domain: they show whether the cause of a failure is the message, its domain or the
//! whole sink. No clock, no lock: instants are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    down::{DomainOutage, MessageKey},
    latest::Latest,
    streak::Streak,
};
use crate::{
    scheduler::decide::Attribution,
    sink::{Domain, Outcome},
};

/// Maximum domains with evidence; each costs about 200 bytes. More domains would be single addresses, not failure
/// domains.
const MAX_DOMAINS: usize = 1000;

/// Maximum messages with recorded losses, of which the latest are kept: as many as may be in flight when a destination
/// goes down, at most 2 MB.
const MAX_LOST: usize = 10_000;

/// The sink is down when this number of domains went down and nothing got through since the first of them.
const MANY_DOMAINS: u32 = 10;

/// A message is the cause itself when it was lost this number of times, each time while others of its domain got
/// through. A flapping destination loses the same message that often only by a rare chance, which costs the message an
/// attempt.
const LOST_BY_ITSELF: u32 = 3;

/// Wait before the second attempt of a lost message; doubled before the third.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// One attempt that has ended.
#[derive(Clone, Copy)]
pub struct Attempted<'a> {
    pub message: &'a MessageKey,
    pub sent: Instant,
    pub domain: Option<&'a Domain>,
    pub outcome: &'a Outcome,
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Message(Attribution),
    /// The domain: no message of it got through.
    Domain,
    /// The sink: no message got through, and the cause is not a single domain.
    Sink,
}

/// A failure domain that is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DownDomain {
    pub name: Domain,
    /// The error that showed the outage.
    pub error: String,
    pub since: Instant,
}

#[derive(Debug)]
pub struct Evidence {
    sink: DomainRecord,
    domains: Latest<Domain, DomainRecord>,
    /// Domains that are down.
    down: usize,
    /// Domains that went down since the last confirmation.
    down_since_passed: u32,
    /// The last message that was lost without a domain, if nothing was confirmed since.
    lost_alone: Option<MessageKey>,
    /// Lost messages (sent, and without an answer), with the number of losses while others of their domain got through.
    losses: Latest<MessageKey, u32>,
}

#[derive(Debug, Default)]
struct DomainRecord {
    /// The latest confirmation.
    passed: Option<Instant>,
    streak: Streak,
    down: Option<DomainOutage>,
}

impl Evidence {
    pub fn new() -> Self {
        Self {
            sink: DomainRecord::default(),
            domains: Latest::new(MAX_DOMAINS),
            down: 0,
            down_since_passed: 0,
            lost_alone: None,
            losses: Latest::new(MAX_LOST),
        }
    }

    /// Records a message that was confirmed or permanently refused. A refusal ends a streak of failures and an outage
    /// of the domain, but does not count as a confirmation. Returns whether the domain had been down.
    pub fn answered(&mut self, now: Instant, attempted: &Attempted<'_>) -> bool {
        let confirmed = *attempted.outcome == Outcome::Confirmed;
        self.forget(attempted.message);
        self.sink.streak.end();
        if confirmed {
            self.sink.passed = Some(now);
            self.down_since_passed = 0;
            self.lost_alone = None;
        }
        let Some(domain) = attempted.domain else { return false };
        let record = self.record(domain, now);
        record.streak.end();
        if confirmed {
            record.passed = Some(now);
        }
        let was_down = record.down.take().is_some();
        self.down -= usize::from(was_down);
        was_down
    }

    /// Records a failure and returns its cause. If the cause is the domain, the domain is down from now on.
    pub fn failed(&mut self, now: Instant, attempted: &Attempted<'_>) -> Cause {
        let Attempted { message: (_, id), domain, outcome, .. } = *attempted;
        let cause = match outcome {
            Outcome::Unavailable { .. } | Outcome::Lost { .. } => self.lost(now, attempted),
            outcome => {
                self.forget(attempted.message);
                let throttled = matches!(outcome, Outcome::Throttled { .. });
                if domain.is_some_and(|name| self.record(name, now).streak.failed(now, id, throttled)) {
                    // A failure of the domain shows nothing about the others.
                    self.sink.streak.end();
                    Cause::Domain
                } else if self.sink.streak.failed(now, id, throttled) {
                    Cause::Sink
                } else {
                    Cause::Message(Attribution::Counts)
                }
            }
        };
        if let (Cause::Domain, Some(name)) = (cause, domain) {
            let error = outcome.error().unwrap_or_default();
            let record = self.record(name, now);
            if record.down.is_none() {
                record.down = Some(DomainOutage::new(now, error));
                self.down += 1;
                self.down_since_passed += 1;
            }
            if self.down_since_passed >= MANY_DOMAINS {
                return Cause::Sink;
            }
        }
        cause
    }

    fn lost(&mut self, now: Instant, attempted: &Attempted<'_>) -> Cause {
        let Attempted { message, sent, domain, outcome } = *attempted;
        let known = self.losses.get(message).map(|(at, times)| (at, *times));
        let (since, known_times) = known.unwrap_or((sent, 0));
        let passed = match domain {
            Some(name) => self.domains.get(name).and_then(|(_, record)| record.passed),
            None => self.sink.passed,
        };
        // `Lost`: the destination was reachable right after the loss, so others would have got through.
        let others_passed = passed > Some(since) || matches!(outcome, Outcome::Lost { .. });
        let times = known_times + u32::from(others_passed);
        *self.losses.entry(message, now, |_| ()) = times;
        if others_passed && times >= LOST_BY_ITSELF {
            Cause::Message(Attribution::Counts)
        } else if others_passed {
            Cause::Message(Attribution::Waits(FIRST_PAUSE * (1 << (times - 1))))
        } else if domain.is_some() {
            Cause::Domain
        } else if known.is_some() || self.lost_alone.as_ref().is_some_and(|other| other != message) {
            // The second loss of this message, or the loss of a second message: a single message is not the cause.
            Cause::Sink
        } else {
            self.lost_alone = Some(message.clone());
            Cause::Message(Attribution::Waits(FIRST_PAUSE))
        }
    }

    /// Whether the message was lost recently.
    pub fn was_lost(&self, message: &MessageKey) -> bool {
        self.losses.get(message).is_some()
    }

    /// Forgets the losses of a message that was answered or is dead.
    pub fn forget(&mut self, message: &MessageKey) {
        self.losses.remove(message);
    }

    /// How long a message of `domain` must wait while the domain is down; `None`: it may be sent, as a probe if the
    /// domain is down. `share`, in `0..=1`, spreads the waits.
    pub fn wait(&mut self, now: Instant, domain: &Domain, message: &MessageKey, share: f64) -> Option<Duration> {
        let down = self.domains.get_mut(domain, now)?.down.as_mut()?;
        if down.probe(now, message) { None } else { Some(down.pause(now, message, share)) }
    }

    /// How long a message that failed must wait; `None` if its domain is up.
    pub fn pause(&mut self, now: Instant, attempted: &Attempted<'_>, share: f64) -> Option<Duration> {
        let down = self.domains.get_mut(attempted.domain?, now)?.down.as_mut()?;
        Some(down.pause(now, attempted.message, share))
    }

    /// Domains that are down, sorted by name.
    pub fn down(&self) -> Vec<DownDomain> {
        let shown = |name: &Domain, down: &DomainOutage| DownDomain {
            name: name.clone(),
            error: down.error.clone(),
            since: down.since,
        };
        let down = self.domains.iter().filter_map(|(name, record)| Some(shown(name, record.down.as_ref()?)));
        let mut down: Vec<DownDomain> = down.collect();
        down.sort_by(|one, other| one.name.cmp(&other.name));
        down
    }

    pub fn count_down(&self) -> usize {
        self.down
    }

    fn record(&mut self, name: &Domain, now: Instant) -> &mut DomainRecord {
        let Self { domains, down, .. } = self;
        domains.entry(name, now, |evicted| *down -= usize::from(evicted.down.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::down::{MAX_RATE, PROBE_INTERVAL, PROBE_PAUSE, RATE_WINDOW},
        *,
    };
    use crate::message::MessageId;

    const MILLI: Duration = Duration::from_millis(1);

    struct EvidenceFixture {
        evidence: Evidence,
        now: Instant,
    }

    impl EvidenceFixture {
        fn new() -> Self {
            Self { evidence: Evidence::new(), now: Instant::now() }
        }

        /// Records the end of an attempt that was sent a millisecond ago.
        fn end(&mut self, id: &str, domain: Option<&str>, outcome: &Outcome) -> Option<Cause> {
            let (sent, domain) = (self.now, domain.map(Domain::from));
            self.now += MILLI;
            let message = &key(id);
            let attempted = Attempted { message, sent, domain: domain.as_ref(), outcome };
            match outcome {
                Outcome::Confirmed | Outcome::Rejected { .. } => {
                    self.evidence.answered(self.now, &attempted);
                    None
                }
                _ => Some(self.evidence.failed(self.now, &attempted)),
            }
        }

        fn lose(&mut self, id: &str, domain: Option<&str>) -> Cause {
            self.end(id, domain, &Outcome::Unavailable { error: "reset".into() }).expect("a failure")
        }

        fn pass(&mut self, id: &str, domain: Option<&str>) {
            self.end(id, domain, &Outcome::Confirmed);
        }

        fn wait(&mut self, id: &str, domain: &str) -> Option<Duration> {
            self.evidence.wait(self.now, &domain.into(), &key(id), 1.0)
        }

        fn pause(&mut self, id: &str, domain: &str, share: f64) -> Option<Duration> {
            let (message, domain) = (&key(id), Domain::from(domain));
            let (sent, outcome) = (self.now, &Outcome::Confirmed);
            let attempted = Attempted { message, sent, domain: Some(&domain), outcome };
            self.evidence.pause(self.now, &attempted, share)
        }
    }

    fn key(id: &str) -> MessageKey {
        ("r".into(), MessageId::parse(id).unwrap())
    }

    const ONCE: Cause = Cause::Message(Attribution::Waits(FIRST_PAUSE));
    const TWICE: Cause = Cause::Message(Attribution::Waits(Duration::from_millis(500)));
    const LONGEST_FIRST: Duration = Duration::from_millis(1250);
    const COUNTS: Cause = Cause::Message(Attribution::Counts);

    #[tokio::test(start_paused = true)]
    async fn a_connection_lost_by_a_destination_that_is_reachable_is_put_down_to_the_message() {
        let lost = Outcome::Lost { error: "reset".into() };
        for domain in [None, Some("x")] {
            let mut fixture = EvidenceFixture::new();
            for cause in [ONCE, TWICE, COUNTS] {
                for id in ["m1", "m2", "m3"] {
                    assert_eq!(fixture.end(id, domain, &lost), Some(cause));
                }
            }
            // The destination is down after all.
            assert_eq!(fixture.lose("m1", domain), if domain.is_some() { Cause::Domain } else { Cause::Sink });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_gets_through_the_sink_is_down() {
        let mut fixture = EvidenceFixture::new();
        assert_eq!(fixture.lose("a", None), ONCE, "it may be this message");
        assert_eq!(fixture.lose("a", None), Cause::Sink, "again");
        fixture.pass("b", None);
        assert_eq!(fixture.lose("c", None), ONCE);
        assert_eq!(fixture.lose("d", None), Cause::Sink, "another");
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_gets_through_many_domains_the_sink_is_down() {
        let mut fixture = EvidenceFixture::new();
        for n in 1..MANY_DOMAINS {
            assert_eq!(fixture.lose(&format!("m{n}"), Some(&format!("d{n}"))), Cause::Domain);
        }
        assert_eq!(fixture.lose("m", Some("d")), Cause::Sink);
        fixture.pass("good", Some("x"));
        assert_eq!(fixture.lose("m", Some("another")), Cause::Domain);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_lost_while_others_pass_counts_from_the_third_time_on() {
        for domain in [None, Some("x")] {
            let mut fixture = EvidenceFixture::new();
            fixture.lose("poison", domain);
            let mut causes = Vec::new();
            for n in 0..4 {
                fixture.pass(&format!("m{n}"), domain);
                causes.push(fixture.lose("poison", domain));
            }
            assert_eq!(causes, [ONCE, TWICE, COUNTS, COUNTS], "{domain:?}");
            fixture.pass("poison", domain);
            assert_eq!(fixture.evidence.losses.len(), 0, "an answer clears it");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_domain_through_which_nothing_gets_is_down_and_probed_once_a_second() {
        let mut fixture = EvidenceFixture::new();
        fixture.pass("m", Some("y"));
        assert_eq!(fixture.lose("a", Some("x")), Cause::Domain);
        let down = fixture.evidence.down();
        assert_eq!(down.iter().map(|one| (&*one.name, one.since)).collect::<Vec<_>>(), [("x", fixture.now)]);
        assert!(!down[0].error.is_empty());
        assert_eq!((fixture.wait("b", "x"), fixture.wait("b", "y")), (Some(LONGEST_FIRST), None));
        fixture.now += PROBE_INTERVAL;
        assert_eq!((fixture.wait("b", "x"), fixture.wait("c", "x")), (None, Some(LONGEST_FIRST)));
        assert_eq!(fixture.lose("b", Some("x")), Cause::Domain);
        assert_eq!(fixture.pause("b", "x", 1.0), Some(PROBE_PAUSE));
        assert_eq!(fixture.pause("c", "x", 1.0), Some(LONGEST_FIRST));
        fixture.pass("b", Some("x"));
        assert_eq!((fixture.wait("c", "x"), fixture.evidence.count_down()), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_fails_everything_is_down_alone() {
        let mut fixture = EvidenceFixture::new();
        let throttled = Outcome::Throttled { error: "HTTP 503".into(), retry_after: None };
        let failed = Outcome::Failed { error: "HTTP 500".into(), retry_after: None };
        for n in 0..4 {
            assert_eq!(fixture.end(&format!("m{n}"), Some("x"), &throttled), Some(COUNTS));
        }
        assert_eq!(fixture.end("m4", Some("x"), &throttled), Some(Cause::Domain));
        assert_eq!(fixture.end("n", Some("y"), &failed), Some(COUNTS), "the other one is not concerned");
        fixture.now += PROBE_INTERVAL;
        assert_eq!(fixture.end("m5", Some("x"), &failed), Some(Cause::Domain), "until one gets through");
        fixture.pass("m5", Some("x"));
        assert_eq!(fixture.end("m5", Some("x"), &throttled), Some(COUNTS));
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_messages_wait_the_longer_each_does() {
        let mut fixture = EvidenceFixture::new();
        fixture.lose("a", Some("x"));
        let mut pauses = Vec::new();
        for second in 0..8 {
            let waiting = if second < 6 { 3 * MAX_RATE } else { 10 };
            for n in 0..waiting {
                fixture.pause(&format!("m{n}"), "x", 0.0);
            }
            fixture.now += RATE_WINDOW;
            pauses.push(fixture.pause("z", "x", 0.0).unwrap().as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30, 15, 7]);
    }

    #[tokio::test(start_paused = true)]
    async fn evidence_is_bounded_to_the_latest() {
        let mut fixture = EvidenceFixture::new();
        for n in 0..10 * MAX_DOMAINS {
            let name = format!("d{n}");
            fixture.pass("good", Some("always"));
            fixture.pass("m", Some(&name));
            fixture.lose(&format!("m{n}"), Some(&name));
        }
        assert!(fixture.evidence.domains.len() <= MAX_DOMAINS);
        assert_eq!(fixture.evidence.count_down(), fixture.evidence.down().len());
        for n in 0..2 * MAX_LOST {
            fixture.lose(&format!("m{n}"), None);
        }
        assert!(fixture.evidence.losses.len() <= MAX_LOST);
        assert_eq!((fixture.lose("m19999", None), fixture.lose("m0", None)), (Cause::Sink, Cause::Sink));
        assert!(fixture.evidence.domains.get(&"always".into()).is_some());
    }
}
