//! Turns a configuration into live objects, and runs them.

pub mod backend;
mod clock;
mod differences;
pub mod embedded;
pub mod forwarder;
mod historian;
mod instance;
mod janitor;
mod keeper;
mod listening;
pub mod logging;
mod memory;
mod mover;
mod open_files;
pub mod reachability;
pub mod reload;
mod restorer;
mod schedules;
pub mod serve;
pub mod settings;
pub mod sinks;
pub mod sources;
mod spans;
mod table;
mod unit;
mod upkeep;
mod waiting;
