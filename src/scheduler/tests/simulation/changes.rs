//! Clients that cancel and move accepted messages, one by one and by group.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use rand::{RngExt, rngs::StdRng};
use tokio::time::{Instant, sleep};

use super::{super::MILLI, routes::pick};
use crate::{
    message::MessageId,
    store::{Cancelled, Partition, StoreError, redis::RedisStore},
    time::Due,
};

const GROUPS: [&str; 2] = ["a", "b"];
/// Messages of one call for a group.
const MOST: usize = 2;
/// Until a call is answered: faults end before.
const MAX_CALLS: usize = 1000;

/// A message of a producer.
#[derive(Clone, Debug)]
pub struct Produced {
    pub id: MessageId,
    pub partition: Partition,
    /// Whether the order of its flow, or its rate, permits to move it.
    pub may_move: bool,
}

impl Produced {
    fn is_of(&self, partition: &Partition, group: &str) -> bool {
        self.partition == *partition && group_of(self.id.as_str()) == Some(group)
    }
}

/// The messages of the producer, and their changes.
#[derive(Default)]
pub struct Changes {
    /// Each before its first call.
    produced: Mutex<Vec<Produced>>,
    /// Each after it was answered.
    accepted: Mutex<Vec<Produced>>,
    /// Messages that a call can have cancelled.
    pub may_be_cancelled: Mutex<BTreeSet<String>>,
    /// Messages that are not sent any more from this time on, by the answers of calls.
    pub never_sent_after: Mutex<BTreeMap<String, Instant>>,
    /// Sums of the answers.
    pub cancelled: Mutex<u64>,
    pub purged: Mutex<u64>,
}

/// The group that is part of an id.
pub fn group_of(id: &str) -> Option<&str> {
    id.rsplit('-').next().filter(|group| GROUPS.contains(group))
}

/// The end of the id of the next message: its group, or none.
pub fn random_group(rng: &mut StdRng) -> &'static str {
    pick::<&str>(rng, &["none", GROUPS[0], GROUPS[1]])
}

impl Changes {
    pub fn produce(&self, message: Produced) {
        self.produced.lock().push(message);
    }

    pub fn accept(&self, message: Produced) {
        self.accepted.lock().push(message);
    }

    /// Changes one of the accepted messages, or the group of one in its partition. A call without an answer is repeated until it
    /// has one.
    pub async fn change_one(self: Arc<Self>, store: Arc<RedisStore>, mut rng: StdRng) {
        let accepted = self.accepted.lock().clone();
        if accepted.is_empty() {
            return;
        }
        let message = pick(&mut rng, &accepted);
        match rng.random_range(0..3) {
            0 => self.cancel(&store, message).await,
            1 => {
                if let Some(group) = group_of(message.id.as_str()) {
                    self.cancel_group(&store, &message.partition, group, &accepted).await;
                }
            }
            _ if message.may_move => {
                let due = rng.random_bool(0.7).then(|| Due::After(rng.random_range(0..3000)));
                answered(|| store.reschedule(&message.partition, &message.id, due)).await;
            }
            _ => {}
        }
    }

    async fn cancel(&self, store: &RedisStore, message: &Produced) {
        let Produced { id, partition, .. } = message;
        self.may_be_cancelled.lock().insert(id.to_string());
        let cancellation = id.clone().into();
        let cancelled = answered(|| store.cancel(partition, &cancellation)).await;
        if matches!(cancelled, Cancelled::Cancelled | Cancelled::Purged) {
            self.never_sent_after.lock().entry(id.to_string()).or_insert_with(Instant::now);
            let counter = if cancelled == Cancelled::Purged { &self.purged } else { &self.cancelled };
            *counter.lock() += 1;
        }
    }

    async fn cancel_group(&self, store: &RedisStore, partition: &Partition, group: &str, accepted: &[Produced]) {
        let is_member = |one: &&Produced| one.is_of(partition, group);
        let members: Vec<_> = accepted.iter().filter(is_member).map(|one| one.id.to_string()).collect();
        let (mut after, mut in_flight) = (None, BTreeSet::new());
        loop {
            let part = answered(|| store.cancel_group(partition, group, after.as_ref(), MOST, None)).await;
            *self.cancelled.lock() += part.count;
            in_flight.extend(part.in_flight.into_iter().map(|id| id.to_string()));
            // Members that were accepted before their answer was there can be cancelled, too.
            let possible = self.produced.lock();
            self.may_be_cancelled.lock().extend(possible.iter().filter(is_member).map(|one| one.id.to_string()));
            after = part.reached;
            if after.is_none() {
                break;
            }
        }
        let mut never = self.never_sent_after.lock();
        for id in members.into_iter().filter(|id| !in_flight.contains(id)) {
            never.entry(id).or_insert_with(Instant::now);
        }
    }
}

/// The answer of a call that is repeated until it has one.
pub async fn answered<T, F: Future<Output = Result<T, StoreError>>>(call: impl Fn() -> F) -> T {
    for _ in 0..MAX_CALLS {
        match call().await {
            Ok(answer) => return answer,
            Err(_) => sleep(100 * MILLI).await,
        }
    }
    panic!("{MAX_CALLS} calls without an answer");
}
