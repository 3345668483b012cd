//! Real servers, each on its own free port and in its own temporary directory, stopped by process id.

mod api_server;
mod authority;
mod claiming;
pub mod command;
pub mod http;
pub mod kafka;
pub mod pipeline;
pub mod port;
pub mod prometheus;
pub mod proxy;
pub mod punctual;
pub mod rabbitmq;
mod raw_server;
pub mod receiver;
pub mod redis_server;
pub mod scale;
mod sending;
pub mod sentinels;
pub mod servers;
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
