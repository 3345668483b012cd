//! Sources, from a real producer through the real program to a real sink.

mod kafka;
