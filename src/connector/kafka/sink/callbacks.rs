//! The callbacks of librdkafka on the producer's thread: deliveries, logs, errors.

use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    message::{DeliveryResult, Message},
    producer::ProducerContext,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::connector::kafka::Reports;

/// Why a record was not confirmed.
#[derive(Debug)]
pub struct DeliveryFailure {
    pub code: RDKafkaErrorCode,
    /// librdkafka refused the record itself. No broker saw it.
    pub is_local: bool,
}

/// librdkafka returns it with the result of its record.
pub struct RecordOpaque {
    /// Index of the message in its batch.
    pub index: usize,
    /// At most one result for each message of the batch.
    pub results: UnboundedSender<RecordResult>,
}

/// The result of one record.
pub struct RecordResult {
    /// Index of the message in its batch.
    pub index: usize,
    /// `None` if no partition was chosen.
    pub partition: Option<usize>,
    pub result: Result<(), DeliveryFailure>,
}

impl RecordOpaque {
    pub fn report(self, partition: Option<usize>, result: Result<(), DeliveryFailure>) {
        // The receiver is dropped at the deadline of the batch.
        let _ = self.results.send(RecordResult { index: self.index, partition, result });
    }
}

pub struct ProducerCallbacks {
    pub reports: Reports,
}

impl ProducerCallbacks {
    /// `name`: brokers and topic, for the logs.
    pub fn new(name: String) -> Self {
        Self { reports: Reports::new(name) }
    }
}

impl ProducerContext for ProducerCallbacks {
    type DeliveryOpaque = Box<RecordOpaque>;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Box<RecordOpaque>) {
        let (message, result) = match result {
            Ok(message) => {
                self.reports.delivered();
                (message, Ok(()))
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                (message, Err(DeliveryFailure { code, is_local: false }))
            }
        };
        opaque.report(usize::try_from(message.partition()).ok(), result);
    }
}

impl ClientContext for ProducerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.reports.log(level, facility, text);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.reports.statistics(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.reports.error(&error, reason);
    }
}
