#![doc = include_str!("../README.md")]

mod amqp;
pub mod api;
pub mod app;
pub mod backoff;
pub mod cli;
pub mod codec;
pub mod config;
pub mod connection;
pub mod kafka;
pub mod message;
pub mod metrics;
pub mod outcome;
pub mod port;
pub mod queue;
pub mod scheduler;
pub mod sink;
pub mod source;
pub mod store;
pub mod template;
pub mod time;
mod tls;
