//! All tests that need servers, in one binary: it links once.

mod api;
mod brokers;
mod connection;
mod destinations;
mod documents;
mod e2e;
mod embedded;
mod examples;
mod http_zoo;
mod kafka;
mod proxy;
mod rabbitmq;
mod receiver;
mod redis_list_faults;
mod sink_contract;
mod sources;
mod store;
mod support;
