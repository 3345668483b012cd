//! Topics of Kafka, read as a member of a consumer group. Offsets are committed only after Redis has the messages.
//!
//! `record` is what is consumed, `reading` says what it asks for, `timing` and `schedule` know the headers, `content`
//! the way of keys and headers into a message. `poller` is the thread that has the consumer, `context` what
//! librdkafka calls back on it, `beginning` says where partitions begin, `positions` what is to be committed,
//! `membership` what others may know of it. `clock` tells what is overdue, `skips` of what was.

mod beginning;
mod clock;
mod content;
mod context;
mod membership;
mod poller;
mod positions;
mod properties;
mod reading;
#[cfg(test)]
mod rebalancing;
mod record;
mod schedule;
mod skips;
#[cfg(test)]
mod testing;
mod timing;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use async_trait::async_trait;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::{
    sync::{mpsc as tasks, oneshot, watch},
    time::{sleep, timeout},
};

use self::{
    clock::RedisClock,
    context::{Client, Context},
    membership::Membership,
    poller::{Batch, Poller, Signal, State},
};
use crate::source::{Intake, Source};
use crate::{
    config::Period,
    connector::kafka::{KafkaSourceSettings, made},
};

/// Longest wait for an answer to `check`.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer to `depth`.
const DEPTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the last commit, and for leaving the group.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Before a consumer that failed for good is made anew.
const REBUILD_PAUSE: Duration = Duration::from_secs(1);

pub struct KafkaSource {
    config: KafkaSourceSettings,
    membership: Arc<Membership>,
}

impl KafkaSource {
    /// Connects when it runs.
    ///
    /// # Errors
    /// Which settings librdkafka does not take.
    pub fn new(config: &KafkaSourceSettings) -> Result<Self, String> {
        let _: BaseConsumer = made(properties::client(config).create())?;
        let membership = Arc::new(Membership::new(config.topics.iter().cloned()));
        Ok(Self { config: config.clone(), membership })
    }

    fn name(&self) -> String {
        let topics: Vec<_> = self.config.topics.iter().map(String::as_str).collect();
        format!("{}/{}", self.config.cluster().addresses(), topics.join(","))
    }

    /// Returns when it is told to stop, or with the reason why the consumer ended.
    async fn consume(&self, intake: &Intake, stop: &mut watch::Receiver<bool>) -> Result<(), String> {
        let (signals, mailbox) = mpsc::channel();
        let (batches, mut departing) = tasks::unbounded_channel();
        let (ending, ended) = oneshot::channel();
        let max_overdue = match self.config.max_overdue {
            Some(Period(most)) => Some((most, RedisClock::ask(intake).await.map_err(|error| error.to_string())?)),
            None => None,
        };
        let (config, membership) = (self.config.clone(), self.membership.clone());
        let opening = Opening { name: self.name(), config, membership, max_overdue };
        let (poller_intake, ready) = (intake.clone(), signals.clone());
        thread::Builder::new()
            .name("kafka-source".into())
            .spawn(move || {
                let end = opening.open(poller_intake, batches, (ready, mailbox)).and_then(Poller::run);
                // Nobody may wait for it any more.
                let _ = ending.send(end);
            })
            .map_err(|error| format!("no thread: {error}"))?;
        let stopping = StopOnDrop(signals.clone());
        loop {
            let Batch { entries, called_back } = tokio::select! {
                batch = departing.recv() => match batch {
                    Some(batch) => batch,
                    None => break,
                },
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let landed = tokio::select! {
                taken = intake.take(entries) => taken.is_ok(),
                _ = called_back => false,
            };
            // It is gone only when it has failed.
            let _ = signals.send(Signal::Landed(landed));
        }
        drop(stopping);
        match timeout(CLOSE_TIMEOUT, ended).await {
            Ok(Ok(end)) => end,
            Ok(Err(_)) => Err("the consumer's thread ended with a defect".into()),
            Err(_) => {
                tracing::warn!(source = intake.name(), "did not leave its group within {CLOSE_TIMEOUT:?}");
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Source for KafkaSource {
    async fn run(&self, intake: Intake, mut stop: watch::Receiver<bool>) {
        loop {
            let end = self.consume(&intake, &mut stop).await;
            if *stop.borrow() {
                return;
            }
            if let Err(error) = end {
                intake.failing(&error);
            }
            tokio::select! {
                () = sleep(REBUILD_PAUSE) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Asks the brokers for the topics, without joining the group.
    async fn check(&self) -> Result<(), String> {
        let (settings, name, membership) = (properties::client(&self.config), self.name(), self.membership.clone());
        let brokers = self.config.cluster().addresses();
        blocking(move || {
            let client: Client = made(settings.create_with_context(Context::new(name)))?;
            membership.ask(&client, &brokers, CHECK_TIMEOUT).map_err(|error| {
                // Its likely cause is among the events that wait.
                while client.poll(Duration::from_millis(10)).is_some() {}
                client.context().reports.cause().map_or(error.clone(), |cause| format!("{error}: {cause}"))
            })
        })
        .await
        .unwrap_or_else(Err)
    }

    /// Of the partitions that this instance has. Asks the brokers, so that nothing is sent while nobody looks.
    async fn depth(&self) -> Option<u64> {
        let membership = self.membership.clone();
        blocking(move || membership.lag(DEPTH_TIMEOUT)).await.ok().flatten()
    }
}

/// What the poller's thread makes its consumer of.
struct Opening {
    name: String,
    config: KafkaSourceSettings,
    membership: Arc<Membership>,
    max_overdue: Option<(Duration, RedisClock)>,
}

impl Opening {
    fn open(
        self,
        intake: Intake,
        batches: tasks::UnboundedSender<Batch>,
        (ready, mailbox): (mpsc::Sender<Signal>, mpsc::Receiver<Signal>),
    ) -> Result<Poller, String> {
        let Self { name, config, membership, max_overdue } = self;
        let mut client: Client = made(properties::consumer(&config).create_with_context(Context::new(name)))?;
        client.set_nonempty_callback(move || {
            // The poller has ended.
            let _ = ready.send(Signal::Ready);
        });
        let (client, start, state) = (membership.join(client), config.start, State::default());
        Ok(Poller { client, membership, intake, start, max_overdue, batches, mailbox, state })
    }
}

struct StopOnDrop(mpsc::Sender<Signal>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The poller has ended.
        let _ = self.0.send(Signal::Stop);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| panic.to_string())
}
