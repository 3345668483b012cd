//! Keeps a suspect (a message that crashed its process twice) alone in this process: every batch holds a
//! shared pass until its last message is settled, a suspect holds the only one.
//!
//! The lock is fair: whoever waits to be alone holds back later batches, and after it those go first.

use std::sync::Arc;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<RwLock<()>>);

impl Gate {
    /// With others. Cancel-safe.
    pub async fn shared(&self) -> Pass {
        Pass::Shared(Arc::clone(&self.0).read_owned().await)
    }

    /// With nothing else in flight. Cancel-safe.
    pub async fn alone(&self) -> Pass {
        Pass::Alone(Arc::clone(&self.0).write_owned().await)
    }
}

/// Given back on drop.
#[derive(Debug)]
#[expect(dead_code, reason = "the guards are held, not read")]
pub enum Pass {
    Shared(OwnedRwLockReadGuard<()>),
    Alone(OwnedRwLockWriteGuard<()>),
}
