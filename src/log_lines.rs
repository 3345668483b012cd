//! For tests: the lines that a thread logs.

use std::{
    io,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber},
};

/// A second subscriber of the process. If there is only one, `tracing` asks the thread that first reaches a line whether the
/// line is logged. A thread without a subscriber would switch it off for all.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// A writer of the log, or its reader. Cheap to clone.
#[derive(Clone, Default)]
pub struct LogLines(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    /// Collects the lines of this thread until the guard is dropped.
    pub fn collect() -> (Self, DefaultGuard) {
        LazyLock::force(&SECOND);
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone())
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    /// The lines since the previous call.
    pub fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock());
        String::from_utf8(bytes).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }
}

impl io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
