//! The state of a source in this instance.

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::time::Instant;

use crate::time::UnixMillis;

/// One source in the reply of GET /v1/sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceStatus {
    pub name: String,
    /// The configured type: `kafka`, `sorted_set`...
    pub r#type: &'static str,
    pub route: String,
    pub state: SourceState,
    /// The latest error, also after a recovery.
    pub last_error: Option<String>,
    /// Time at which the state began, on the clock of Redis. All times are `None` until that clock is known.
    pub since: Option<UnixMillis>,
    pub last_error_at: Option<UnixMillis>,
    /// The latest time at which messages were taken.
    pub last_success_at: Option<UnixMillis>,
    /// Messages that wait in the external system; left out if the number is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    #[default]
    Starting,
    Running,
    /// The external system or Redis is down. The source retries.
    Failing,
}

/// A system that a source depends on.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// The source's external system.
    System,
    Redis,
    /// The sink with a message in flight that waits to be replaced or cancelled.
    InFlight,
    /// The limits of the route.
    Limits,
}

/// The health of a source, written by the source and read by the API. Each side has its own error.
#[derive(Debug, Default)]
pub struct SourceHealth(Mutex<SideErrors>);

/// Times of the states of a source.
#[derive(Clone, Copy, Debug)]
pub struct SourceTimes {
    /// Time at which the state began; at first, the creation of the source.
    pub since: Instant,
    pub last_error: Option<Instant>,
    /// The latest time at which messages were taken.
    pub last_success: Option<Instant>,
}

impl Default for SourceTimes {
    fn default() -> Self {
        Self { since: Instant::now(), last_error: None, last_success: None }
    }
}

#[derive(Debug, Default)]
struct SideErrors {
    /// Whether any side was reachable at least once.
    has_started: bool,
    /// By `Side`.
    errors: [Option<String>; 4],
    last_error: Option<String>,
    times: SourceTimes,
}

impl SideErrors {
    fn state(&self) -> SourceState {
        match (self.errors.iter().any(Option::is_some), self.has_started) {
            (true, _) => SourceState::Failing,
            (false, true) => SourceState::Running,
            (false, false) => SourceState::Starting,
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.state();
        change(self);
        if self.state() != before {
            self.times.since = Instant::now();
        }
    }
}

impl SourceHealth {
    /// The state, and the latest error.
    pub fn get(&self) -> (SourceState, Option<String>) {
        let sides = self.lock();
        (sides.state(), sides.last_error.clone())
    }

    pub fn is_running(&self) -> bool {
        self.lock().state() == SourceState::Running
    }

    pub fn times(&self) -> SourceTimes {
        self.lock().times
    }

    /// Records that messages were taken.
    pub fn took(&self) {
        self.lock().times.last_success = Some(Instant::now());
    }

    /// Clears the error of a side. Returns whether that made the source `Running`.
    pub fn set_healthy(&self, side: Side) -> bool {
        let mut sides = self.lock();
        let before = sides.state();
        sides.change(|sides| {
            sides.has_started = true;
            sides.errors[side as usize] = None;
        });
        sides.state() != before && sides.state() == SourceState::Running
    }

    /// Clears the error of a side without a call in progress: its health is unknown.
    pub fn clear(&self, side: Side) {
        self.lock().change(|sides| sides.errors[side as usize] = None);
    }

    /// Sets the error of a side. Returns whether the side had no error or another one before.
    pub fn set_failing(&self, side: Side, error: &str) -> bool {
        let mut sides = self.lock();
        let is_new = sides.errors[side as usize].as_deref() != Some(error);
        sides.change(|sides| sides.errors[side as usize] = Some(error.to_owned()));
        sides.last_error = Some(error.to_owned());
        sides.times.last_error = Some(Instant::now());
        is_new
    }

    /// Sets the error of Redis, which denied a call. An error of the external system stays the latest error: a source on
    /// the Redis of the queue names the missing right there. Returns whether the error of Redis is the latest one.
    pub fn set_denied(&self, error: &str) -> bool {
        let mut sides = self.lock();
        if sides.errors[Side::System as usize].is_none() {
            drop(sides);
            self.set_failing(Side::Redis, error);
            return true;
        }
        sides.change(|sides| sides.errors[Side::Redis as usize] = Some(error.to_owned()));
        false
    }

    fn lock(&self) -> MutexGuard<'_, SideErrors> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_running_only_while_no_side_has_an_error() {
        let health = SourceHealth::default();
        assert_eq!(health.get(), (SourceState::Starting, None));
        assert!(health.set_healthy(Side::Redis));
        assert!(health.set_failing(Side::System, "no broker") && !health.set_failing(Side::System, "no broker"));
        assert!(!health.set_healthy(Side::Redis), "a batch is stored while the broker is down");
        assert_eq!(health.get(), (SourceState::Failing, Some("no broker".into())));
        assert!(health.set_failing(Side::Redis, "no Redis"));
        assert!(!health.set_healthy(Side::System), "the broker recovers while Redis is down");
        assert_eq!(health.get(), (SourceState::Failing, Some("no Redis".into())));
        assert!(health.set_healthy(Side::Redis) && !health.set_healthy(Side::Redis));
        assert_eq!(health.get(), (SourceState::Running, Some("no Redis".into())));
        health.set_failing(Side::Redis, "no Redis");
        health.clear(Side::Redis);
        assert_eq!(health.get().0, SourceState::Running);
        assert!(health.set_denied("denied"));
        health.set_failing(Side::System, "the right is named");
        assert!(!health.set_denied("denied"));
        assert_eq!(health.get(), (SourceState::Failing, Some("the right is named".into())));
        assert!(!health.set_healthy(Side::System) && health.set_healthy(Side::Redis), "each has its own error");
    }
}
