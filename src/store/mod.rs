//! Where messages wait.

pub mod redis;
