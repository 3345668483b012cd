//! The queues' Redis fails over: its master is named by sentinels, or its primaries by a cluster.

mod cluster;
mod load;
mod sentinel;
mod switch;
