//! What the RabbitMQ sink and source share: how to connect (`broker`, over `transport`), and when to try again.

mod broker;
mod pauses;
mod transport;

pub use self::{
    broker::{Broker, Connected, text},
    pauses::Pauses,
    transport::Switch,
};
