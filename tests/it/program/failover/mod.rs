//! The queues' Redis fails over: its master is named by sentinels.

mod load;
mod sentinel;
mod switch;
