//! The consumer's membership in its group, shared between its thread and the source.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use rdkafka::{
    consumer::Consumer,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use tokio::time::Instant;

use super::{
    callbacks::Client,
    positions::Positions,
    start_position::{time_left, watermarks},
};
use crate::connector::kafka::{is_missing, with_remedy};

pub struct Membership {
    topics: Vec<String>,
    client: Mutex<Weak<Client>>,
    positions: Mutex<Positions>,
    /// Topics that were looked up, and whether each was ever missing since the start of the process.
    missing: Mutex<BTreeMap<String, bool>>,
}

/// A consumer that leaves its group when it is dropped, however its thread ends.
pub struct GroupMember(Arc<Client>);

impl Deref for GroupMember {
    type Target = Arc<Client>;

    fn deref(&self) -> &Arc<Client> {
        &self.0
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.context().close(self);
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

    pub fn join(&self, client: Client) -> GroupMember {
        let client = Arc::new(client);
        *self.positions() = Positions::default();
        *self.client() = Arc::downgrade(&client);
        GroupMember(client)
    }

    pub fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions.lock()
    }

    fn client(&self) -> MutexGuard<'_, Weak<Client>> {
        self.client.lock()
    }

    /// Whether all topics exist. Blocks for `limit` at most.
    ///
    /// # Errors
    /// The topic and its error, as text for operators.
    pub fn check_topics(&self, client: &Client, brokers: &str, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        for topic in &self.topics {
            let error = match self.look_up(client, topic, deadline) {
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

    /// Joins the group after all topics were looked up. All records of a topic that was missing then are younger than
    /// the group. Blocks for `limit` at most. The next call continues with the remaining topics.
    ///
    /// # Errors
    /// When a topic cannot be looked up, or the subscription fails.
    pub fn subscribe(&self, client: &Client, limit: Duration) -> KafkaResult<()> {
        let deadline = Instant::now() + limit;
        for topic in &self.topics {
            let is_known = self.missing().contains_key(topic);
            if !is_known {
                self.look_up(client, topic, deadline)?;
            }
        }
        client.subscribe(&self.topics.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Whether the topic was ever missing since the start of the process.
    pub fn was_missing(&self, topic: &str) -> bool {
        self.missing().get(topic).is_some_and(|missing| *missing)
    }

    fn missing(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.missing.lock()
    }

    /// The error that the brokers report for the topic.
    fn look_up(&self, client: &Client, topic: &str, deadline: Instant) -> KafkaResult<Option<RDKafkaErrorCode>> {
        let metadata = client.fetch_metadata(Some(topic), time_left(deadline))?;
        let code = match metadata.topics().first() {
            Some(found) => found.error().map(RDKafkaErrorCode::from),
            None => Some(RDKafkaErrorCode::UnknownTopic),
        };
        *self.missing().entry(topic.to_owned()).or_default() |= code.is_some_and(is_missing);
        Ok(code)
    }

    /// The number of records of the assigned partitions that are not in Redis. Blocks for about `limit` at most.
    pub fn lag(&self, limit: Duration) -> Option<u64> {
        let client = self.client().upgrade()?;
        let assigned = client.assignment().ok()?;
        let marks = watermarks(&client, &assigned, Instant::now() + limit).ok()?;
        let positions = self.positions();
        let lags = marks.iter().map(|(partition, (low, high))| Some(high - positions.next(partition)?.max(*low)));
        lags.map(|lag| lag.map(|lag| u64::try_from(lag).unwrap_or(0))).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use rdkafka::{ClientConfig, mocking::MockCluster, producer::DefaultProducerContext, types::RDKafkaRespErr};

    use super::{
        super::callbacks::{ConsumerCallbacks, Rebalance},
        *,
    };

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn client(cluster: &MockCluster<'static, DefaultProducerContext>, group: &str) -> Client {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", group);
        settings.create_with_context(ConsumerCallbacks::new("test".into())).expect("valid settings")
    }

    fn next_rebalance(member: &GroupMember) -> Rebalance {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(rebalance) = member.context().next_rebalance() {
                return rebalance;
            }
            assert!(Instant::now() < deadline, "no rebalance within {TIMEOUT:?}");
            member.poll(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_member_leaves_its_group_when_its_thread_ends_before_a_rebalance_is_applied() {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", 1, 1).expect("a topic");
        for is_assigned in [false, true] {
            let client = client(&cluster, &format!("g{is_assigned}"));
            client.subscribe(&["t"]).expect("a subscription");
            let membership = Arc::new(Membership::new(["t".into()]));
            let member = membership.join(client);
            let rebalance = next_rebalance(&member);
            assert!(matches!(rebalance, Rebalance::Assigned(_)), "{rebalance:?}");
            if is_assigned {
                rebalance.apply(&member).expect("an assignment");
                member.context().finish_rebalance();
                member.unsubscribe();
                let rebalance = next_rebalance(&member);
                assert!(matches!(rebalance, Rebalance::Revoked(_)), "{rebalance:?}");
            }
            let (left, has_left) = mpsc::channel();
            thread::spawn(move || {
                drop(member);
                left.send(()).expect("a receiver");
            });
            assert_eq!(has_left.recv_timeout(TIMEOUT), Ok(()), "the member left, is_assigned: {is_assigned}");
            assert_eq!(membership.lag(TIMEOUT), None);
        }
    }

    #[test]
    fn a_topic_that_was_missing_when_the_group_was_joined_is_remembered() {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        for topic in ["t", "missing"] {
            cluster.create_topic(topic, 1, 1).expect("a topic");
        }
        let missing = |error| cluster.topic_error("missing", error).expect("a topic");
        missing(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
        let client = client(&cluster, "g");
        let membership = Membership::new(["t".into(), "missing".into()]);
        membership.subscribe(&client, TIMEOUT).expect("a subscription");
        let error = membership.check_topics(&client, "b:1", TIMEOUT).expect_err("a topic is missing");
        assert!(error.starts_with("topic missing: ") && error.contains("--bootstrap-server b:1"), "{error}");
        missing(RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
        assert_eq!(membership.check_topics(&client, "b:1", TIMEOUT), Ok(()));
        assert_eq!(["t", "missing", "other"].map(|topic| membership.was_missing(topic)), [false, true, false]);
    }

    #[test]
    fn a_group_is_joined_only_after_all_topics_were_looked_up() {
        let cluster = MockCluster::new(1).expect("a mock cluster");
        cluster.create_topic("t", 1, 1).expect("a topic");
        cluster.broker_down(1).expect("a broker");
        let (client, membership) = (client(&cluster, "g"), Membership::new(["t".into()]));
        let topics = || client.subscription().expect("a list").count();
        membership.subscribe(&client, Duration::from_millis(50)).expect_err("no broker");
        assert_eq!(topics(), 0);
        cluster.broker_up(1).expect("a broker");
        membership.subscribe(&client, TIMEOUT).expect("a subscription");
        assert_eq!(topics(), 1);
    }
}
