//! All tests that need servers, in one binary: it links once.

mod api;
mod campaign;
mod console;
mod deploy;
mod documents;
mod layers;
mod program;
mod sinks;
mod sources;
mod store;
mod support;
mod words;
