//! The log of what operators change: one line for each call.

use super::auth::Grant;

/// Logs a call that changed `count` messages, or a route.
pub fn record(grant: &Grant, call: &'static str, route: &str, count: u64) {
    if count > 0 {
        tracing::info!(token = grant.name(), call, route, count, "audit");
    }
}
