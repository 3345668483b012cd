//! Progress of long work, on standard error and only on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar towards `total`, or a counter when it is not known.
pub fn bar(total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => "{bar:40} {pos}/{len}  {per_sec}  {eta} left",
        None => "{spinner} {pos}  {per_sec}",
    };
    // It hides itself where standard error is no terminal.
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(ProgressStyle::with_template(template).expect("a template"))
}
