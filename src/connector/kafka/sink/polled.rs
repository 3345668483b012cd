//! A producer with a thread that runs its callbacks.

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

use super::callbacks::ProducerCallbacks;

/// Longest time until the thread notices a stop. Callbacks run at once. rdkafka's `ThreadedProducer` polls for 100 ms and
/// spins through the last millisecond of each poll: an idle process would use CPU time.
const POLL: Duration = Duration::from_secs(1);

/// Its drop blocks for one to two seconds.
pub struct PolledProducer {
    producer: Arc<BaseProducer<ProducerCallbacks>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PolledProducer {
    /// # Errors
    /// When the thread cannot be spawned.
    pub fn new(producer: BaseProducer<ProducerCallbacks>) -> io::Result<Self> {
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
    type Target = BaseProducer<ProducerCallbacks>;

    fn deref(&self) -> &Self::Target {
        &self.producer
    }
}

impl Drop for PolledProducer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
    }
}
