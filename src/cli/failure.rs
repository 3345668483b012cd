//! Why a command did not do its work, and the exit code that says so.

use std::{io, process::ExitCode};

use crate::app::serve::ServeError;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Usage(String),
    #[error("the configuration is invalid\n{0}")]
    Configuration(String),
    #[error("{0}")]
    NotFound(String),
    /// The reader of the output has seen enough, such as `head`: nothing is wrong, and nothing is shown.
    #[error("the output was closed")]
    Closed,
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Closed => 0,
            Failure::Failed(_) => 1,
            Failure::Usage(_) | Failure::Configuration(_) => 2,
            Failure::NotFound(_) => 3,
        })
    }

    /// The same failure with a text of its own.
    #[must_use]
    pub fn map(self, text: impl FnOnce(String) -> String) -> Self {
        match self {
            Failure::Failed(old) => Failure::Failed(text(old)),
            Failure::Usage(old) => Failure::Usage(text(old)),
            Failure::Configuration(old) => Failure::Configuration(text(old)),
            Failure::NotFound(old) => Failure::NotFound(text(old)),
            Failure::Closed => Failure::Closed,
        }
    }

    /// Of writing to `place`.
    pub fn of_output(place: &str, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::Closed } else { Self::Failed(format!("{place}: {error}")) }
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Configuration(text) => Failure::Configuration(text),
            ServeError::Failed(text) => Failure::Failed(text),
        }
    }
}
