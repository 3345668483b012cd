//! What librdkafka reports beside results: logs, statistics, and errors of its connections.

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

/// For how long an error of the connection is given as the likely cause of what failed after it.
const CAUSE_LIFETIME: Duration = Duration::from_mins(1);

pub struct Reports {
    /// For the logs: brokers and topic.
    name: String,
    last_error: Mutex<Option<(Instant, String)>>,
    /// No broker is connected.
    all_down: AtomicBool,
}

impl Reports {
    pub fn new(name: String) -> Self {
        Self { name, last_error: Mutex::new(None), all_down: AtomicBool::new(false) }
    }

    /// What was last wrong with the connections, unless it is long ago.
    pub fn cause(&self) -> Option<String> {
        let last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < CAUSE_LIFETIME).map(|(_, text)| text.clone())
    }

    /// Whether every connection has been lost since the last delivery.
    pub fn all_down(&self) -> bool {
        self.all_down.load(Ordering::Relaxed)
    }

    /// A broker confirmed a record.
    pub fn delivered(&self) {
        self.all_down.store(false, Ordering::Relaxed);
    }

    /// Nothing that librdkafka says needs someone to act: the breaker, or the source's state, tells of an outage.
    pub fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        let kafka = self.name.as_str();
        match level {
            RDKafkaLogLevel::Debug => tracing::debug!(kafka, "{facility} {text}"),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::info!(kafka, "{facility} {text}"),
            _ => tracing::warn!(kafka, "{facility} {text}"),
        }
    }

    /// For those who set `statistics.interval.ms`.
    pub fn statistics(&self, statistics: &[u8]) {
        tracing::debug!(kafka = self.name, "statistics {}", String::from_utf8_lossy(statistics));
    }

    /// Of the connections or of the client, never of one record. It was logged.
    pub fn error(&self, error: &KafkaError, reason: &str) {
        // "All brokers are down" follows the reason, and says less.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.all_down.store(true, Ordering::Relaxed);
        } else {
            let error = (Instant::now(), reason.to_owned());
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}
