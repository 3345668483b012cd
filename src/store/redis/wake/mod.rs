//! Wake-ups: one subscription on a separate connection notifies the signals of all partitions, and of sources on this
//! Redis.
//!
//! Signals notify on every message, and whenever a subscription is made or lost, because wake-ups may have been missed.
//! A lost wake-up delays a message by at most `max_sleep`.
//!
//! A subscription can die without an error. If the peer has vanished, the kernel's keepalive ends the connection within
//! 4 s (`connection`). If a proxy keeps the connection open and forwards nothing, our own PING detects it, within 5 s
//! with a few partitions and 10 s with many. A message that becomes the head in that time can be late by as much, at
//! most by `max_sleep`. A subscription to a server that is not the master any more is replaced as soon as any
//! connection to the same Redis detects the change (`connection`).
//!
//! On a cluster there is a subscription on each primary (`cluster`).

mod cluster;
mod signals;

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use self::{
    cluster::ShardListeners,
    signals::{ANSWER_TIMEOUT, PING_INTERVAL, RESUBSCRIBE_INTERVAL, Signals, notify, set_listening},
};
use super::{
    connection::{Topology, Upstream},
    keys::PartitionKeys,
};
use crate::store::{Partition, WakeSignal};

/// `PING_INTERVAL` with few sleepers, which use less of the command budget of an idle instance.
const PING_INTERVAL_OF_FEW: Duration = Duration::from_secs(3);
const FEW_SLEEPERS: usize = 3;
/// A source's fallback poll is two commands, as many as two partitions send.
const SLEEPERS_OF_A_SOURCE: usize = 2;

/// Holds the signals, and notifies them while `run` is polled.
pub struct WakeListener {
    topology: Topology,
    /// Signals of partitions, by channel.
    signals: Signals,
    /// Signals of sources, by channel of other programs' keys.
    others: Signals,
    /// Number of partitions, plus `SLEEPERS_OF_A_SOURCE` for each source.
    sleepers: usize,
    /// Counts the subscriptions made so far.
    subscriptions: watch::Sender<u64>,
}

impl WakeListener {
    /// Listens on the only server, or on each primary of a cluster for its partitions.
    pub fn new(topology: Topology) -> Self {
        let (signals, others) = (Signals::new(), Signals::new());
        Self { topology, signals, others, sleepers: 0, subscriptions: watch::Sender::new(0) }
    }

    /// The signal of a partition's claimer; call for all partitions before `run`.
    pub fn signal(&mut self, prefix: &str, partition: &Partition) -> Arc<WakeSignal> {
        let signal = Arc::default();
        self.also_notify(prefix, partition, &signal);
        self.sleepers += 1;
        signal
    }

    /// Notifies `signal` on the wake-ups of a partition, too; call before `run`.
    pub fn also_notify(&mut self, prefix: &str, partition: &Partition, signal: &Arc<WakeSignal>) {
        let keys_of = PartitionKeys::naming(matches!(self.topology, Topology::Cluster(_)));
        let channel = keys_of(prefix, partition).wake;
        self.signals.entry(channel).or_default().push(signal.clone());
    }

    /// Notifies a source's `signal` on every message of these channels; call before `run`.
    pub fn notify_on(&mut self, channels: Vec<String>, signal: &Arc<WakeSignal>) {
        for channel in channels {
            self.others.entry(channel).or_default().push(signal.clone());
        }
        self.sleepers += SLEEPERS_OF_A_SOURCE;
    }

    /// Changes each time a subscription is made: the server may be another one than before.
    pub fn subscriptions(&self) -> watch::Receiver<u64> {
        self.subscriptions.subscribe()
    }

    /// Never returns; drop the future to end the subscription.
    pub async fn run(self) {
        if self.signals.is_empty() {
            return std::future::pending().await;
        }
        let upstream = match &self.topology {
            Topology::Single(upstream) => upstream.clone(),
            Topology::Cluster(cluster) => {
                return ShardListeners::new(cluster.clone(), self.signals, self.subscriptions).run().await;
            }
        };
        let (mut logged, mut logged_others) = (false, false);
        loop {
            let error = match self.listen(&upstream, &mut logged_others).await {
                // Subscribes again at once. Not logged here: the keeper logs a lost master.
                Ok(SubscriptionEnd::Outdated) => continue,
                Ok(SubscriptionEnd::Lost) => {
                    logged = false;
                    "the connection was lost".to_owned()
                }
                Err(error) => error,
            };
            if !logged {
                tracing::warn!(
                    error,
                    "wake-ups do not arrive: queues are polled every second, sources at their `poll`"
                );
                logged = true;
            }
            set_listening(self.signals.values(), false);
            set_listening(self.others.values(), false);
            sleep(RESUBSCRIBE_INTERVAL).await;
        }
    }

    /// Returns how the subscription ended; an error if it failed. `logged`: whether it was logged that the channels of
    /// other programs' keys are refused.
    async fn listen(&self, upstream: &Upstream, logged: &mut bool) -> Result<SubscriptionEnd, String> {
        let client = upstream.client(ANSWER_TIMEOUT).await.map_err(|error| error.to_string())?;
        // Taken before connecting: a change of the master that is detected while connecting concerns this connection.
        let begun = Instant::now();
        let subscribe = async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe(self.signals.keys().collect::<Vec<_>>()).await?;
            // In a separate command: a user may have rights to our channels only.
            let others: Vec<&String> = self.others.keys().collect();
            let refused = if others.is_empty() { None } else { subscription.subscribe(others).await.err() };
            Ok::<_, redis::RedisError>((subscription.split(), refused))
        };
        let ((mut commands, mut messages), refused) = match timeout(ANSWER_TIMEOUT, subscribe).await {
            Ok(Ok(parts)) => parts,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no answer in {ANSWER_TIMEOUT:?}")),
        };
        set_listening(self.signals.values(), true);
        match refused {
            None => set_listening(self.others.values(), true),
            Some(_) if *logged => {}
            Some(error) => {
                *logged = true;
                tracing::warn!(%error, "redis does not notify of changes of sources' keys: they are polled every `poll`");
            }
        }
        self.subscriptions.send_modify(|count| *count += 1);
        let few = self.sleepers <= FEW_SLEEPERS;
        let ping_interval = if few { PING_INTERVAL_OF_FEW } else { PING_INTERVAL };
        loop {
            let message = tokio::select! {
                message = timeout(ping_interval, messages.next()) => message,
                () = upstream.outdated(begun) => return Ok(SubscriptionEnd::Outdated),
            };
            match message {
                Ok(Some(message)) => {
                    let channel = message.get_channel_name();
                    let signals = self.signals.get(channel).into_iter().chain(self.others.get(channel));
                    notify(signals, message.get_payload_bytes());
                }
                Ok(None) => return Ok(SubscriptionEnd::Lost),
                // Nothing for a while: is the connection alive?
                Err(_) => match timeout(ANSWER_TIMEOUT, commands.ping::<redis::Value>()).await {
                    Ok(Ok(_)) => {}
                    _ => return Ok(SubscriptionEnd::Lost),
                },
            }
        }
    }
}

/// How a subscription ended.
enum SubscriptionEnd {
    /// The connection ended.
    Lost,
    /// The connection may lead to a server that is not the master any more.
    Outdated,
}
