//! Why a command did not do its work, and the exit code that says so.

use std::process::ExitCode;

use crate::{app::serve::ServeError, queue::QueueError};

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
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) | Failure::Configuration(_) => 2,
            Failure::NotFound(_) => 3,
        })
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::UnknownRoute(_) => Failure::NotFound(format!("{error} in this Redis")),
            QueueError::Invalid(_) => Failure::Usage(error.to_string()),
            QueueError::Store(_) => Failure::Failed(error.to_string()),
        }
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
