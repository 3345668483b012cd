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
use redis::aio::PubSubSink;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use self::{
    cluster::ShardListeners,
    signals::{
        ANSWER_TIMEOUT, CurrentSignals, PING_INTERVAL, RESUBSCRIBE_INTERVAL, SignalTable, Signals, notify,
        set_listening,
    },
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

/// Holds the signals, and notifies them while `run` is polled. Signals can be added and removed at any time.
pub struct WakeListener {
    topology: Topology,
    signals: SignalTable,
    /// Counts the subscriptions made so far.
    subscriptions: watch::Sender<u64>,
}

impl WakeListener {
    /// Listens on the only server, or on each primary of a cluster for its partitions.
    pub fn new(topology: Topology) -> Self {
        Self { topology, signals: SignalTable::default(), subscriptions: watch::Sender::new(0) }
    }

    /// The signal of a partition's claimer.
    pub fn signal(&self, prefix: &str, partition: &Partition) -> Arc<WakeSignal> {
        let signal = Arc::default();
        self.also_notify(prefix, partition, &signal);
        self.signals.change(|current| current.sleepers += 1);
        signal
    }

    /// Notifies `signal` on the wake-ups of a partition, too.
    pub fn also_notify(&self, prefix: &str, partition: &Partition, signal: &Arc<WakeSignal>) {
        let keys_of = PartitionKeys::naming(matches!(self.topology, Topology::Cluster(_)));
        let channel = keys_of(prefix, partition).wake;
        self.signals.change(|current| current.own.entry(channel).or_default().push(signal.clone()));
    }

    /// Notifies a source's `signal` on every message of these channels.
    pub fn notify_on(&self, channels: Vec<String>, signal: &Arc<WakeSignal>) {
        self.signals.change(|current| {
            for channel in channels {
                current.others.entry(channel).or_default().push(signal.clone());
            }
            current.sleepers += SLEEPERS_OF_A_SOURCE;
        });
    }

    /// Removes the signals of claimers.
    pub fn forget(&self, signals: &[Arc<WakeSignal>]) {
        self.signals.change(|current| {
            for signal in signals {
                current.remove(signal);
            }
            current.sleepers -= signals.len();
        });
    }

    /// Removes the signals of a source: that of `notify_on`, and those of its partitions.
    pub fn forget_source(&self, signals: &[&Arc<WakeSignal>]) {
        self.signals.change(|current| {
            for signal in signals {
                current.remove(signal);
            }
            current.sleepers -= SLEEPERS_OF_A_SOURCE;
        });
    }

    /// Changes each time a subscription is made: the server may be another one than before.
    pub fn subscriptions(&self) -> watch::Receiver<u64> {
        self.subscriptions.subscribe()
    }

    /// Never returns; drop the future to end the subscription.
    pub async fn run(&self) {
        let upstream = match &self.topology {
            Topology::Single(upstream) => upstream.clone(),
            Topology::Cluster(cluster) => {
                return ShardListeners::new(cluster.clone(), &self.signals, self.subscriptions.clone()).run().await;
            }
        };
        let (mut logged, mut logged_others) = (false, false);
        loop {
            let mut changed = self.signals.changed();
            if self.signals.current().own.is_empty() {
                // Cannot fail: this listener has the sender.
                let _ = changed.changed().await;
                continue;
            }
            let error = match self.listen(&upstream, &mut logged_others).await {
                // Subscribes again at once. Not logged here: the keeper logs a lost master.
                Ok(SubscriptionEnd::Outdated | SubscriptionEnd::Unused) => continue,
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
            let current = self.signals.current();
            set_listening(current.own.values(), false);
            set_listening(current.others.values(), false);
            sleep(RESUBSCRIBE_INTERVAL).await;
        }
    }

    /// Returns how the subscription ended; an error if it failed. `logged`: whether it was logged that the channels of
    /// other programs' keys are refused.
    async fn listen(&self, upstream: &Upstream, logged: &mut bool) -> Result<SubscriptionEnd, String> {
        let (begun, subscription) = upstream.subscribe(ANSWER_TIMEOUT).await?;
        let (mut commands, mut messages) = subscription.split();
        let mut changed = self.signals.changed();
        let mut subscribed = Subscribed::default();
        loop {
            if subscribed.is_new || changed.has_changed().unwrap_or(false) {
                changed.mark_unchanged();
                let is_new = subscribed.is_new;
                match timeout(ANSWER_TIMEOUT, subscribed.follow(&mut commands, self.signals.current(), logged)).await {
                    Ok(result) => result.map_err(|error| error.to_string())?,
                    Err(_) => return Err(no_answer()),
                }
                if subscribed.current.own.is_empty() {
                    return Ok(SubscriptionEnd::Unused);
                }
                if is_new {
                    self.subscriptions.send_modify(|count| *count += 1);
                }
            }
            let current = &subscribed.current;
            let few = current.sleepers <= FEW_SLEEPERS;
            let ping_interval = if few { PING_INTERVAL_OF_FEW } else { PING_INTERVAL };
            let message = tokio::select! {
                message = timeout(ping_interval, messages.next()) => message,
                () = upstream.outdated(begun) => return Ok(SubscriptionEnd::Outdated),
                _ = changed.changed() => {
                    changed.mark_changed();
                    continue;
                }
            };
            match message {
                Ok(Some(message)) => {
                    let channel = message.get_channel_name();
                    let signals = current.own.get(channel).into_iter().chain(current.others.get(channel));
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

fn no_answer() -> String {
    format!("no answer in {ANSWER_TIMEOUT:?}")
}

/// The channels of one connection.
struct Subscribed {
    current: CurrentSignals,
    /// Nothing is subscribed to yet.
    is_new: bool,
    /// The channels of other programs' keys are refused.
    refuses_others: bool,
}

impl Default for Subscribed {
    fn default() -> Self {
        Self { current: CurrentSignals::default(), is_new: true, refuses_others: false }
    }
}

impl Subscribed {
    /// Subscribes to the channels that are new in `next`, and ends the subscriptions to those that it does not have.
    /// `logged`: whether it was logged that the channels of other programs' keys are refused.
    async fn follow(
        &mut self,
        commands: &mut PubSubSink,
        next: CurrentSignals,
        logged: &mut bool,
    ) -> redis::RedisResult<()> {
        let without = |some: &Signals, others: &Signals| -> Vec<String> {
            some.keys().filter(|channel| !others.contains_key(*channel)).cloned().collect()
        };
        let own = without(&next.own, &self.current.own);
        if !own.is_empty() {
            commands.subscribe(own).await?;
        }
        self.set_listening(&next.own);
        // In a separate command: a user may have rights to our channels only.
        let others = without(&next.others, &self.current.others);
        let refused = if others.is_empty() { None } else { commands.subscribe(others).await.err() };
        self.refuses_others |= refused.is_some();
        if !self.refuses_others {
            self.set_listening(&next.others);
        }
        if let Some(error) = refused.filter(|_| !*logged) {
            *logged = true;
            tracing::warn!(%error, "redis does not notify of changes of sources' keys: they are polled every `poll`");
        }
        let mut removed = without(&self.current.own, &next.own);
        removed.extend(without(&self.current.others, &next.others));
        if !removed.is_empty() {
            commands.unsubscribe(removed).await?;
        }
        (self.current, self.is_new) = (next, false);
        Ok(())
    }

    /// With a new connection all signals notify, because wake-ups may have been missed. Later only signals that do not
    /// listen yet.
    fn set_listening(&self, signals: &Signals) {
        for signal in signals.values().flatten().filter(|signal| self.is_new || !signal.is_listening()) {
            signal.set_listening(true);
        }
    }
}

/// How a subscription ended.
enum SubscriptionEnd {
    /// The connection ended.
    Lost,
    /// The connection may lead to a server that is not the master any more.
    Outdated,
    /// The last partition was removed.
    Unused,
}
