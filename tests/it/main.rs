//! All tests that need servers, in one binary: it links once.

mod proxy;
mod receiver;
mod api;
mod support;
