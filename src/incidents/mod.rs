//! Log lines about problems. An outage is logged at once, then once a minute, and when it ends, with its duration and
//! the number of waiting messages. One that begins again within a minute is logged after that minute. Deaths are logged
//! at once for each route, reason and kind of error, then counted; evictions at once for each route and reason.
//!
//! Failures are reported here as often as they occur. An instance has one `Incidents`, which its clones share.

mod kind;
mod outage;
mod tally;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use self::{
    outage::{Outage, Reminder},
    tally::{Counted, Tally},
};
use crate::message::DeadReason;

pub use self::tally::Sample;

/// Interval of log lines about a lasting problem.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Kinds of errors that are logged separately, for the deaths of one route and reason. Other kinds share one line a
/// minute.
const MAX_KINDS: usize = 10;

/// Maximum number of a sink's domains that are logged. If more are down, the sink or its network is the cause.
const MAX_DOMAINS: usize = 10;

/// The subject of an outage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Redis,
    Sink(Arc<str>),
    /// A failure domain of a sink.
    Domain {
        sink: Arc<str>,
        domain: Arc<str>,
    },
    Source(Arc<str>),
    /// The collector of spans.
    Collector,
}

#[derive(Clone, Debug, Default)]
pub struct Incidents(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notifies `report`.
    changed: Notify,
    /// Notified when a call of Redis got no reply.
    redis_suspected: Notify,
}

#[derive(Debug, Default)]
struct State {
    outages: BTreeMap<Subject, Outage>,
    /// Outages that ended and are not logged yet; empty unless `reported`.
    ended: Vec<(Subject, Duration)>,
    /// By route, reason and kind of error. Up to `MAX_KINDS` kinds, and an empty kind for the rest.
    deaths: BTreeMap<(Arc<str>, DeadReason, String), Tally>,
    /// Evictions of dead letters, by route and reason.
    evictions: BTreeMap<(Arc<str>, &'static str), Tally>,
    /// Whether `report` runs.
    reported: bool,
    /// Outages are neither logged nor kept.
    silent: bool,
}

/// A line about an outage, except the first one.
struct Line {
    subject: Subject,
    lasted: Duration,
    /// `None` when the outage has ended.
    error: Option<String>,
}

impl Incidents {
    /// For a part that was replaced: its outages are not reported.
    pub fn silent() -> Self {
        let incidents = Self::default();
        incidents.lock().silent = true;
        incidents
    }

    /// Reports that the subject is down. The first failure and a new error are logged at once. The error is shown to
    /// operators, and must have neither payload nor secrets.
    pub fn failed(&self, subject: &Subject, error: &str) {
        let now = Instant::now();
        let mut state = self.lock();
        if state.silent {
            return;
        }
        if let Some(outage) = state.outages.get_mut(subject) {
            if outage.failed(now, error) {
                log_start(subject, error);
            }
            return;
        }
        if let Subject::Domain { sink, .. } = subject
            && state.domains(sink).count() >= MAX_DOMAINS
        {
            let up = state.domains(sink).find(|other| !state.outages[*other].is_down()).cloned();
            let Some(up) = up else { return };
            state.outages.remove(&up);
        }
        state.outages.insert(subject.clone(), Outage::new(now, error));
        log_start(subject, error);
        drop(state);
        self.0.changed.notify_one();
    }

    pub fn is_down(&self, subject: &Subject) -> bool {
        self.lock().outages.get(subject).is_some_and(Outage::is_down)
    }

    /// Changes the error of a subject that is down and recovering but cannot be used yet. Logs no line.
    pub fn recovers(&self, subject: &Subject, error: &str) {
        if let Some(outage) = self.lock().outages.get_mut(subject).filter(|outage| outage.is_down()) {
            outage.failed_quietly(Instant::now(), error);
        }
    }

    /// Reports that the subject is up. Returns whether it was down. The outage is kept for the rest of its interval, so
    /// that outages in rapid succession are one pair of lines.
    pub fn ended(&self, subject: &Subject) -> bool {
        let mut state = self.lock();
        let outage = state.outages.get_mut(subject).filter(|outage| outage.is_down());
        let Some(outage) = outage else { return false };
        let lasted = outage.lasted(Instant::now());
        if !outage.ended() {
            return true;
        }
        if state.reported {
            state.ended.push((subject.clone(), lasted));
            drop(state);
            self.0.changed.notify_one();
        } else {
            Line { subject: subject.clone(), lasted, error: None }.log(None);
        }
        true
    }

    /// Removes the outages of a sink's domains without a line: domains without messages cannot show that they are up.
    pub fn forget_domains(&self, sink: &str) {
        let mut state = self.lock();
        let gone: Vec<Subject> = state.domains(sink).cloned().collect();
        for subject in gone {
            state.outages.remove(&subject);
        }
    }

