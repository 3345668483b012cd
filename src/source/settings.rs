//! The interface of a configured source.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use super::Source;
use crate::{message::MessageId, store::redis::connection::Connection};

/// Generates ids for messages without one.
pub type IdGenerator = Arc<dyn Fn() -> MessageId + Send + Sync>;

/// The validated settings of a source.
pub trait SourceSettings: Any + fmt::Debug + Send + Sync {
    /// The configured `type`.
    fn kind(&self) -> &'static str;

    /// The route of the messages.
    fn route(&self) -> &Arc<str>;

    /// Whether the source reads from the queue's own Redis.
    fn is_on_redis(&self) -> bool {
        false
    }

    /// Whether the source reads messages again after a crash. If so, its route remembers ids unless its settings
    /// disable that.
    fn reads_again(&self) -> bool {
        false
    }

    /// The setting of this source that conflicts with the source `other_name`, and the error text.
    fn conflict(&self, _other: &dyn SourceSettings, _other_name: &str) -> Option<(&'static str, String)> {
        None
    }

    /// Makes the live source, which connects when it runs.
    ///
    /// # Errors
    /// The setting that cannot be used.
    fn open(&self, setup: SourceSetup<'_>) -> Result<Arc<dyn Source>, String>;
}

/// Parts of the instance that a source can use.
pub struct SourceSetup<'a> {
    /// The queue's Redis.
    pub redis: &'a dyn Fn() -> Result<QueueRedis, String>,
    /// Maximum sleep while waiting for a signal.
    pub max_sleep: Duration,
    pub new_id: IdGenerator,
    /// Seed of random delays.
    pub seed: u64,
}

/// The queue's Redis, for a source that reads from it.
pub struct QueueRedis {
    /// The number of its database.
    pub database: i64,
    pub connection: Arc<Connection>,
}
