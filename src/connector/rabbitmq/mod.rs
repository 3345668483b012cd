//! RabbitMQ: the sink, the source, and what they share.
//!
//! `broker` connects over `transport`, which passes incoming bytes through `frames`. `frames` repairs what lapin cannot
//! read, and writes `frame_notes`. `portion` bounds batches. `rights` checks queues, exchanges and permissions. `value` converts header values.

mod broker;
mod frame_notes;
mod frames;
#[cfg(test)]
mod fuzz;
mod missing;
mod portion;
mod rights;
mod settings;
pub mod sink;
pub mod source;
mod transport;
mod value;

pub use self::{
    broker::{Broker, BrokerConnection, BrokerServer, ReconnectDelay, answer, text},
    frame_notes::FrameNotes,
    missing::with_remedy,
    portion::portion,
    rights::{check_readable, check_writable, explained, is_quorum, no_stream},
    settings::{DelayFrom, IdFrom, RabbitMqSinkSettings, RabbitMqSourceSettings},
    value::{from_typed, to_typed},
};
