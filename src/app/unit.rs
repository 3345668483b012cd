//! Parts of an instance that end and are replaced while the other parts go on.

use std::{any::Any, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout_at},
};

/// The payload of a panic.
pub type Panic = Box<dyn Any + Send>;

/// Starts units.
#[derive(Clone)]
pub struct Units {
    /// Whether units can work: not before Redis is prepared.
    pub opened: watch::Receiver<bool>,
    /// Maximum time in which a unit ends.
    pub limit: Duration,
    pub panics: mpsc::UnboundedSender<Panic>,
}

/// A part that runs, or waits for its predecessors to end. Aborted on drop.
pub struct Unit {
    name: String,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Units {
    /// Stops `former`, and starts `work` when they have ended. Panics of `work` are reported. Must be called within a tokio
    /// runtime.
    pub fn start<F: Future<Output = ()> + Send + 'static>(
        &self,
        name: String,
        former: Vec<Unit>,
        work: impl FnOnce(watch::Receiver<bool>) -> F + Send + 'static,
    ) -> Unit {
        former.iter().for_each(Unit::stop);
        let deadline = Instant::now() + self.limit;
        let (stop, mut stopped) = watch::channel(false);
        let (mut opened, panics) = (self.opened.clone(), self.panics.clone());
        let run = async move {
            for unit in former {
                unit.ended(deadline).await;
            }
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stop| *stop) => return,
                _ = opened.wait_for(|opened| *opened) => {}
            }
            work(stopped).await;
        };
        let task = tokio::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(run).catch_unwind().await {
                // Without a receiver the instance has ended.
                let _ = panics.send(panic);
            }
        });
        Unit { name, stop, task }
    }
}

impl Unit {
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for the end, at the latest until `deadline`.
    pub async fn ended(mut self, deadline: Instant) {
        if timeout_at(deadline, &mut self.task).await.is_err() {
            tracing::warn!(part = self.name, "did not end in time");
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.task.abort();
    }
}
