//! A producer with a thread that serves its callbacks.

use std::{
    io,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rdkafka::producer::BaseProducer;

use super::context::Context;

/// How soon the thread notices that it should end; events it serves at once. rdkafka's own `ThreadedProducer` has
/// 100 ms, and because it spins through the last millisecond of each, that shows as CPU of an idle process.
const POLL: Duration = Duration::from_secs(1);

/// Dropping it blocks for a second or two.
pub struct PolledProducer {
    producer: Arc<BaseProducer<Context>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PolledProducer {
    /// # Errors
    /// When there can be no thread.
    pub fn new(producer: BaseProducer<Context>) -> io::Result<Self> {
        let (producer, stop) = (Arc::new(producer), Arc::new(AtomicBool::new(false)));
        let (polled, stopped) = (producer.clone(), stop.clone());
        let thread = thread::Builder::new().name("kafka-callbacks".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                polled.poll(POLL);
            }
        })?;
        Ok(Self { producer, stop, thread: Some(thread) })
    }
}

impl Deref for PolledProducer {
    type Target = BaseProducer<Context>;

    fn deref(&self) -> &Self::Target {
        &self.producer
    }
}

impl Drop for PolledProducer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has told of its panic.
            let _ = thread.join();
        }
    }
}
