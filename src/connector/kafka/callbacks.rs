//! The callbacks of librdkafka that every client has: logs, statistics and connection errors.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
};
use tokio::time::Instant;

/// Time for which a connection error is reported as the likely cause of later failures.
const CAUSE_LIFETIME: Duration = Duration::from_mins(1);

/// Facility of librdkafka's log line about a commit that failed. Nothing else reports an asynchronous one:
/// <https://github.com/fede1024/rust-rdkafka/issues/856>
const COMMIT_FAILED: &str = "COMMITFAIL";
/// Minimum time between two warnings of it: a commit that fails is repeated once a second.
const COMMIT_FAILED_INTERVAL: Duration = Duration::from_mins(1);

/// `S`: the state of the callbacks that only producers or only consumers have.
#[derive(Default)]
pub struct Callbacks<S = ()> {
    /// Brokers and topics, for the logs.
    name: String,
    last_error: Mutex<Option<(Instant, String)>>,
    /// No broker is connected.
    all_down: AtomicBool,
    commit_failed: AtomicBool,
    /// Time of the latest warning of a failed commit.
    warned: Mutex<Option<Instant>>,
    calls: AtomicU64,
    pub state: S,
}

impl<S: Default> Callbacks<S> {
    /// `name`: brokers and topics, for the logs.
    pub fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// Number of callbacks so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    pub fn count_call(&self) {
        self.calls.fetch_add(1, Relaxed);
    }

    /// The latest connection error, if it is younger than `CAUSE_LIFETIME`.
    pub fn cause(&self) -> Option<String> {
        let last = self.last_error.lock();
        last.as_ref().filter(|(at, _)| at.elapsed() < CAUSE_LIFETIME).map(|(_, text)| text.clone())
    }

    /// Whether every connection has been lost since the last delivery.
    pub fn all_down(&self) -> bool {
        self.all_down.load(Relaxed)
    }

    /// Whether an asynchronous commit failed since the last call.
    pub fn take_commit_failed(&self) -> bool {
        self.commit_failed.swap(false, Relaxed)
    }

    /// Notes that a commit failed. Returns whether to warn of it.
    fn note_failed_commit(&self) -> bool {
        self.commit_failed.store(true, Relaxed);
        let mut warned = self.warned.lock();
        let warns = warned.is_none_or(|at| at.elapsed() >= COMMIT_FAILED_INTERVAL);
        if warns {
            *warned = Some(Instant::now());
        }
        warns
    }

    /// Notes that a broker confirmed a record.
    pub fn delivered(&self) {
        self.all_down.store(false, Relaxed);
    }
}

impl<S: Default + Send + Sync + 'static> ClientContext for Callbacks<S> {
    /// At most a warning: the breaker or the source's state reports an outage.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.count_call();
        let is_repeated = facility == COMMIT_FAILED && !self.note_failed_commit();
        let kafka = self.name.as_str();
        match level {
            _ if is_repeated => tracing::debug!(kafka, "{facility} {text}"),
            RDKafkaLogLevel::Debug => tracing::debug!(kafka, "{facility} {text}"),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::info!(kafka, "{facility} {text}"),
            _ => tracing::warn!(kafka, "{facility} {text}"),
        }
    }

    /// Called only if the options set `statistics.interval.ms`.
    fn stats_raw(&self, statistics: &[u8]) {
        self.count_call();
        tracing::debug!(kafka = self.name, "statistics {}", String::from_utf8_lossy(statistics));
    }

    /// Notes an error of a connection or of the client, never of one record. librdkafka has logged it.
    fn error(&self, error: KafkaError, reason: &str) {
        self.count_call();
        // The error "all brokers are down" follows the one with the reason.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.all_down.store(true, Relaxed);
        } else {
            let error = (Instant::now(), reason.to_owned());
            *self.last_error.lock() = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_commit_is_warned_of_once_a_minute() {
        let callbacks = Callbacks::<()>::new("k".into());
        assert!(callbacks.note_failed_commit() && callbacks.take_commit_failed());
        advance(Duration::from_millis(59_999)).await;
        assert!(!callbacks.note_failed_commit() && callbacks.take_commit_failed());
        advance(Duration::from_millis(1)).await;
        assert!(callbacks.note_failed_commit());
    }
}
