//! Sources, from the clients that their producers use through the real program to a real sink.

mod check;
mod delayqueue;
mod intake;
pub mod kafka;
mod program;
mod rabbitmq;
mod reload;
mod sorted_set;
mod sorted_set_faults;