    /// Removes the outage of a subject without a line: it is replaced or no longer configured. Also removes those of the
    /// domains of a sink.
    pub fn forget(&self, subject: &Subject) {
        if let Subject::Sink(sink) = subject {
            self.forget_domains(sink);
        }
        let mut state = self.lock();
        state.outages.remove(subject);
        state.ended.retain(|(other, _)| other != subject);
    }

    /// Reports dead letters. `sample`: one of them, with an error as in `failed`.
    pub fn died(&self, route: &Arc<str>, reason: DeadReason, count: u64, sample: Option<Sample>) {
        if count == 0 {
            return;
        }
        let (mut state, now) = (self.lock(), Instant::now());
        let kind = sample.as_ref().map(|sample| kind::of(&sample.error)).unwrap_or_default();
        let tally = state.deaths_of(route, reason, kind, now);
        tally.add(now, count, sample);
        log_deaths(route, reason, tally.take(now), now);
        drop(state);
        self.0.changed.notify_one();
    }

    /// Reports evictions by the `dead` setting of the route.
    pub fn evicted(&self, route: &Arc<str>, reason: &'static str, count: u64) {
        if count == 0 {
            return;
        }
        let mut state = self.lock();
        let tally = state.evictions.entry((route.clone(), reason)).or_default();
        let now = Instant::now();
        tally.add(now, count, None);
        log_evictions(route, reason, tally.take(now).as_ref());
        drop(state);
        self.0.changed.notify_one();
    }

    /// Reports that a call of Redis got no reply or an unusual refusal.
    pub fn suspect_redis(&self) {
        self.0.redis_suspected.notify_one();
    }

    /// Returns after `suspect_redis`. Cancel-safe; for one caller.
    pub async fn redis_suspected(&self) {
        self.0.redis_suspected.notified().await;
    }

    /// Logs outages that last or ended, forever. `waiting` returns the number of messages that wait for a subject, if
    /// it is available in a bounded time.
    pub async fn report<F: Future<Output = Option<u64>>>(&self, waiting: impl Fn(Subject) -> F) {
        self.lock().reported = true;
        loop {
            let (lines, next) = self.lock().due(Instant::now());
            for line in &lines {
                line.log(waiting(line.subject.clone()).await);
            }
            let next = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = next => {}
            }
        }
    }

