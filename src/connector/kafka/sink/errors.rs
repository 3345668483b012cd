//! Classifies the error codes of a delivery. No other file does.
//!
//! Sources: the error codes of the Kafka protocol (<https://kafka.apache.org/protocol#protocol_error_codes>) and the
//! local codes of librdkafka (`rd_kafka_resp_err_t` in rdkafka.h). librdkafka has retried every code that the protocol
//! calls retriable, for up to `message.timeout.ms`.

use rdkafka::error::RDKafkaErrorCode as Code;

use crate::sink::Outcome;

/// The broker or librdkafka refuses this record. The configuration check refuses invalid topic names, so the message has
/// named an invalid topic.
const REJECTED: [Code; 7] = [
    Code::MessageSizeTooLarge,
    Code::MessageBatchTooLarge,
    Code::InvalidMessage,
    Code::InvalidMessageSize,
    Code::InvalidRecord,
    Code::InvalidDifferentRecord,
    Code::InvalidTopic,
];

/// No broker was reached, or its connection was lost.
const UNREACHED: [Code; 10] = [
    Code::BrokerTransportFailure,
    Code::AllBrokersDown,
    Code::BrokerDestroy,
    Code::DestroyBroker,
    Code::Resolve,
    Code::UnknownBroker,
    Code::NetworkException,
    Code::BrokerNotAvailable,
    Code::RebootstrapRequired,
    Code::ListenerNotFound,
];

/// librdkafka timed out waiting for a broker, or a broker waiting for its replicas.
const LATE: [Code; 5] =
    [Code::MessageTimedOut, Code::OperationTimedOut, Code::RequestTimedOut, Code::TimedOutQueue, Code::QueueFull];

/// The topic or partition does not exist.
const NO_TOPIC: [Code; 4] =
    [Code::UnknownTopic, Code::UnknownTopicOrPartition, Code::UnknownTopicId, Code::UnknownPartition];

/// The cluster cannot accept writes at present: no leader, too few replicas, a broken disk.
const NOT_READY: [Code; 17] = [
    Code::LeaderNotAvailable,
    Code::NotLeaderForPartition,
    Code::ReplicaNotAvailable,
    Code::PreferredLeaderNotAvailable,
    Code::EligibleLeadersNotAvailable,
    Code::FencedLeaderEpoch,
    Code::UnknownLeaderEpoch,
    Code::ReassignmentInProgress,
    Code::ISRInsufficient,
    Code::NotEnoughReplicas,
    Code::NotEnoughReplicasAfterAppend,
    Code::InvalidRequiredAcks,
    Code::KafkaStorageError,
    Code::LogDirNotFound,
    Code::CoordinatorLoadInProgress,
    Code::CoordinatorNotAvailable,
    Code::NotCoordinator,
];

/// Authentication or authorization failed.
const FORBIDDEN: [Code; 9] = [
    Code::SSL,
    Code::Authentication,
    Code::SaslAuthenticationFailed,
    Code::UnsupportedSASLMechanism,
    Code::IllegalSASLState,
    Code::SecurityDisabled,
    Code::TopicAuthorizationFailed,
    Code::ClusterAuthorizationFailed,
    Code::TransactionalIdAuthorizationFailed,
];

/// Versions, features or clocks of broker and client do not match. This concerns every message.
const MISMATCH: [Code; 5] = [
    Code::UnsupportedFeature,
    Code::UnsupportedVersion,
    Code::UnsupportedCompressionType,
    Code::UnsupportedForMessageFormat,
    Code::InvalidTimestamp,
];

/// The producer must be created again. It dropped its queued messages.
const GIVEN_UP: [Code; 13] = [
    Code::Fatal,
    Code::Fenced,
    Code::ProducerFenced,
    Code::InvalidProducerEpoch,
    Code::InvalidProducerIdMapping,
    Code::UnknownProducerId,
    Code::OutOfOrderSequenceNumber,
    Code::PurgeQueue,
    Code::PurgeInflight,
    Code::State,
    Code::Retry,
    Code::Interrupted,
    Code::CriticalSystemResource,
];

/// The error says nothing about the message.
const UNAVAILABLE: [&[Code]; 7] = [&UNREACHED, &LATE, &NO_TOPIC, &NOT_READY, &FORBIDDEN, &MISMATCH, &GIVEN_UP];

/// `error`: the text for operators.
pub fn outcome(code: Code, error: String) -> Outcome {
    if REJECTED.contains(&code) {
        Outcome::Rejected { error }
    } else if UNAVAILABLE.iter().any(|codes| codes.contains(&code)) {
        Outcome::Unavailable { error }
    } else if code == Code::ThrottlingQuotaExceeded {
        Outcome::Throttled { error, retry_after: None }
    } else {
        // PolicyViolation, Unknown, and codes that producers are not known to receive. The attempt counts.
        Outcome::Failed { error, retry_after: None }
    }
}

/// Whether the code concerns the topic alone, not the cluster.
pub fn concerns_topic(code: Code) -> bool {
    NO_TOPIC.contains(&code) || code == Code::TopicAuthorizationFailed
}

/// Whether another record of the same batch can be the cause: brokers accept or refuse a batch as a whole.
pub fn may_be_another_record(code: Code) -> bool {
    REJECTED.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_of_the_record_the_topic_or_the_cluster() {
        for (code, expected, of_topic, of_batch) in [
            (Code::MessageSizeTooLarge, Some("rejected"), false, true),
            (Code::InvalidRecord, Some("rejected"), false, true),
            (Code::UnknownTopicOrPartition, Some("unavailable"), true, false),
            (Code::UnknownTopic, Some("unavailable"), true, false),
            (Code::TopicAuthorizationFailed, Some("unavailable"), true, false),
            (Code::ClusterAuthorizationFailed, Some("unavailable"), false, false),
            (Code::AllBrokersDown, Some("unavailable"), false, false),
            (Code::ThrottlingQuotaExceeded, Some("throttled"), false, false),
            (Code::PolicyViolation, Some("failed"), false, false),
            (Code::Unknown, Some("failed"), false, false),
        ] {
            assert_eq!(outcome(code, String::new()).failure_kind(), expected, "{code}");
            assert_eq!((concerns_topic(code), may_be_another_record(code)), (of_topic, of_batch), "{code}");
        }
    }
}
