//! A model of the Redis commands that punctual's scripts use: keys of four types, Lua scripts that run as in Redis, wake-ups, and
//! links over which a client speaks the protocol. Time is that of a clock that the test sets.
//!
//! A script is atomic, and like in Redis an error in it undoes nothing. Faults can be injected: an error in place of any
//! command of a script, a lost call or reply, a fail-over that drops the last writes, a step of the clock.

mod commands;
mod keyspace;
mod number;
mod scripts;
mod server;
mod sorted_set;
mod value;

pub use self::{
    keyspace::{Keyspace, Value},
    server::{Counts, LinkFaults, Links, Server},
    sorted_set::{Score, SortedSet},
    value::Reply,
};
