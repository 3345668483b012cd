//! One folder for each external system: its sink, its source and what they share.

pub mod http;
pub mod kafka;
pub mod rabbitmq;
pub mod redis_list;
pub mod redis_sets;
