//! The HTTP API as its callers see it: a real router on a real port over a real Redis.

mod dead;
mod groups;
mod hostile;
mod limits;
mod messages;
mod operations;
mod purge_pending;
mod remember;
mod repair;
mod schedule;
mod search;
mod tokens;
mod trouble;
