//! Real servers, each on its own free port and in its own temporary directory, stopped by process id.

mod api_server;
mod authority;
mod claiming;
pub mod cluster;
pub mod command;
pub mod http;
pub mod kafka;
pub mod pipeline;
pub mod port;
pub mod preload;
pub mod prometheus;
pub mod proxy;
pub mod punctual;
pub mod rabbitmq;
mod raw_server;
pub mod receiver;
pub mod redis_server;
mod redis_tls;
pub mod scale;
mod sending;
pub mod sentinels;
pub mod servers;
mod signal;
pub mod spans;
mod tests;

pub use self::{
    api_server::{Answer, ApiServer, MAX_PAYLOAD, REQUEST_TIMEOUT, Setup, answer},
    authority::Authority,
    claiming::{all, claim_request},
    rabbitmq::RabbitMq,
    raw_server::{RawServer, read_request},
    redis_server::RedisServer,
    sending::{delivery, reports, send, send_one},
};

/// Bytes that do not get smaller when they are compressed.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}
