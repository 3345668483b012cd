//! The queue of log lines and the thread that writes them.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io::{self, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::{output::Output, repeats::Repeats};
use crate::metrics;

/// Maximum number of queued lines, and of their bytes: a minute of a busy log, or the start at level `debug`.
const MAX_LINES: usize = 8192;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Parts of the program that bound their own lines: a repeated outage or a repeated loss of data is not a repetition.
const BOUNDED: [&str; 2] = ["punctual::incidents", "punctual::queue::registry"];

thread_local! {
    /// The line that the thread of the log formats.
    static OWN: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Lines that wait to be written. When the queue is full, lines are dropped until half of it is written. Dropped lines
/// are counted (`punctual_log_lines_dropped_total`), and a line in their place has their number.
#[derive(Default)]
pub struct LogQueue {
    state: Mutex<State>,
    /// Notifies the thread.
    changed: Condvar,
    /// Notifies `finish` when no line is left.
    written: Condvar,
}

#[derive(Default)]
struct State {
    entries: VecDeque<Entry>,
    lines: usize,
    bytes: usize,
    full: bool,
    /// The thread is writing a line.
    writing: bool,
    /// The process is ending.
    ending: bool,
    repeats: Repeats,
}

enum Entry {
    Line(Vec<u8>),
    /// Number of lines that were dropped here.
    Dropped(u64),
}

impl LogQueue {
    /// `repeatable`: the line is counted, not written, when it repeats a line of the last minute. Blocks only for a
    /// short lock.
    pub fn push(&self, line: Vec<u8>, repeatable: bool) {
        let mut state = self.lock();
        if repeatable && state.repeats.is_repeat(&line, Instant::now()) {
            return;
        }
        let kept = state.push(line);
        drop(state);
        self.changed.notify_one();
        if !kept {
            metrics::log_lines_dropped(1);
        }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the system cannot create the thread.
    pub fn start(self: &Arc<Self>, output: Output) -> io::Result<()> {
        let queue = self.clone();
        thread::Builder::new().name("log".into()).spawn(move || queue.write_to(output)).map(drop)
    }

    /// Waits until all lines and the counts of repetitions are written, at most for `within`.
    pub fn finish(&self, within: Duration) {
        let mut state = self.lock();
        state.ending = true;
        self.changed.notify_one();
        let left = |state: &mut State| state.writing || !state.entries.is_empty() || state.repeats.any();
        self.written.wait_while_for(&mut state, left, within);
    }

    fn write_to(&self, mut output: Output) {
        // Lines before the next one that could not be written.
        let mut missing = 0;
        loop {
            let entry = self.next();
            if let Entry::Dropped(count) = &entry {
                missing += count;
            }
            if missing > 0 && output.write(&note(missing)) {
                missing = 0;
            }
            if let Entry::Line(line) = entry
                && (missing > 0 || !output.write(&line))
            {
                missing += 1;
                metrics::log_lines_dropped(1);
            }
        }
    }

    /// Waits for the next entry.
    fn next(&self) -> Entry {
        let mut state = self.lock();
        state.writing = false;
        loop {
            let (now, ending) = (Instant::now(), state.ending);
            for line in state.repeats.due(now, ending) {
                if !state.push(line) {
                    metrics::log_lines_dropped(1);
                }
            }
            if let Some(entry) = state.pop() {
                state.writing = true;
                return entry;
            }
            self.written.notify_all();
            match state.repeats.next_due() {
                Some(due) => drop(self.changed.wait_for(&mut state, due - now)),
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Returns whether the queue took the line.
    fn push(&mut self, line: Vec<u8>) -> bool {
        self.full &= self.lines > MAX_LINES / 2 || self.bytes > MAX_BYTES / 2;
        self.full |= self.lines == MAX_LINES || self.bytes + line.len() > MAX_BYTES;
        if self.full {
            match self.entries.back_mut() {
                Some(Entry::Dropped(count)) => *count += 1,
                _ => self.entries.push_back(Entry::Dropped(1)),
            }
            return false;
        }
        self.lines += 1;
        self.bytes += line.len();
        self.entries.push_back(Entry::Line(line));
        true
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        if let Entry::Line(line) = &entry {
            self.lines -= 1;
            self.bytes -= line.len();
        }
        Some(entry)
    }
}

/// The line about lines that were not written, in the format of the log; empty if warnings are not logged.
fn note(lines: u64) -> Vec<u8> {
    OWN.set(Some(Vec::new()));
    tracing::warn!(lines, "lines of the log were dropped here: they could not be written in time");
    OWN.take().unwrap_or_default()
}

/// Gives the subscriber a writer for each line.
#[derive(Clone)]
pub struct LogWriter(Arc<LogQueue>);

impl LogWriter {
    pub fn new(queue: &Arc<LogQueue>) -> Self {
        Self(queue.clone())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LineWriter { queue: &self.0, repeatable: false }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        let bounded = BOUNDED.iter().any(|target| meta.target().starts_with(target));
        LineWriter { queue: &self.0, repeatable: *meta.level() <= Level::WARN && !bounded }
    }
}

/// Takes one line in one call.
pub struct LineWriter<'a> {
    queue: &'a LogQueue,
    repeatable: bool,
}

impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let is_own = OWN.with_borrow_mut(|own| own.as_mut().map(|own| own.extend_from_slice(line))).is_some();
        if !is_own {
            self.queue.push(line.to_vec(), self.repeatable);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(state: &mut State) -> Vec<String> {
        let entries = std::iter::from_fn(|| state.pop());
        let shown = entries.map(|entry| match entry {
            Entry::Line(line) => String::from_utf8(line).unwrap(),
            Entry::Dropped(count) => format!("dropped {count}"),
        });
        shown.collect()
    }

    #[test]
    fn a_full_queue_drops_until_half_of_it_is_written_and_counts_in_place() {
        let mut state = State::default();
        for n in 0..MAX_LINES + 10 {
            assert_eq!(state.push(n.to_string().into_bytes()), n < MAX_LINES);
        }
        while state.lines > MAX_LINES / 2 {
            assert!(!state.push(b"more".to_vec()), "still full");
            state.pop();
        }
        assert!(state.push(b"after".to_vec()));
        let shown = shown(&mut state);
        let dropped = 10 + MAX_LINES - MAX_LINES / 2;
        assert_eq!(
            shown[shown.len() - 3..],
            [(MAX_LINES - 1).to_string(), format!("dropped {dropped}"), "after".into()]
        );
        assert_eq!((state.lines, state.bytes), (0, 0));
    }

    #[test]
    fn its_bytes_are_bounded_too() {
        let mut state = State::default();
        assert!(!state.push(vec![b'x'; MAX_BYTES + 1]));
        for n in 0..10 {
            assert_eq!(state.push(vec![b'x'; MAX_BYTES / 4]), n == 0 || (1..4).contains(&n), "{n}");
        }
        assert_eq!(state.bytes, MAX_BYTES);
    }
}
