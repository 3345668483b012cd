//! Topics of Kafka, consumed as a member of a consumer group. Offsets are committed only after Redis has the messages.
//!
//! `record` is a consumed record and `action` the action that it requests, by `timing` (due times), `schedule`
//! (kafka-message-scheduler) and `content` (key and headers). `poller` is the thread that owns the consumer, `callbacks`
//! its librdkafka callbacks, `batch` its buffer. `start_position` decides where partitions start, `positions` what is
//! committed. `membership` is shared between the thread and the source. `overdue` serves `max_overdue`.

mod action;
mod batch;
mod callbacks;
mod content;
mod membership;
mod overdue;
mod poller;
mod positions;
mod properties;
#[cfg(test)]
mod rebalancing;
mod record;
mod schedule;
mod start_position;
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
    batch::FetchedBatch,
    callbacks::{Client, ConsumerCallbacks},
    membership::Membership,
    overdue::RedisClock,
    poller::{Poller, PollerState, Signal},
};
use crate::source::{Intake, Source, unless_stopped};
use crate::{
    config::Period,
    connector::kafka::{KafkaSourceSettings, blocking, made},
};

/// Maximum wait for an answer to `check`.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum wait for an answer to `depth`.
const DEPTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait for the last commit and for leaving the group.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a consumer is created again after a fatal error.
const REBUILD_PAUSE: Duration = Duration::from_secs(1);

pub struct KafkaSource {
    config: KafkaSourceSettings,
    membership: Arc<Membership>,
}

impl KafkaSource {
    /// `run` connects.
    ///
    /// # Errors
    /// The settings that librdkafka rejects.
    pub fn new(config: &KafkaSourceSettings) -> Result<Self, String> {
        let _: BaseConsumer = made(properties::client(config).create())?;
        let membership = Arc::new(Membership::new(config.topics.iter().cloned()));
        Ok(Self { config: config.clone(), membership })
    }

    fn name(&self) -> String {
        let topics: Vec<_> = self.config.topics.iter().map(String::as_str).collect();
        format!("{}/{}", self.config.cluster().addresses(), topics.join(","))
    }

    /// Consumes until `stop`, or until the consumer fails.
    ///
    /// # Errors
    /// Why the consumer failed.
    async fn consume(&self, intake: &Intake, stop: &mut watch::Receiver<bool>) -> Result<(), String> {
        let (sender, signals) = mpsc::channel();
        let (batches, mut received) = tasks::unbounded_channel();
        let (end_sender, ended) = oneshot::channel();
        let max_overdue = match self.config.max_overdue {
            Some(Period(most)) => Some((most, RedisClock::read(intake).await.map_err(|error| error.to_string())?)),
            None => None,
        };
        let (start, tombstones) = (self.config.start, self.config.tombstones);
        let (settings, callbacks) = (properties::consumer(&self.config), ConsumerCallbacks::new(self.name()));
        let (membership, ready, poller_intake) = (self.membership.clone(), sender.clone(), intake.clone());
        let poll = move || {
            let mut client: Client = made(settings.create_with_context(callbacks))?;
            client.set_nonempty_callback(move || {
                // The poller has ended.
                let _ = ready.send(Signal::Ready);
            });
            let (client, intake, state) = (membership.join(client), poller_intake, PollerState::default());
            Poller { client, membership, intake, start, tombstones, max_overdue, batches, signals, state }.run()
        };
        thread::Builder::new()
            .name("kafka-source".into())
            .spawn(move || {
                // The receiver is dropped after `CLOSE_TIMEOUT`.
                let _ = end_sender.send(poll());
            })
            .map_err(|error| format!("no thread: {error}"))?;
        let stop_on_drop = StopOnDrop(sender.clone());
        while let Some(Some(FetchedBatch { entries, cancelled })) = unless_stopped(stop, received.recv()).await {
            let report = |entries| {
                // The poller drops its receiver only after a failure.
                let _ = sender.send(Signal::Stored(entries));
            };
            let stored = tokio::select! {
                taken = intake.take(entries, report) => taken.is_ok(),
                _ = cancelled => false,
            };
            let _ = sender.send(Signal::BatchDone(stored));
        }
        drop(stop_on_drop);
        match timeout(CLOSE_TIMEOUT, ended).await {
            Ok(Ok(end)) => end,
            Ok(Err(_)) => Err("the consumer's thread panicked".into()),
            Err(_) => {
                tracing::warn!(source = intake.name(), "the group was not left within {CLOSE_TIMEOUT:?}");
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
            if unless_stopped(&mut stop, sleep(REBUILD_PAUSE)).await.is_none() {
                return;
            }
        }
    }

    /// Looks up the topics. Does not join the group.
    async fn check(&self) -> Result<(), String> {
        let (settings, name, membership) = (properties::client(&self.config), self.name(), self.membership.clone());
        let brokers = self.config.cluster().addresses();
        blocking(move || {
            let client: Client = made(settings.create_with_context(ConsumerCallbacks::new(name)))?;
            membership.check_topics(&client, &brokers, CHECK_TIMEOUT).map_err(|error| {
                // The likely cause is among the queued events.
                while client.poll(Duration::from_millis(10)).is_some() {}
                client.context().cause().map_or(error.clone(), |cause| format!("{error}: {cause}"))
            })
        })
        .await
        .unwrap_or_else(Err)
    }

    /// The lag of the partitions of this instance. Each call queries the brokers.
    async fn depth(&self) -> Option<u64> {
        let membership = self.membership.clone();
        blocking(move || membership.lag(DEPTH_TIMEOUT)).await.ok().flatten()
    }
}

struct StopOnDrop(mpsc::Sender<Signal>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The poller has ended.
        let _ = self.0.send(Signal::Stop);
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::{rebalancing::unused_intake, *};
    use crate::{
        connector::kafka::{Sasl, Start, Tombstones},
        source::SourceHealth,
        tls::TlsFiles,
    };

    fn source(brokers: &str, topics: &[&str]) -> KafkaSource {
        let config = KafkaSourceSettings {
            route: "r".into(),
            brokers: brokers.split(',').map(str::to_owned).collect(),
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            group_id: "g".into(),
            start: Start::Earliest,
            max_overdue: None,
            tombstones: Tombstones::Cancel,
            sasl: Sasl::default(),
            tls: TlsFiles::default(),
            options: [].into(),
        };
        KafkaSource::new(&config).expect("valid settings")
    }

    #[test]
    fn the_log_names_brokers_and_topics() {
        assert_eq!(source("one:1,two:2", &["t", "u"]).name(), "one:1,two:2/t,u");
    }

    #[tokio::test]
    async fn a_source_that_stops_has_ended_its_consumer() {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", 1, 1).expect("a topic");
        let source = Arc::new(source(&cluster.bootstrap_servers(), &["t"]));
        let (stop, stopping) = watch::channel(false);
        let intake = unused_intake(&Arc::<SourceHealth>::default(), stopping.clone());
        let running = tokio::spawn({
            let source = Arc::clone(&source);
            async move { source.run(intake, stopping).await }
        });
        let consumes = async {
            while source.depth().await.is_none() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(10), consumes).await.expect("a consumer");
        stop.send_replace(true);
        timeout(Duration::from_secs(10), running).await.expect("it stops").expect("no panic");
        assert_eq!(source.depth().await, None);
    }
}
