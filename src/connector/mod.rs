//! One folder for each external system, with its sink, its source and their shared code.

pub mod headers;
pub mod http;
pub mod kafka;
pub mod rabbitmq;
pub mod redis_list;
pub mod redis_sets;
