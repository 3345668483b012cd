//! What librdkafka calls back, on its own thread: deliveries, logs, errors.

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
pub struct Failure {
    pub code: RDKafkaErrorCode,
    /// It never got as far as a broker: librdkafka itself would not take it.
    pub local: bool,
}

/// Travels with a record, and comes back with its result.
pub struct Ticket {
    /// Of the message in its batch.
    pub index: usize,
    /// Holds at most one result for each message of the batch.
    pub results: UnboundedSender<Concluded>,
}

/// What came of one record.
pub struct Concluded {
    /// Of the message in its batch.
    pub index: usize,
    /// Where the record went, or would have gone; `None` where it got no partition.
    pub partition: Option<usize>,
    pub result: Result<(), Failure>,
}

impl Ticket {
    pub fn conclude(self, partition: Option<usize>, result: Result<(), Failure>) {
        // The receiver is gone once the batch's time is over.
        let _ = self.results.send(Concluded { index: self.index, partition, result });
    }
}

pub struct Context {
    reports: Reports,
}

impl Context {
    /// `name`: for the logs.
    pub fn new(name: String) -> Self {
        Self { reports: Reports::new(name) }
    }

    /// Whether every connection has been lost since the last delivery.
    pub fn all_down(&self) -> bool {
        self.reports.all_down()
    }

    /// What was last wrong with the connections, unless it is long ago.
    pub fn cause(&self) -> Option<String> {
        self.reports.cause()
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let (message, result) = match result {
            Ok(message) => {
                self.reports.delivered();
                (message, Ok(()))
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                (message, Err(Failure { code, local: false }))
            }
        };
        ticket.conclude(usize::try_from(message.partition()).ok(), result);
    }
}

impl ClientContext for Context {
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
