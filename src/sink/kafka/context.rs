//! What librdkafka calls back, on its own thread: deliveries, logs, errors.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::ProducerContext,
};
use tokio::{sync::mpsc::UnboundedSender, time::Instant};

/// For how long an error of the connection is given as the likely cause of what failed after it.
const CAUSE_LIFETIME: Duration = Duration::from_mins(1);

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
    pub results: UnboundedSender<(usize, Result<(), Failure>)>,
}

impl Ticket {
    pub fn conclude(self, result: Result<(), Failure>) {
        // The receiver is gone once the batch's time is over.
        let _ = self.results.send((self.index, result));
    }
}

pub struct Context {
    /// For the logs: brokers and topic.
    name: String,
    last_error: Mutex<Option<(Instant, String)>>,
}

impl Context {
    pub fn new(name: String) -> Self {
        Self { name, last_error: Mutex::new(None) }
    }

    /// What was last wrong with the connections, unless it is long ago.
    pub fn cause(&self) -> Option<String> {
        let last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < CAUSE_LIFETIME).map(|(_, text)| text.clone())
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        ticket.conclude(match result {
            Ok(_) => Ok(()),
            Err((error, _)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                Err(Failure { code, local: false })
            }
        });
    }
}

impl ClientContext for Context {
    /// Nothing that librdkafka says needs someone to act: the breaker tells of an outage.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        let kafka = self.name.as_str();
        match level {
            RDKafkaLogLevel::Debug => tracing::debug!(kafka, "{facility} {text}"),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::info!(kafka, "{facility} {text}"),
            _ => tracing::warn!(kafka, "{facility} {text}"),
        }
    }

    /// For those who set `statistics.interval.ms`.
    fn stats_raw(&self, statistics: &[u8]) {
        tracing::debug!(kafka = self.name, "statistics {}", String::from_utf8_lossy(statistics));
    }

    /// Of the connections or of the producer, never of one record. It was logged.
    fn error(&self, error: KafkaError, reason: &str) {
        // "All brokers are down" follows the reason, and says less.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            let error = (Instant::now(), reason.to_owned());
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}
