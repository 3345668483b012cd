//! The headers that sinks add to deliveries. A source drops them from messages that punctual delivered before.

/// The id that consumers see.
pub const ID: &str = "punctual-id";
pub const ROUTE: &str = "punctual-route";
/// The number of the attempt, from 1.
pub const ATTEMPT: &str = "punctual-attempt";
/// The due time, in milliseconds since the epoch.
pub const DUE: &str = "punctual-due";

pub const ALL: [&str; 4] = [ID, ROUTE, ATTEMPT, DUE];
