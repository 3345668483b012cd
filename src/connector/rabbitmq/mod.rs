//! What the RabbitMQ sink and source share: how to connect (`broker`, over `transport`, through
//! `frames`, which notes `returns`), what its user may do there (`rights`), when to try again, and how header values are
//! kept.

mod broker;
mod frames;
#[cfg(test)]
mod fuzz;
mod reconnect;
mod remedy;
mod returns;
mod rights;
mod settings;
pub mod sink;
pub mod source;
mod transport;
mod value;

pub use self::{
    broker::{Broker, Connected, text},
    frames::Notes,
    reconnect::ReconnectDelay,
    remedy::with_remedy,
    returns::Returns,
    rights::{check_readable, check_writable, explained, is_quorum, no_stream},
    settings::{DelayFrom, IdFrom, RabbitMqSinkSettings, RabbitMqSourceSettings, Server},
    transport::Switch,
    value::{from_typed, to_typed},
};
