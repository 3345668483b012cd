//! Forwards dead letters to the route that `dead.forward` names.
//!
//! A script that makes a message dead puts it into the outbox of its partition in the same step. A forwarder takes it from
//! there, schedules it on the other route, and ends its turn. If a process ends in between, a forwarder of any instance
//! takes it again after 15 s, and schedules it with the same id.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    message::{DeadLetter, Forwarding, NewMessage},
    metrics,
    queue::{Queue, QueueError},
    store::{
        Partition, ScheduleStatus, StoreError, WakeSignal,
        redis::{Outgoing, RedisStore, Turn},
    },
};

/// Maximum time between two looks at an outbox: deaths of other instances, and turns of processes that ended.
const INTERVAL: Duration = Duration::from_secs(15);

/// Time until a dead letter that the other route refused is tried again, and after an error of Redis.
const RETRY: Duration = Duration::from_secs(5);

/// Minimum time between two log lines about a route that refuses dead letters.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The label `via` of messages that were forwarded.
pub const VIA: &str = "dead";

/// Forwards the dead letters of one route.
pub struct Forwarder {
    pub route: Arc<str>,
    pub partitions: u16,
    pub to: Forwarding,
    /// Notified when a message of the route becomes dead.
    pub signal: Arc<WakeSignal>,
}

impl Forwarder {
    async fn work(&self, store: &RedisStore, queue: &Queue) {
        metrics::dead_forwarded(&self.route, 0);
        let mut logged: Option<Instant> = None;
        loop {
            let wait = match self.forward(store, queue).await {
                Ok((wait, None)) => wait,
                Ok((wait, Some(refusal))) => {
                    if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                        logged = Some(Instant::now());
                        let (route, to) = (&*self.route, &*self.to.route);
                        tracing::warn!(
                            route,
                            to,
                            refusal,
                            "dead letters cannot be forwarded now: they are tried again"
                        );
                    }
                    wait
                }
                Err(error) => {
                    // The keeper reports an outage.
                    tracing::debug!(route = &*self.route, %error, "cannot forward dead letters now");
                    RETRY
                }
            };
            tokio::select! {
                _ = self.signal.notified() => {}
                () = sleep_until(Instant::now() + wait) => {}
            }
        }
    }

    /// Forwards all that can be forwarded now. Returns the time until the next look, and why the other route refused a
    /// message.
    async fn forward(&self, store: &RedisStore, queue: &Queue) -> Result<(Duration, Option<String>), StoreError> {
        let (mut wait, mut waiting, mut refusal) = (INTERVAL, 0, None);
        let former = store.former_partitions(&self.route);
        for partition in Partition::all(&self.route, self.partitions).chain(former) {
            loop {
                let outbox = store.take_outbox(&partition).await?;
                if outbox.taken.is_empty() {
                    waiting += outbox.waiting;
                    wait = wait.min(outbox.next.unwrap_or(wait));
                    break;
                }
                let refused = self.send(store, queue, &partition, outbox.taken).await?;
                refusal = refused.or(refusal);
            }
        }
        metrics::dead_unforwarded(&self.route, waiting);
        Ok((wait, refusal))
    }

    async fn send(
        &self,
        store: &RedisStore,
        queue: &Queue,
        partition: &Partition,
        taken: Vec<Outgoing>,
    ) -> Result<Option<String>, StoreError> {
        let messages: Vec<NewMessage> = taken.iter().map(|one| self.message(one)).collect();
        let scheduled = match queue.schedule(&self.to.route, VIA, messages).await {
            Ok(scheduled) => scheduled,
            Err(error) => {
                let error = match error {
                    QueueError::Store(error @ StoreError::Unavailable { .. }) => return Err(error),
                    other => other.to_string(),
                };
                store.end_turn(partition, &taken, Turn::Again(RETRY)).await?;
                return Ok(Some(error));
            }
        };
        let mut over = None;
        let (left, refused): (Vec<_>, Vec<_>) = taken.into_iter().zip(scheduled).partition(|(_, one)| {
            let limit = match one.status {
                ScheduleStatus::Over(limit) => Some(limit),
                _ => None,
            };
            over = limit.or(over);
            limit.is_none()
        });
        let only = |pairs: Vec<(Outgoing, _)>| pairs.into_iter().map(|(one, _)| one).collect::<Vec<_>>();
        let (left, refused) = (only(left), only(refused));
        let turn = if self.to.purges { Turn::Purge } else { Turn::Keep };
        store.end_turn(partition, &left, turn).await?;
        metrics::dead_forwarded(&self.route, left.len() as u64);
        store.end_turn(partition, &refused, Turn::Again(RETRY)).await?;
        Ok(over.map(|limit| format!("the route is at its limit: {}", limit.status())))
    }

    fn message(&self, one: &Outgoing) -> NewMessage {
        let Outgoing { id, died, body, failures, error, .. } = one;
        DeadLetter { route: &self.route, id, died: *died, body, failures: *failures, error }.forwarded()
    }
}

/// The signals of deaths by route: of each of `listeners`.
pub fn signals(
    listeners: impl IntoIterator<Item = (Arc<str>, Arc<WakeSignal>)>,
) -> BTreeMap<Arc<str>, Vec<Arc<WakeSignal>>> {
    let mut all: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
    for (route, signal) in listeners {
        all.entry(route).or_default().push(signal);
    }
    all
}

/// Runs all forwarders until `stop`.
pub async fn run(
    forwarders: Vec<Forwarder>,
    store: Arc<RedisStore>,
    queue: Arc<Queue>,
    mut stop: watch::Receiver<bool>,
) {
    let work = join_all(forwarders.iter().map(|forwarder| forwarder.work(&store, &queue)));
    tokio::select! {
        _ = work, if !forwarders.is_empty() => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}
