//! The test support itself.

mod cluster;
mod proxy;
mod receiver;
