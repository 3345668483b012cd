//! The HTTP API as its callers see it: a real router on a real port over a real Redis.

mod hostile;
mod messages;
mod operations;
mod remember;
mod schedule;
mod tokens;
mod trouble;
