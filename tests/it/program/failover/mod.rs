//! The queues' Redis fails over: its master is named by sentinels.

mod access;
mod load;
mod missing_replicas;
mod sentinel;
mod switch;
