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
pub struct Status(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: SourceState,
    last_error: Option<String>,
    /// What does not work beside the taking.
    fault: Option<String>,
}

impl Status {
    pub fn get(&self) -> (SourceState, Option<String>) {
        let inner = self.lock();
        match &inner.fault {
            Some(fault) if inner.state == SourceState::Running => (SourceState::Failing, Some(fault.clone())),
            _ => (inner.state, inner.last_error.clone()),
        }
    }

    /// Whether this is news.
    pub fn set_running(&self) -> bool {
        std::mem::replace(&mut self.lock().state, SourceState::Running) != SourceState::Running
    }

    /// Whether this is news.
    pub fn set_failing(&self, error: &str) -> bool {
        let mut inner = self.lock();
        let news = inner.state != SourceState::Failing || inner.last_error.as_deref() != Some(error);
        inner.state = SourceState::Failing;
        inner.last_error = Some(error.to_owned());
        news
    }

    /// Something else than taking does not work, or nothing of that kind.
    pub fn set_fault(&self, fault: Option<String>) {
        let mut inner = self.lock();
        if fault.is_some() {
            inner.last_error.clone_from(&fault);
        }
        inner.fault = fault;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No panic can leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
