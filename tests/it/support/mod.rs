//! Real servers, each on its own free port and in its own temporary directory, stopped by process id.

pub mod http;
pub mod port;
pub mod proxy;
#[allow(dead_code, reason = "the tests of the whole program use it")]
pub mod punctual;
pub mod receiver;
pub mod redis_server;
mod api_server;
mod raw_server;
mod redis_server;
mod sending;

pub use api_server::{ApiServer, MAX_PAYLOAD, REQUEST_TIMEOUT, Setup, answer};
pub use redis_server::RedisServer;

use std::net::TcpListener;

pub use self::{
    raw_server::{RawServer, read_request},
    redis_server::RedisServer,
    sending::{delivery, send, send_one},
};

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a free port").port()
}
