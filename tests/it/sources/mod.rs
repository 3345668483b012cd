//! Sources: what other systems' unchanged producers hand over.

mod delayqueue;
mod program;
mod sorted_set;
mod sorted_set_faults;
