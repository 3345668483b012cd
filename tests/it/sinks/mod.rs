//! Sinks: the contract that all of them keep, and each with what its system may do to it.

mod brokers;
mod contract;
mod destinations;
mod http;
mod kafka;
mod rabbitmq;
mod redis_list_faults;
mod turns;