    /// Logs the counts since the latest lines, because the process ends.
    pub fn finish(&self) {
        let (mut state, now) = (self.lock(), Instant::now());
        let State { deaths, evictions, .. } = &mut *state;
        for ((route, reason, _), tally) in deaths {
            log_deaths(route, *reason, tally.take_early(now), now);
        }
        for ((route, reason), tally) in evictions {
            log_evictions(route, reason, tally.take_early(now).as_ref());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

impl State {
    /// The tally of a kind. At `MAX_KINDS` kinds, those without a death in the last minute are removed.
    fn deaths_of(&mut self, route: &Arc<str>, reason: DeadReason, kind: String, now: Instant) -> &mut Tally {
        let mut key = (route.clone(), reason, kind);
        if !self.deaths.contains_key(&key) {
            let is_beside = |other: &(Arc<str>, DeadReason, String)| other.0 == key.0 && other.1 == key.1;
            if self.deaths.keys().filter(|other| is_beside(other)).count() >= MAX_KINDS {
                self.deaths.retain(|other, tally| !is_beside(other) || !tally.is_over(now));
            }
            if self.deaths.keys().filter(|other| is_beside(other)).count() >= MAX_KINDS {
                key.2.clear();
            }
        }
        self.deaths.entry(key).or_default()
    }

    fn domains(&self, of: &str) -> impl Iterator<Item = &Subject> {
        self.outages.keys().filter(move |subject| matches!(subject, Subject::Domain { sink, .. } if **sink == *of))
    }

    /// The lines that are due, and the time of the next ones. Counts of deaths and evictions are logged here.
    fn due(&mut self, now: Instant) -> (Vec<Line>, Option<Instant>) {
        let ended = self.ended.drain(..).map(|(subject, lasted)| Line { subject, lasted, error: None });
        let mut lines: Vec<Line> = ended.collect();
        self.outages.retain(|_, outage| outage.is_down() || outage.due() > now);
        for (subject, outage) in self.outages.iter_mut().filter(|(_, outage)| outage.due() <= now) {
            match outage.remind(now) {
                Reminder::Began => log_start(subject, outage.error()),
                // A domain may have no message left that would show whether it is up.
                Reminder::Silent if matches!(subject, Subject::Domain { .. }) => {}
                Reminder::Failed | Reminder::Silent => {
                    let error = Some(outage.error().to_owned());
                    lines.push(Line { subject: subject.clone(), lasted: outage.lasted(now), error });
                }
            }
        }
        for ((route, reason, _), tally) in &mut self.deaths {
            log_deaths(route, *reason, tally.take(now), now);
        }
        for ((route, reason), tally) in &mut self.evictions {
            log_evictions(route, reason, tally.take(now).as_ref());
        }
        let outages = self.outages.values().map(Outage::due);
        let tallies = self.deaths.values().chain(self.evictions.values()).filter_map(Tally::due);
        let next = outages.chain(tallies).min();
        (lines, next)
    }
}

impl Subject {
    fn sink(&self) -> Option<&str> {
        match self {
            Subject::Sink(sink) | Subject::Domain { sink, .. } => Some(sink),
            Subject::Redis | Subject::Source(_) | Subject::Collector => None,
        }
    }

    fn domain(&self) -> Option<&str> {
        if let Subject::Domain { domain, .. } = self { Some(domain) } else { None }
    }

    fn source(&self) -> Option<&str> {
        if let Subject::Source(source) = self { Some(source) } else { None }
    }
}

/// Redis affects everything, so its outage is an error. Other outages are warnings.
fn log_start(subject: &Subject, error: &str) {
    let (sink, domain, source) = (subject.sink(), subject.domain(), subject.source());
    match subject {
        Subject::Redis => tracing::error!(error, "redis cannot be used"),
        Subject::Sink(_) => tracing::warn!(sink, error, "the sink is down: one probe a second"),
        Subject::Domain { .. } => tracing::warn!(sink, domain, error, "the domain is down: one probe a second"),
        Subject::Source(_) => tracing::warn!(source, error, "the source cannot take messages; trying again"),
        Subject::Collector => tracing::warn!(error, "spans cannot be exported and are dropped"),
    }
}

impl Line {
    fn log(&self, waiting: Option<u64>) {
        let (sink, domain, source) = (self.subject.sink(), self.subject.domain(), self.subject.source());
        let seconds = self.lasted.as_secs();
        match (&self.subject, &self.error) {
            (Subject::Redis, Some(error)) => {
                tracing::error!(error, seconds, waiting, "redis still cannot be used");
            }
            (Subject::Redis, None) => tracing::info!(seconds, waiting, "redis is usable again"),
            (Subject::Sink(_), Some(error)) => {
                tracing::warn!(sink, error, seconds, waiting, "the sink is still down");
            }
            (Subject::Sink(_), None) => tracing::info!(sink, seconds, waiting, "the sink is up again: slow start"),
            (Subject::Domain { .. }, Some(error)) => {
                tracing::warn!(sink, domain, error, seconds, waiting, "the domain is still down");
            }
            (Subject::Domain { .. }, None) => {
                tracing::info!(sink, domain, seconds, waiting, "the domain is up again");
            }
            (Subject::Source(_), Some(error)) => {
                tracing::warn!(source, error, seconds, waiting, "the source still cannot take messages");
            }
            (Subject::Source(_), None) => tracing::info!(source, seconds, waiting, "the source takes messages again"),
            (Subject::Collector, Some(error)) => {
                tracing::warn!(error, seconds, "spans still cannot be exported and are dropped");
            }
            (Subject::Collector, None) => tracing::info!(seconds, "spans are exported again"),
        }
    }
}

fn log_deaths(route: &str, reason: DeadReason, counted: Option<Counted>, now: Instant) {
    if let Some(Counted { count, times, sample }) = counted {
        let trace_id = sample.as_ref().and_then(|sample| sample.trace).map(tracing::field::display);
        let (id, error) = sample.map(|Sample { id, error, .. }| (id, error)).unzip();
        let (first, last) = times.map(|(first, last)| (shown(now - first), shown(now - last))).unzip();
        tracing::warn!(
            route,
            reason = reason.as_str(),
            count,
            first,
            last,
            id,
            trace_id,
            error,
            "messages are dead letters now"
        );
    }
}

fn log_evictions(route: &str, reason: &str, counted: Option<&Counted>) {
    if let Some(Counted { count, .. }) = counted {
        tracing::warn!(route, reason, count, "dead letters were deleted: the `dead` setting of the route");
    }
}

/// A time in the past in the format of log times, on the clock of this machine.
#[expect(clippy::disallowed_methods, reason = "the log has the time of this machine")]
fn shown(ago: Duration) -> String {
    let now = std::time::SystemTime::now();
    let at = now.checked_sub(ago).and_then(|at| jiff::Timestamp::try_from(at).ok());
    at.map(|at| format!("{at:.3}")).unwrap_or_default()
}
