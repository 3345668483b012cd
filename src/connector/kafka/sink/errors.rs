//! What an error code of a delivery says: the only place where Kafka's codes are classified.
//!
//! Sources: the error codes of the Kafka protocol (<https://kafka.apache.org/protocol#protocol_error_codes>) and
//! those that librdkafka adds (`rd_kafka_resp_err_t` in rdkafka.h, its local ones). librdkafka has retried on its
//! own, for as long as `message.timeout.ms` lets it, whatever the protocol calls retriable.

use rdkafka::error::RDKafkaErrorCode as Code;

use crate::sink::Outcome;

/// This record is what the broker, or librdkafka before it, cannot take. A topic that is configured was checked when
/// it was read, so an invalid name was made for this message alone.
const REJECTED: [Code; 7] = [
    Code::MessageSizeTooLarge,
    Code::MessageBatchTooLarge,
    Code::InvalidMessage,
    Code::InvalidMessageSize,
    Code::InvalidRecord,
    Code::InvalidDifferentRecord,
    Code::InvalidTopic,
];

/// No broker was reached, or it went away.
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

/// librdkafka waited in vain for a broker, or a broker for its replicas.
const LATE: [Code; 5] =
    [Code::MessageTimedOut, Code::OperationTimedOut, Code::RequestTimedOut, Code::TimedOutQueue, Code::QueueFull];

/// The topic is not there.
const NO_TOPIC: [Code; 4] =
    [Code::UnknownTopic, Code::UnknownTopicOrPartition, Code::UnknownTopicId, Code::UnknownPartition];

/// The cluster cannot take anything now: no leader, too few replicas, a broken disk.
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

/// We are not let in.
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

/// Broker and client do not fit together, which is the same for every message; or their clocks do not.
const MISMATCH: [Code; 5] = [
    Code::UnsupportedFeature,
    Code::UnsupportedVersion,
    Code::UnsupportedCompressionType,
    Code::UnsupportedForMessageFormat,
    Code::InvalidTimestamp,
];

/// The producer has to start anew; what it held was given up.
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

/// Says nothing about the message.
const UNAVAILABLE: [&[Code]; 7] = [&UNREACHED, &LATE, &NO_TOPIC, &NOT_READY, &FORBIDDEN, &MISMATCH, &GIVEN_UP];

/// `error`: the text for a person.
pub fn outcome(code: Code, error: String) -> Outcome {
    if REJECTED.contains(&code) {
        Outcome::Rejected { error }
    } else if UNAVAILABLE.iter().any(|codes| codes.contains(&code)) {
        Outcome::Unavailable { error }
    } else if code == Code::ThrottlingQuotaExceeded {
        Outcome::Throttled { error, retry_after: None }
    } else {
        // PolicyViolation, Unknown, and all that a producer is not known to meet: an attempt like any other.
        Outcome::Failed { error, retry_after: None }
    }
}

/// Whether it says something about the topic, and nothing about the cluster.
pub fn concerns_topic(code: Code) -> bool {
    NO_TOPIC.contains(&code) || code == Code::TopicAuthorizationFailed
}

/// Whether another record of the same batch may be the reason: brokers judge a batch as a whole.
pub fn may_be_another_record(code: Code) -> bool {
    REJECTED.contains(&code)
}
