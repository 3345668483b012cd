//! The results of records, which librdkafka reports on the producer's thread.

use rdkafka::{
    error::RDKafkaErrorCode,
    message::{DeliveryResult, Message},
    producer::ProducerContext,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::connector::kafka::Callbacks;

/// Returned by librdkafka with the result of the record.
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
    /// `None` if no partition was chosen: no broker saw the record.
    pub partition: Option<usize>,
    /// Why the record was not confirmed.
    pub error: Option<RDKafkaErrorCode>,
}

impl RecordOpaque {
    pub fn report(self, partition: Option<usize>, error: Option<RDKafkaErrorCode>) {
        // The receiver is dropped at the deadline of the batch.
        let _ = self.results.send(RecordResult { index: self.index, partition, error });
    }
}

impl ProducerContext for Callbacks {
    type DeliveryOpaque = Box<RecordOpaque>;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Box<RecordOpaque>) {
        let (message, error) = match result {
            Ok(message) => {
                self.delivered();
                (message, None)
            }
            Err((error, message)) => (message, Some(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))),
        };
        opaque.report(usize::try_from(message.partition()).ok(), error);
    }
}
