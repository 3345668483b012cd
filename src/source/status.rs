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

/// The changing part, written by the source and read by the API.
#[derive(Debug, Default)]
pub struct Status(Mutex<(SourceState, Option<String>)>);

impl Status {
    pub fn get(&self) -> (SourceState, Option<String>) {
        self.lock().clone()
    }

    /// Whether this is news.
    pub fn set_running(&self) -> bool {
        std::mem::replace(&mut self.lock().0, SourceState::Running) != SourceState::Running
    }

    /// Whether this is news.
    pub fn set_failing(&self, error: &str) -> bool {
        let mut status = self.lock();
        let news = status.0 != SourceState::Failing || status.1.as_deref() != Some(error);
        *status = (SourceState::Failing, Some(error.to_owned()));
        news
    }

    fn lock(&self) -> MutexGuard<'_, (SourceState, Option<String>)> {
        // No panic can leave these two half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
