//! How a source is doing, as this instance sees it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// What GET /v1/sources tells of one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceStatus {
    pub name: String,
    /// As in the configuration: `kafka`, `sorted_set`...
    pub r#type: &'static str,
    pub route: String,
    pub state: SourceState,
    /// The last one, also when all is well again.
    pub last_error: Option<String>,
    /// Messages that wait in its system; left out where that cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    #[default]
    Starting,
    Running,
    /// Its system or Redis cannot be used; it tries again.
    Failing,
}

/// What a source stands between.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// The source's own system.
    System,
    Redis,
    /// A sink that has a message which is to be replaced or cancelled.
    Flight,
    /// The limits of the route.
    Limits,
}

/// The changing part, written by the source and read by the API. One side's recovery does not hide the other's trouble.
#[derive(Debug, Default)]
pub struct Status(Mutex<Health>);

#[derive(Debug, Default)]
struct Health {
    /// One side was well at least once.
    begun: bool,
    /// What is wrong, by side.
    wrong: [Option<String>; 4],
    last_error: Option<String>,
}

impl Health {
    fn state(&self) -> SourceState {
        match (self.wrong.iter().any(Option::is_some), self.begun) {
            (true, _) => SourceState::Failing,
            (false, true) => SourceState::Running,
            (false, false) => SourceState::Starting,
        }
    }
}

impl Status {
    /// The state, and the last error.
    pub fn get(&self) -> (SourceState, Option<String>) {
        let health = self.lock();
        (health.state(), health.last_error.clone())
    }

    /// Whether the source runs only since.
    pub fn set_well(&self, side: Side) -> bool {
        let mut health = self.lock();
        let before = health.state();
        health.begun = true;
        health.wrong[side as usize] = None;
        health.state() != before && health.state() == SourceState::Running
    }

    /// Nobody asks that side at present, so nothing is known to be wrong with it.
    pub fn forget(&self, side: Side) {
        self.lock().wrong[side as usize] = None;
    }

    /// Whether this is news.
    pub fn set_failing(&self, side: Side, error: &str) -> bool {
        let mut health = self.lock();
        let news = health.wrong[side as usize].as_deref() != Some(error);
        health.wrong[side as usize] = Some(error.to_owned());
        health.last_error = Some(error.to_owned());
        news
    }

    fn lock(&self) -> MutexGuard<'_, Health> {
        // No panic can leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_runs_only_while_all_sides_are_well() {
        let status = Status::default();
        assert_eq!(status.get(), (SourceState::Starting, None));
        assert!(status.set_well(Side::Redis));
        assert!(status.set_failing(Side::System, "no broker") && !status.set_failing(Side::System, "no broker"));
        assert!(!status.set_well(Side::Redis), "a batch lands while no broker answers");
        assert_eq!(status.get(), (SourceState::Failing, Some("no broker".into())));
        assert!(status.set_failing(Side::Redis, "no Redis"));
        assert!(!status.set_well(Side::System), "a broker is back while Redis is away");
        assert_eq!(status.get(), (SourceState::Failing, Some("no Redis".into())));
        assert!(status.set_well(Side::Redis) && !status.set_well(Side::Redis));
        assert_eq!(status.get(), (SourceState::Running, Some("no Redis".into())));
        status.set_failing(Side::Redis, "no Redis");
        status.forget(Side::Redis);
        assert_eq!(status.get().0, SourceState::Running);
    }
}
