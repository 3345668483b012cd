//! Turns a configuration into live objects, and runs them.

pub mod backend;
pub mod checkup;
pub mod destination;
pub mod embedded;
pub mod inlet;
pub mod instance;
mod keeper;
mod listening;
pub mod logging;
mod open_files;
pub mod serve;
