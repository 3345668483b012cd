//! Single steps of the poller, on librdkafka's mock cluster.

use rdkafka::{
    ClientConfig, TopicPartitionList,
    mocking::MockCluster,
    producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer},
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use tokio::time::advance;

use super::{super::rebalancing::IdlePoller, *};
use crate::source::SourceState;

const TIMEOUT: Duration = Duration::from_secs(20);
/// A callback each millisecond.
const STATISTICS: [(&str, &str); 1] = [("statistics.interval.ms", "1")];

/// With the topic `t` of one partition.
fn cluster() -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    cluster
}

fn produce(cluster: &MockCluster<'static, DefaultProducerContext>, records: usize) {
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", cluster.bootstrap_servers());
    let producer: BaseProducer = settings.create().unwrap();
    for _ in 0..records {
        producer.send(BaseRecord::<[u8], [u8]>::to("t").partition(0).payload(b"x")).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
}

fn partition() -> TopicPartition {
    TopicPartition { topic: "t".into(), index: 0 }
}

fn start() -> StartPosition {
    StartPosition { partition: partition(), next: 1, first_read_ends: None }
}

/// Takes the steps until `done`.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(start_paused = true)]
async fn an_interval_has_elapsed_at_its_end_or_if_it_never_began() {
    let (began, second) = (Instant::now(), Duration::from_secs(1));
    assert!(has_elapsed(None, second) && !has_elapsed(Some(began), second));
    advance(second).await;
    assert!(has_elapsed(Some(began), second));
}

#[test]
fn a_full_buffer_pauses_the_partitions_and_events_are_still_polled() {
    let cluster = cluster();
    let IdlePoller { mut poller, batches: _batches, .. } = IdlePoller::new(&cluster, &STATISTICS);
    poller.state.group.subscribed = true;
    poller.client.assign(&to_list(&[start()]).unwrap()).unwrap();
    poller.membership.positions().insert(start());
    let record = |bytes| FetchedRecord { partition: partition(), offset: 1, bytes, entry: None };
    poller.state.buffer.push(record(1));
    assert!(poller.send_batch());
    poller.tick();
    assert!(!poller.state.paused, "a batch is in flight, and the buffer has capacity");
    poller.state.buffer.push(record(usize::MAX / 2));
    poller.tick();
    assert!(poller.state.paused);
    let client = Arc::clone(&poller.client);
    until("a callback", || {
        poller.poll_pending().unwrap();
        client.context().calls() > 0
    });
}

#[test]
fn one_step_serves_all_callbacks_that_wait() {
    let cluster = cluster();
    let mut poller = IdlePoller::new(&cluster, &STATISTICS).poller;
    until("several callbacks in one step", || {
        let before = poller.client.context().calls();
        poller.poll_pending().unwrap();
        poller.client.context().calls() - before > 2
    });
}

#[test]
fn a_commit_that_failed_is_repeated() {
    let cluster = cluster();
    let mut poller = IdlePoller::new(&cluster, &[]).poller;
    poller.state.group.subscribed = true;
    poller.membership.positions().insert(start());
    poller.membership.positions().advance(&partition(), 7);
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_COMMIT_OFFSET_SIZE;
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[error]);
    let mut asked = TopicPartitionList::new();
    asked.add_partition("t", 0);
    until("the commit", || {
        // No pause until the next commit.
        poller.state.committed = None;
        poller.tick();
        poller.poll_pending().unwrap();
        let found = poller.client.committed_offsets(asked.clone(), TIMEOUT).unwrap();
        found.elements()[0].offset() == Offset::Offset(8)
    });
    assert!(!poller.client.context().take_commit_failed());
}

#[test]
fn a_log_that_ends_before_a_committed_offset_began_again() {
    let cluster = cluster();
    let poller = IdlePoller::new(&cluster, &[]).poller;
    let (start, topics) = (start(), BTreeSet::from(["t".to_owned()]));
    let reported = |committed: i64, topics: &BTreeSet<String>| {
        let lower = poller.begun_again(vec![(&start, committed)], topics);
        lower.len() == 1
    };
    assert!(reported(1, &BTreeSet::new()));
    assert!(!reported(0, &BTreeSet::new()), "a commit was lost");
    assert!(reported(0, &topics), "the topic has no committed offset");
}

#[tokio::test(start_paused = true)]
async fn positions_are_committed_once_more_half_a_minute_after_an_assignment() {
    let cluster = cluster();
    let mut poller = IdlePoller::new(&cluster, &[]).poller;
    poller.state.group.subscribed = true;
    poller.membership.positions().insert(start());
    poller.state.assigned = Some(Instant::now());
    let mut is_due = || {
        // The tick itself commits nothing.
        poller.state.committed = Some(Instant::now());
        poller.tick();
        poller.membership.positions().take_uncommitted().unwrap().is_some()
    };
    assert!(!is_due());
    advance(Duration::from_millis(29_999)).await;
    assert!(!is_due());
    advance(Duration::from_millis(1)).await;
    assert!(is_due());
    advance(Duration::from_mins(1)).await;
    assert!(!is_due(), "only once");
}

#[test]
fn a_source_without_brokers_is_failing_until_they_are_back() {
    let cluster = cluster();
    cluster.broker_down(1).unwrap();
    let IdlePoller { mut poller, health, .. } = IdlePoller::new(&cluster, &[]);
    assert_eq!(health.get().0, SourceState::Starting);
    poller.tick();
    assert_eq!(health.get().0, SourceState::Failing, "no subscription");
    (poller.state.group.subscribed, poller.state.group.joined) = (true, true);
    poller.tick();
    assert_eq!(health.get().0, SourceState::Failing, "the topics cannot be looked up");
    cluster.broker_up(1).unwrap();
    until("the source is running", || {
        poller.tick();
        health.is_running()
    });
}

#[test]
fn a_member_is_running_even_without_partitions_but_not_while_it_fails() {
    let cluster = cluster();
    let IdlePoller { mut poller, health, .. } = IdlePoller::new(&cluster, &[]);
    let assigned = Rebalance::Assigned(TopicPartitionList::new());
    poller.report_failing("an error");
    poller.handle_rebalance(&assigned).unwrap();
    assert_eq!(health.get().0, SourceState::Failing);
    poller.state.group.failing = false;
    poller.handle_rebalance(&assigned).unwrap();
    assert_eq!(health.get().0, SourceState::Running);
}

#[test]
fn a_topic_is_first_read_from_start_on_unless_it_is_younger_than_the_group() {
    for (is_younger, next) in [(false, 3), (true, 0)] {
        let cluster = cluster();
        produce(&cluster, 3);
        let mut poller = IdlePoller::new(&cluster, &[]).poller;
        poller.start = Start::Latest;
        if is_younger {
            cluster.topic_error("t", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
            poller.membership.check_topics(&poller.client, "", TIMEOUT).unwrap_err();
            cluster.topic_error("t", RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
        }
        let mut assigned = TopicPartitionList::new();
        assigned.add_partition("t", 0);
        poller.handle_rebalance(&Rebalance::Assigned(assigned)).unwrap();
        assert_eq!(poller.membership.positions().next(&partition()), Some(next), "is_younger: {is_younger}");
    }
}
