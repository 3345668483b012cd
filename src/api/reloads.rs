//! Requests to read the configuration again, and their answers.

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// Calls that read the configuration again, one at a time.
pub type Reloads = mpsc::Sender<ReloadRequest>;

/// One call.
pub struct ReloadRequest {
    pub answer: oneshot::Sender<Result<Reloaded, Vec<Mistake>>>,
}

/// The differences of the new configuration, each with its path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// The digest of the new configuration.
    pub digest: String,
    pub added: Vec<String>,
    pub replaced: Vec<String>,
    pub removed: Vec<String>,
    /// Take effect at the next start.
    pub restart: Vec<String>,
    pub warnings: Vec<String>,
}

impl Reloaded {
    /// Number of parts that were changed.
    pub fn count(&self) -> usize {
        self.added.len() + self.replaced.len() + self.removed.len()
    }
}

/// A mistake in the configuration: nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Keys from the root; empty if it concerns a file as a whole.
    pub path: Vec<String>,
    /// The line that `punctual check` prints.
    pub text: String,
}
