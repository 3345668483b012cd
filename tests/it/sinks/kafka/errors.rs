//! Errors of a broker, by librdkafka's mock of one.

use std::time::Duration;

use punctual::sink::{Outcome, Sink};
use rdkafka::bindings::rd_kafka_resp_err_t::{self as code, *};
use tokio::time::timeout;

use super::sink;
use crate::support::{kafka::mock_broker, send_one};

/// Short, because librdkafka retries some errors until its end.
const TIMEOUT: Duration = Duration::from_secs(3);

#[tokio::test]
async fn every_error_has_its_outcome() {
    let broker = mock_broker();
    let sink = sink(&broker.address, "t", TIMEOUT, &[]);
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    for (error, kind) in [
        (RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, "rejected"),
        (RD_KAFKA_RESP_ERR_INVALID_RECORD, "rejected"),
        (RD_KAFKA_RESP_ERR_POLICY_VIOLATION, "failed"),
        (RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, "unavailable"),
        (RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, "unavailable"),
        (RD_KAFKA_RESP_ERR_INVALID_REQUIRED_ACKS, "unavailable"),
        (RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, "unavailable"),
        (RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, "unavailable"),
        (RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, "unavailable"),
        (RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR, "unavailable"),
    ] {
        // More than can be retried.
        broker.answer_with(&[error; 1000]);
        let outcome = send_one(&sink).await;
        assert_eq!(outcome.failure_kind(), Some(kind), "{error:?}: {outcome:?}");
        broker.answer_with(&[]);
        recovers(&sink, error).await;
    }
}

#[tokio::test]
async fn a_rejection_counts_only_when_the_record_was_alone() {
    let broker = mock_broker();
    let sink = sink(&broker.address, "t", TIMEOUT, &[]);
    broker.answer_with(&[RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
}

#[tokio::test]
async fn a_producer_that_failed_for_good_is_made_anew() {
    let broker = mock_broker();
    let sink = sink(&broker.address, "t", TIMEOUT, &[]);
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    // That of the first request under way: the broker has lost what it had.
    let error = RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    broker.answer_with(&[error]);
    let outcome = send_one(&sink).await;
    assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
    assert!(outcome.error().expect("a text").contains("desynchronization"), "{outcome:?}");
    recovers(&sink, error).await;
}

async fn recovers(sink: &dyn Sink, after: code) {
    let again = async { while send_one(sink).await != Outcome::Confirmed {} };
    timeout(Duration::from_secs(10), again).await.unwrap_or_else(|_| panic!("it delivers again after {after:?}"));
}
