//! The queues' Redis fails over: its master is named by sentinels, or its primaries by a cluster.

mod access;
mod cluster;
mod load;
mod missing_replicas;
mod schedules;
mod sentinel;
mod switch;
