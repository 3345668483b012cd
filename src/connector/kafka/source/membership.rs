//! What others may know of the consumer while it runs, and that it is left.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rdkafka::{
    consumer::Consumer,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    metadata::MetadataTopic,
};
use tokio::time::Instant;

use super::{
    beginning::{left, watermarks},
    context::Client,
    positions::Positions,
};
use crate::connector::kafka::with_remedy;

pub struct Membership {
    topics: Vec<String>,
    client: Mutex<Option<Arc<Client>>>,
    positions: Mutex<Positions>,
    /// Whether each topic that was looked for was missing once, since this process runs.
    missing: Mutex<BTreeMap<String, bool>>,
}

/// A consumer's place in its group. However its thread ends, it leaves.
pub struct Seat {
    client: Arc<Client>,
    membership: Arc<Membership>,
}

impl Deref for Seat {
    type Target = Arc<Client>;

    fn deref(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *self.membership.client() = None;
        self.client.context().close(&self.client);
    }
}

impl Membership {
    pub fn new(topics: impl IntoIterator<Item = String>) -> Self {
        Self {
            topics: topics.into_iter().collect(),
            client: Mutex::default(),
            positions: Mutex::default(),
            missing: Mutex::default(),
        }
    }

    pub fn join(self: &Arc<Self>, client: Client) -> Seat {
        let client = Arc::new(client);
        *self.positions() = Positions::default();
        *self.client() = Some(client.clone());
        Seat { client, membership: self.clone() }
    }

    pub fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks for `limit` at most: whether all topics are there.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub fn ask(&self, client: &Client, brokers: &str, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        for topic in &self.topics {
            let error = match self.look(client, topic, deadline) {
                Ok(None) => continue,
                Ok(Some(code)) | Err(KafkaError::MetadataFetch(code)) => {
                    with_remedy(format!("topic {topic}: {code}"), code, brokers, topic)
                }
                Err(other) => format!("topic {topic}: {other}"),
            };
            return Err(error);
        }
        Ok(())
    }

    /// Becomes a member of the group, once it is known which topics are missing before: what they hold when they are
    /// found was produced later. Blocks for `limit` at most, and goes on where it ended when it is called again.
    ///
    /// # Errors
    /// Why it did not.
    pub fn subscribe(&self, client: &Client, limit: Duration) -> KafkaResult<()> {
        let deadline = Instant::now() + limit;
        for topic in &self.topics {
            let is_known = self.missing().contains_key(topic);
            if !is_known {
                self.look(client, topic, deadline)?;
            }
        }
        client.subscribe(&self.topics.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Whether the topic was missing at some time since this process runs.
    pub fn came_later(&self, topic: &str) -> bool {
        self.missing().get(topic).is_some_and(|missing| *missing)
    }

    fn missing(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the brokers say is wrong with the topic.
    fn look(&self, client: &Client, topic: &str, deadline: Instant) -> KafkaResult<Option<RDKafkaErrorCode>> {
        let code = match client.fetch_metadata(Some(topic), left(deadline)) {
            Ok(metadata) if metadata.topics().is_empty() => Some(RDKafkaErrorCode::UnknownTopic),
            Ok(metadata) => metadata.topics().iter().find_map(MetadataTopic::error).map(RDKafkaErrorCode::from),
            Err(KafkaError::MetadataFetch(code)) if is_missing(code) => Some(code),
            Err(error) => return Err(error),
        };
        *self.missing().entry(topic.to_owned()).or_default() |= code.is_some_and(is_missing);
        Ok(code)
    }

    /// Blocks for about `limit` at most: the records of our partitions that are not in Redis.
    pub fn lag(&self, limit: Duration) -> Option<u64> {
        let client = self.client().clone()?;
        let assigned = client.assignment().ok()?;
        let marks = watermarks(&client, &assigned, Instant::now() + limit).ok()?;
        let positions = self.positions();
        let lags = marks.iter().map(|(place, (low, high))| Some(high - positions.next(place)?.max(*low)));
        lags.map(|lag| lag.map(|lag| u64::try_from(lag).unwrap_or(0))).sum()
    }
}

fn is_missing(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use rdkafka::{ClientConfig, consumer::BaseConsumer, mocking::MockCluster};

    use super::{
        super::context::{Change, Context},
        *,
    };

    /// For what takes a moment.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn next_change(seat: &Seat) -> Change {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(change) = seat.context().change() {
                return change;
            }
            assert!(Instant::now() < deadline, "no rebalance within {PATIENCE:?}");
            seat.poll(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_seat_is_left_though_its_thread_ended_between_a_rebalance_and_its_answer() {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", 1, 1).expect("a topic");
        for is_assigned in [false, true] {
            let mut settings = ClientConfig::new();
            settings.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", format!("g{is_assigned}"));
            let client: BaseConsumer<Context> =
                settings.create_with_context(Context::new("test".into())).expect("valid settings");
            client.subscribe(&["t"]).expect("a subscription");
            let membership = Arc::new(Membership::new(["t".into()]));
            let seat = membership.join(client);
            let change = next_change(&seat);
            assert!(matches!(change, Change::Assigned(_)), "{change:?}");
            if is_assigned {
                change.answer(&seat).expect("it is assigned");
                seat.context().answered();
                seat.unsubscribe();
                let change = next_change(&seat);
                assert!(matches!(change, Change::Revoked(_)), "{change:?}");
            }
            let (left, was_left) = mpsc::channel();
            thread::spawn(move || {
                drop(seat);
                left.send(()).expect("it is awaited");
            });
            assert_eq!(was_left.recv_timeout(PATIENCE), Ok(()), "it is left, {is_assigned}");
            assert_eq!(membership.lag(PATIENCE), None);
        }
    }
}
