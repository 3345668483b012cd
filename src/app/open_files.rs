//! The limit of open files: each connection of the API and each HTTP request in flight takes one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit: the usual soft limit of 1024 is below the needs of one busy route.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(from = limit.current, to = limit.maximum, "raised the limit of open files"),
        Err(error) => tracing::warn!(%error, limit = limit.current, "cannot raise the limit of open files"),
    }
}
