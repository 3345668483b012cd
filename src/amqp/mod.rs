//! What the RabbitMQ sink and source share: how to connect (`broker`, over `transport`, through
//! `frames`, which notes `returns`), when to try again, and how header values are kept.

mod broker;
mod frames;
mod pauses;
mod returns;
mod transport;
mod value;

pub use self::{
    broker::{Broker, Connected, text},
    frames::Notes,
    pauses::Pauses,
    returns::Returns,
    transport::Switch,
    value::{from_typed, to_typed},
};
