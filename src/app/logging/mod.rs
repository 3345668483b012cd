//! Logs on standard error, as text or JSON. `RUST_LOG` refines the configured level.
//!
//! A dedicated thread writes them (`queue`), so that no write can block, end or stop the process. Repeated warnings and
//! errors are counted (`repeats`). All fields of text lines are quoted by one rule (`fields`).

mod fields;
mod output;
mod queue;
mod repeats;

use std::{
    any::Any,
    backtrace::{Backtrace, BacktraceStatus},
    env,
    io::{self, IsTerminal},
    os::fd::AsFd,
    panic::{self, PanicHookInfo},
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use self::{
    fields::Fields,
    output::Output,
    queue::{LogQueue, LogWriter},
};
use crate::config::{LogConfig, LogFormat};

/// Time to write queued lines when the process ends: a working reader needs milliseconds.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The log of this process, after `init`.
static QUEUE: OnceLock<Arc<LogQueue>> = OnceLock::new();

/// Installs the subscriber and the panic hook for the process; a second call changes nothing. Must be called within a
/// tokio runtime.
pub fn init(config: LogConfig) {
    // A write beyond the limit of file sizes (`ulimit -f`) then fails, in place of ending the process. Without the
    // handler only that write ends it.
    let _ = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()));
    let level = LevelFilter::from_level(config.level.into());
    let (filter, mistake) = filter(level);
    // lapin logs returned messages with their payload. The sink logs connection errors.
    let filter = filter.add_directive("lapin=off".parse().expect("a directive"));
    let queue = Arc::new(LogQueue::default());
    // Standard error can fail and block, so no error about a line that cannot be formatted is printed there.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogWriter::new(&queue))
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    let installed = match config.format {
        LogFormat::Text => builder.fmt_fields(Fields).with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    // An embedding program may have its own subscriber.
    if installed.is_err() || QUEUE.set(queue.clone()).is_err() {
        return;
    }
    // A separate handle: a thread that waits in a write must not hold the lock of `io::stderr`.
    let output = io::stderr().as_fd().try_clone_to_owned().map(Output::new);
    let started = output.and_then(|output| queue.start(output));
    panic::set_hook(Box::new(log_panic));
    if let Some(error) = mistake {
        tracing::warn!(error, "RUST_LOG is ignored");
    }
    if let Err(error) = started {
        // The lines stay in the queue, and are dropped when the queue is full.
        tracing::error!(%error, "the log cannot be written");
    }
}

/// Writes `text` as a line after all logged lines. Returns false, and does nothing, without a log.
pub fn write_line(text: &str) -> bool {
    QUEUE.get().map(|queue| queue.push(format!("{text}\n").into_bytes(), false)).is_some()
}

/// Waits until all lines are written, at most for a second. Then the process can end.
pub fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.finish(LAST_LINES);
    }
}

/// The filter of `RUST_LOG`, and the error if the variable cannot be used.
fn filter(level: LevelFilter) -> (EnvFilter, Option<String>) {
    let builder = EnvFilter::builder().with_default_directive(level.into());
    let given = env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    match builder.clone().parse(&given) {
        Ok(filter) => (filter, None),
        Err(error) => (builder.parse("").expect("no directive is wrong"), Some(error.to_string())),
    }
}

/// Replaces the default hook, which writes to standard error itself.
fn log_panic(info: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(
        thread = std::thread::current().name(),
        place = info.location().map(tracing::field::display),
        error = told(info.payload()),
        backtrace,
        "a thread panicked"
    );
}

fn told(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("of an unknown type")
}
