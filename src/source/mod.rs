//! Sources take messages from an external system and schedule them on a route, through the same handle as the API. A
//! source uses its external system and the `Intake`; the intake uses the queue. A message is acknowledged upstream only
//! after the intake has returned: then Redis has the message, live or as a dead letter.

mod entry;
mod intake;
mod settings;
mod status;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::store::WakeSignal;

pub use self::{
    entry::SourceEntry,
    intake::{Intake, Stopped},
    settings::{IdGenerator, QueueRedis, SourceSettings, SourceSetup},
    status::{SourceHealth, SourceState, SourceStatus},
};

/// Signals of a source on the queue's Redis. The instance's one subscription notifies them.
#[derive(Clone, Debug, Default)]
pub struct Bells {
    /// Notified by every message of `channels`.
    pub changed: Arc<WakeSignal>,
    pub channels: Vec<String>,
    /// Notified by the wake-ups of the source's route, which may have been resumed.
    pub woken: Arc<WakeSignal>,
}

/// The output of `work`; `None` if `stop` is true or its sender is dropped. A stop has priority.
pub async fn unless_stopped<T>(stop: &mut watch::Receiver<bool>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => None,
        done = work => Some(done),
    }
}

/// A configured source.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Takes messages until `stop`. It recovers from outages of its external system and of Redis, and reports them to
    /// `intake`. Dropping it at any await loses no message: a message that is being sent to Redis may arrive there, and
    /// is not acknowledged upstream.
    async fn run(&self, intake: Intake, stop: watch::Receiver<bool>);

    /// Whether the source could take messages now. Bounded in time.
    ///
    /// # Errors
    /// The error as text for operators.
    async fn check(&self) -> Result<(), String>;

    /// A recommendation for operators, if `check` found no error. Bounded in time.
    async fn advice(&self) -> Option<String> {
        None
    }

    /// The signals to notify while the source runs.
    fn bells(&self) -> Option<&Bells> {
        None
    }

    /// The number of messages that wait in the external system; `None` if unknown. Bounded in time.
    async fn depth(&self) -> Option<u64>;
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_source_has_no_advice_and_needs_no_signals_unless_it_says_so() {
        struct Plain;

        #[async_trait]
        impl Source for Plain {
            async fn run(&self, _: Intake, _: watch::Receiver<bool>) {}

            async fn check(&self) -> Result<(), String> {
                Ok(())
            }

            async fn depth(&self) -> Option<u64> {
                None
            }
        }

        assert_eq!(Plain.advice().now_or_never(), Some(None));
        assert!(Plain.bells().is_none());
    }
}
