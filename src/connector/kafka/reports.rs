//! What librdkafka reports besides results: logs, statistics and connection errors.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rdkafka::{
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
};
use tokio::time::Instant;

/// For so long a connection error is given as the likely cause of later failures.
const CAUSE_LIFETIME: Duration = Duration::from_mins(1);

pub struct Reports {
    /// Brokers and topic, for the logs.
    name: String,
    last_error: Mutex<Option<(Instant, String)>>,
    /// No broker is connected.
    all_down: AtomicBool,
}

impl Reports {
    pub fn new(name: String) -> Self {
        Self { name, last_error: Mutex::new(None), all_down: AtomicBool::new(false) }
    }

    /// The latest connection error, if it is younger than `CAUSE_LIFETIME`.
    pub fn cause(&self) -> Option<String> {
        let last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < CAUSE_LIFETIME).map(|(_, text)| text.clone())
    }

    /// Whether every connection has been lost since the last delivery.
    pub fn all_down(&self) -> bool {
        self.all_down.load(Ordering::Relaxed)
    }

    /// Notes that a broker confirmed a record.
    pub fn delivered(&self) {
        self.all_down.store(false, Ordering::Relaxed);
    }

    /// At most a warning: the breaker or the source's state reports an outage.
    pub fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        let kafka = self.name.as_str();
        match level {
            RDKafkaLogLevel::Debug => tracing::debug!(kafka, "{facility} {text}"),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::info!(kafka, "{facility} {text}"),
            _ => tracing::warn!(kafka, "{facility} {text}"),
        }
    }

    /// Only called if the options set `statistics.interval.ms`.
    pub fn statistics(&self, statistics: &[u8]) {
        tracing::debug!(kafka = self.name, "statistics {}", String::from_utf8_lossy(statistics));
    }

    /// Notes an error of a connection or of the client, never of one record. librdkafka has logged it.
    pub fn error(&self, error: &KafkaError, reason: &str) {
        // The error "all brokers are down" follows the one with the reason.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.all_down.store(true, Ordering::Relaxed);
        } else {
            let error = (Instant::now(), reason.to_owned());
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}
