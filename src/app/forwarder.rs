//! Forwards dead letters to the route that `dead.forward` names.
//!
//! A script that makes a message dead puts it into the outbox of its partition in the same step. A forwarder takes it from
//! there, schedules it on the other route, and ends its turn. If a process ends in between, a forwarder of any instance
//! takes it again after 15 s, and schedules it with the same id.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    message::{DeadLetter, Forwarding, NewMessage},
    metrics,
    queue::{Queue, QueueError},
    store::{
        Partition, ScheduleStatus, Scheduled, StoreError, WakeSignal,
        redis::{Outgoing, RedisStore, Turn},
    },
};

/// Maximum time between two looks at an outbox: deaths of other instances, and turns of processes that ended.
const INTERVAL: Duration = Duration::from_secs(15);

/// Time until the next try if the other route takes no messages, and after an error of Redis.
const RETRY: Duration = Duration::from_secs(1);

/// Time until the next try of a dead letter that the other route does not accept: only a change of its settings helps.
const UNACCEPTED_RETRY: Duration = Duration::from_mins(1);

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
    /// Shared with the other forwarders of the instance.
    pub passes: Arc<Passes>,
}

/// Passes over outboxes: a dead letter that was taken is on neither route until its pass ends.
#[derive(Debug, Default)]
pub struct Passes {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A pass under way. It ends when this is dropped.
struct Pass<'a>(&'a Passes);

impl Passes {
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// No pass was under way since, if as many have `begun`.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    fn begin(&self) -> Pass<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Pass(self)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// The result of a batch.
#[derive(Default)]
struct Sent {
    forwarded: u64,
    /// Why messages are left.
    refusal: Option<String>,
    /// The other route takes no further messages now.
    is_full: bool,
}

impl Forwarder {
    /// Returns after `stop`, once the batch that was taken has ended: otherwise another forwarder would send it again.
    pub async fn run(&self, store: &RedisStore, queue: &Queue, mut stop: watch::Receiver<bool>) {
        metrics::dead_forwarded(&self.route, 0);
        let mut logged: Option<Instant> = None;
        while !is_stopping(&stop) {
            let forwarded = {
                let _pass = self.passes.begin();
                self.forward(store, queue, &stop).await
            };
            let (wait, refusal) = match forwarded {
                Ok(looked) => looked,
                Err(error) => (RETRY, self.refused(store, &error).await),
            };
            if let Some(refusal) = refusal
                && logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL)
            {
                logged = Some(Instant::now());
                let (route, to) = (&*self.route, &*self.to.route);
                tracing::warn!(route, to, refusal, "dead letters cannot be forwarded now: they are tried again");
            }
            tokio::select! {
                _ = self.signal.notified() => {}
                () = sleep(wait) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
    }

    /// Counts the dead letters that wait because of an error of Redis. Returns the error if there are any. A full Redis counts
    /// them; the keeper reports one that does not answer.
    async fn refused(&self, store: &RedisStore, error: &StoreError) -> Option<String> {
        let waiting = store.unforwarded(&self.route, self.partitions).await.ok()?;
        metrics::dead_unforwarded(&self.route, waiting);
        (waiting > 0).then(|| error.to_string())
    }

    /// Forwards all that can be forwarded now. Returns the time until the next look, and why messages are left.
    async fn forward(
        &self,
        store: &RedisStore,
        queue: &Queue,
        stop: &watch::Receiver<bool>,
    ) -> Result<(Duration, Option<String>), StoreError> {
        let (mut wait, mut waiting, mut refusal) = (INTERVAL, 0, None);
        let former = store.former_partitions(&self.route);
        for partition in Partition::all(&self.route, self.partitions).chain(former) {
            while !is_stopping(stop) {
                let outbox = store.take_outbox(&partition).await?;
                if outbox.taken.is_empty() {
                    waiting += outbox.waiting;
                    wait = wait.min(outbox.next.unwrap_or(wait));
                    break;
                }
                let sent = self.send(store, queue, &partition, outbox.taken).await?;
                refusal = sent.refusal.or(refusal);
                if sent.is_full {
                    waiting += outbox.waiting.saturating_sub(sent.forwarded);
                    wait = RETRY;
                    break;
                }
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
    ) -> Result<Sent, StoreError> {
        let messages: Vec<NewMessage> = taken.iter().map(|one| self.message(one)).collect();
        match queue.schedule(&self.to.route, VIA, messages).await {
            Ok(scheduled) => self.end(store, partition, taken.into_iter().zip(scheduled)).await,
            Err(QueueError::Store(error @ StoreError::Unavailable { .. })) => Err(error),
            // A message is not accepted, and with it the whole call.
            Err(QueueError::Store(StoreError::Refused { .. })) if taken.len() > 1 => {
                let mut all = Sent::default();
                for one in taken {
                    let Sent { forwarded, refusal, is_full } =
                        Box::pin(self.send(store, queue, partition, vec![one])).await?;
                    all.forwarded += forwarded;
                    all.refusal = refusal.or(all.refusal);
                    all.is_full |= is_full;
                }
                Ok(all)
            }
            Err(error) => {
                let is_full = !matches!(error, QueueError::Store(StoreError::Refused { .. }));
                let wait = if is_full { RETRY } else { UNACCEPTED_RETRY };
                store.end_turn(partition, &taken, Turn::Again(wait)).await?;
                Ok(Sent { forwarded: 0, refusal: Some(error.to_string()), is_full })
            }
        }
    }

    /// Ends the turn of dead letters, by the replies of the other route.
    async fn end(
        &self,
        store: &RedisStore,
        partition: &Partition,
        replies: impl Iterator<Item = (Outgoing, Scheduled)>,
    ) -> Result<Sent, StoreError> {
        let (mut left, mut refused, mut limit) = (Vec::new(), Vec::new(), None);
        for (one, reply) in replies {
            match reply.status {
                ScheduleStatus::Over(over) => {
                    limit = Some(over);
                    refused.push(one);
                }
                _ => left.push(one),
            }
        }
        let turn = if self.to.purges { Turn::Purge } else { Turn::Keep };
        store.end_turn(partition, &left, turn).await?;
        metrics::dead_forwarded(&self.route, left.len() as u64);
        store.end_turn(partition, &refused, Turn::Again(RETRY)).await?;
        let refusal = limit.map(|limit| format!("the route is at its limit: {}", limit.status()));
        Ok(Sent { forwarded: left.len() as u64, refusal, is_full: limit.is_some() })
    }

    fn message(&self, one: &Outgoing) -> NewMessage {
        let Outgoing { id, died, body, failures, error, .. } = one;
        DeadLetter { route: &self.route, id, died: *died, body, failures: *failures, error }.forwarded()
    }
}

fn is_stopping(stop: &watch::Receiver<bool>) -> bool {
    *stop.borrow()
}
