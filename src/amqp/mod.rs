//! What the RabbitMQ sink and source share: how to connect (`broker`, over `transport`), when to try
//! again, and how header values are kept.

mod broker;
mod pauses;
mod transport;
mod value;

pub use self::{
    broker::{Broker, Connected, text},
    pauses::Pauses,
    transport::Switch,
    value::{from_typed, to_typed},
};
