//! What a configured source is to the rest of the program.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use super::Source;
use crate::{message::MessageId, store::redis::connection::Connection};

/// Makes the ids of messages that bring none.
pub type IdGenerator = Arc<dyn Fn() -> MessageId + Send + Sync>;

/// The validated settings of a source.
pub trait SourceSettings: Any + fmt::Debug + Send + Sync {
    /// As in the configuration's `type`.
    fn kind(&self) -> &'static str;

    /// Where its messages go.
    fn route(&self) -> &Arc<str>;

    /// Whether it reads on the queue's own Redis.
    fn is_on_redis(&self) -> bool {
        false
    }

    /// Whether it reads messages again after a crash: its route remembers ids then, unless it is set not to.
    fn reads_again(&self) -> bool {
        false
    }

    /// The setting of this source that cannot be used beside the source `other_name`, and why.
    fn conflict(&self, _other: &dyn SourceSettings, _other_name: &str) -> Option<(&'static str, String)> {
        None
    }

    /// The live source; it connects when it runs.
    ///
    /// # Errors
    /// Which setting cannot be used.
    fn open(&self, setup: SourceSetup<'_>) -> Result<Arc<dyn Source>, String>;
}

/// What a source may need of the instance.
pub struct SourceSetup<'a> {
    /// The queue's Redis.
    pub redis: &'a dyn Fn() -> Result<QueueRedis, String>,
    /// Longest sleep of what would be woken.
    pub max_sleep: Duration,
    pub new_id: IdGenerator,
    /// Of random delays.
    pub seed: u64,
}

/// The queue's Redis, for a source that reads there.
pub struct QueueRedis {
    /// The number of its database.
    pub database: i64,
    pub connection: Arc<Connection>,
}
