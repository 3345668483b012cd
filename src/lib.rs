#![doc = include_str!("../README.md")]

pub mod api;
pub mod app;
pub mod cli;
pub mod config;
pub mod connector;
#[cfg(test)]
mod fuzz;
pub mod message;
pub mod metrics;
pub mod queue;
pub mod retry;
pub mod scheduler;
pub mod secret;
pub mod sink;
pub mod source;
pub mod store;
pub mod time;
pub mod tls;
