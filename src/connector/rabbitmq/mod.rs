//! RabbitMQ: the sink, the source, and what they share.
//!
//! `broker` connects over `transport`, which passes incoming bytes through `frames`. `frames` repairs what lapin cannot
//! read, and takes `notes`. `rights` checks queues, exchanges and permissions. `value` converts header values.

mod broker;
mod frames;
#[cfg(test)]
mod fuzz;
mod notes;
mod remedy;
mod rights;
mod settings;
pub mod sink;
pub mod source;
mod transport;
mod value;

use tokio::sync::watch;

pub use self::{
    broker::{Broker, BrokerConnection, ReconnectDelay, close, text},
    notes::FrameNotes,
    remedy::with_remedy,
    rights::{check_readable, check_writable, explained, is_quorum, no_stream},
    settings::{BrokerServer, DelayFrom, IdFrom, RabbitMqSinkSettings, RabbitMqSourceSettings},
    transport::ConnectionAbort,
    value::{from_typed, to_typed},
};

/// Waits until `stop` is true or its sender is dropped.
async fn until_stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
