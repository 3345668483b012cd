//! Progress of long work: a bar on standard error, on a terminal only, and a message at Ctrl-C.

use std::{process, sync::Arc, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tokio::signal::ctrl_c;

use super::output;

/// Exit code with which shells report this signal.
const INTERRUPTED: i32 = 130;

/// While it exists, Ctrl-C prints the work done and ends the process, also while the process waits for input. Dropping
/// it removes the bar.
pub struct Progress {
    bar: ProgressBar,
    done: Arc<Mutex<String>>,
}

impl Progress {
    /// A bar towards `total`, or a counter if the total is unknown. Ctrl-C prints `done`, then `rest`, which says how
    /// to continue. Must be called within a tokio runtime.
    pub fn new(total: Option<u64>, done: String, rest: impl Into<String>) -> Self {
        let template = match total {
            Some(_) => "{bar:40} {pos}/{len}  {per_sec}  {eta} left",
            None => "{spinner} {pos}  {per_sec}",
        };
        // The bar is hidden if standard error is not a terminal.
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        bar.enable_steady_tick(Duration::from_millis(200));
        let bar = bar.with_style(ProgressStyle::with_template(template).expect("a template"));
        let done = Arc::new(Mutex::new(done));
        let (shown, reached, rest) = (bar.clone(), done.clone(), rest.into());
        tokio::spawn(async move {
            if ctrl_c().await.is_ok() {
                shown.finish_and_clear();
                let done = reached.lock();
                output::note(format_args!("punctual: interrupted: {done} {rest}"));
                process::exit(INTERRUPTED);
            }
        });
        Self { bar, done }
    }

    /// `count` is the total so far.
    pub fn reached(&self, count: u64, done: String) {
        self.bar.set_position(count);
        *self.done.lock() = done;
    }

    /// Prints a line on standard error above the bar.
    pub fn report(&self, text: &str) {
        self.bar.suspend(|| output::note(format_args!("punctual: {text}")));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
