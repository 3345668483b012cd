//! Standard output, standard error, and the confirmation of changes that cannot be undone.

use std::{
    fmt::Display,
    io::{self, BufRead, IsTerminal, Write},
};

use serde_json::Value;

use super::{failure::Failure, global::Global};
use crate::app::logging;

/// Writes the result of a command: `json` with `--json`, otherwise `text`.
///
/// # Errors
/// Those of `line`.
pub fn result(global: &Global, json: Value, text: impl Display) -> Result<(), Failure> {
    if global.json { line(json) } else { line(text) }
}

/// Writes `text` and a line end. A closed output is ignored, so that a command completes its work.
///
/// # Errors
/// When the line cannot be written, for example to a full disk.
pub fn line(text: impl Display) -> Result<(), Failure> {
    match listed(text) {
        Err(Failure::Closed) => Ok(()),
        written => written,
    }
}

/// Like `line`, but for one of many lines: a closed output ends the listing.
///
/// # Errors
/// Those of `line`, and `Closed`.
pub fn listed(text: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|error| Failure::of_output("standard output", &error))
}

/// `1 route`, `2 routes`, `0 routes`. `one` is the singular.
pub fn counted(number: u64, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// Lines and columns of the terminal on standard output; `None` without a terminal or if it reports no size.
pub fn window() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then(|| (size.ws_row.into(), size.ws_col.into()))
}

/// Writes a line to standard error, unless it is closed. With a log, the line follows the queued lines, and the call
/// never blocks.
pub fn note(text: impl Display) {
    let text = text.to_string();
    if !logging::write_line(&text) {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Says on a terminal that the command waits for `what`.
pub fn await_stdin(what: &str) {
    if io::stdin().is_terminal() {
        note(format_args!("waits for {what} on standard input: end it with Ctrl-D"));
    }
}

/// The reply about a scheduled or moved message.
///
/// # Errors
/// Those of `line`.
pub fn scheduled(global: &Global, reply: Value) -> Result<(), Failure> {
    let text = |name: &str| reply[name].as_str().unwrap_or("?");
    let (word, time) = if reply["ended_at"].is_null() { ("for", "deliver_at") } else { ("at", "ended_at") };
    let shown = format!("{} {} {word} {}", text("status"), text("id"), text(time));
    result(global, reply, shown)
}

/// Asks on the terminal for confirmation of `what`.
///
/// # Errors
/// `Usage` without a terminal; `Failed` unless the answer is yes.
pub fn ask(what: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::Usage(format!(
            "this would {what}; without a terminal it needs --yes. Nothing was changed"
        )));
    }
    let failed = |error: io::Error| Failure::Failed(error.to_string());
    write!(io::stderr(), "{what}? [y/N] ").map_err(failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::Failed("nothing was changed".into()))
}
