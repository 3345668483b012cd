#![doc = include_str!("../README.md")]
//!
//! # As a library
//!
//! A program can embed punctual with its own sinks and sources: register their settings in the `registry`, `load` a
//! configuration with it, and `serve`. `examples/own_sink` is such a program. docs/writing-a-connector.md explains the
//! traits.

pub mod app;
pub mod config;
pub mod connector;
pub mod message;
pub mod sink;
pub mod source;

pub use async_trait::async_trait;

pub use self::{
    app::serve::{ServeError, serve},
    config::{Config, ConfigErrors, Context, Path, Period, Problems, Registry, Settings, Sources, Whole, load},
    connector::registry,
    message::{MessageId, Metadata},
    sink::{Delivery, Domain, OpenSink, Outcome, Report, Sink, SinkSettings},
    source::{Intake, Source, SourceEntry, SourceSettings, SourceSetup},
};

// These modules have no stable interface. They are public for the program and the tests.
#[doc(hidden)]
pub mod api;
#[doc(hidden)]
pub mod calendar;
#[doc(hidden)]
pub mod cli;
#[cfg(test)]
mod fuzz;
#[doc(hidden)]
pub mod incidents;
#[cfg(test)]
mod log_lines;
#[doc(hidden)]
pub mod metrics;
#[doc(hidden)]
pub mod queue;
#[doc(hidden)]
pub mod recurrence;
#[doc(hidden)]
pub mod retry;
#[doc(hidden)]
pub mod scheduler;
#[doc(hidden)]
pub mod secret;
#[doc(hidden)]
pub mod spans;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod time;
#[doc(hidden)]
pub mod tls;
