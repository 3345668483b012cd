//! Progress of long work: a bar on standard error, only on a terminal, and what Ctrl-C says.

use std::{process, sync::Arc, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tokio::signal::ctrl_c;

use super::output;

/// As shells report the death by this signal.
const INTERRUPTED: i32 = 130;

/// From its start on, Ctrl-C ends the process with what was done, also while it waits for input. The bar disappears with it.
pub struct Progress {
    bar: ProgressBar,
    done: Arc<Mutex<String>>,
}

impl Progress {
    /// A bar towards `total`, or a counter when it is not known. Ctrl-C prints `done`, and `rest`: how to go on. Must be
    /// called within a tokio runtime.
    pub fn new(total: Option<u64>, done: String, rest: &'static str) -> Self {
        let template = match total {
            Some(_) => "{bar:40} {pos}/{len}  {per_sec}  {eta} left",
            None => "{spinner} {pos}  {per_sec}",
        };
        // It hides itself where standard error is no terminal.
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        bar.enable_steady_tick(Duration::from_millis(200));
        let bar = bar.with_style(ProgressStyle::with_template(template).expect("a template"));
        let done = Arc::new(Mutex::new(done));
        let (shown, reached) = (bar.clone(), done.clone());
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

    /// `count` in all.
    pub fn reached(&self, count: u64, done: String) {
        self.bar.set_position(count);
        *self.done.lock() = done;
    }

    /// A line on standard error beside the bar.
    pub fn report(&self, text: &str) {
        self.bar.suspend(|| output::note(format_args!("punctual: {text}")));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
