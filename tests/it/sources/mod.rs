//! Sources, from a real producer through the real program to a real sink.

mod delayqueue;
mod kafka;
mod program;
mod sorted_set;
mod sorted_set_faults;
