//! The headers that each sink adds to a delivery. A source drops them from a message that punctual delivered before.

/// The id that consumers know.
pub const ID: &str = "punctual-id";
pub const ROUTE: &str = "punctual-route";
/// The number of the attempt, from 1.
pub const ATTEMPT: &str = "punctual-attempt";
/// The due time, in milliseconds since the epoch.
pub const DUE: &str = "punctual-due";

pub const ALL: [&str; 4] = [ID, ROUTE, ATTEMPT, DUE];
