//! Sources take messages out of an existing system and schedule them on a route, through the same handle as the
//! API. A source knows its system and the `Intake`; the intake knows the queue. A message is acknowledged upstream
//! only after the intake has answered for it: then Redis has it, or keeps it as a dead letter.

mod entry;
mod intake;
mod settings;
mod status;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::store::Bell;

pub use self::{
    entry::Entry,
    intake::{Intake, Stopped},
    settings::{NewId, QueueRedis, SourceSettings, SourceSetup},
    status::{SourceState, SourceStatus, Status},
};

/// Bells of a source that lives on the queue's Redis, for the instance's one subscription to ring.
#[derive(Clone, Debug, Default)]
pub struct Bells {
    /// Rings on every message of `channels`.
    pub changed: Arc<Bell>,
    pub channels: Vec<String>,
    /// Rings on the wake-ups of the source's route: it may have been resumed.
    pub woken: Arc<Bell>,
}

/// A configured way in.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Takes messages until `stop` says so. Returns only then, or when dropped: it survives the loss of its system
    /// and of Redis, and tells `intake.status()` about either. Dropping it at any await loses nothing:
    /// what was on its way to Redis may still arrive there, and is not acknowledged upstream.
    async fn run(&self, intake: Intake, stop: watch::Receiver<bool>);

    /// Whether it could take messages now; bounded in time.
    ///
    /// # Errors
    /// What is wrong, for a person.
    async fn check(&self) -> Result<(), String>;

    /// What would make it safer, for a person, where `check` found nothing wrong; bounded in time.
    async fn advice(&self) -> Option<String> {
        None
    }

    /// What is to ring for it while it runs.
    fn bells(&self) -> Option<&Bells> {
        None
    }

    /// Messages that wait in its system, where that can be told; bounded in time.
    async fn depth(&self) -> Option<u64>;
}
