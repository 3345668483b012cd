//! The test support itself.

mod proxy;
mod receiver;
