//! Turns a configuration into live objects, and runs them.

pub mod backend;
pub mod checkup;
pub mod destination;
pub mod embedded;
pub mod instance;
mod keeper;
pub mod logging;
mod open_files;
pub mod serve;
