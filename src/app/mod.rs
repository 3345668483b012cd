//! Where the configuration becomes live objects.

pub mod embedded;
