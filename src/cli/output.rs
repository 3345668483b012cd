//! Standard output.

use std::{
    fmt::Display,
    io::{self, Write},
};

use serde_json::Value;

use super::{Global, failure::Failure};

/// Writes the result of a command: `json` with `--json`, else `text`.
///
/// # Errors
/// As `line`.
pub fn result(global: &Global, json: Value, text: impl Display) -> Result<(), Failure> {
    if global.json { line(json) } else { line(text) }
}

/// Writes `text` and ends the line. A reader who has seen enough, such as `head`, is no failure.
///
/// # Errors
/// When it cannot be written, such as to a full disk.
pub fn line(text: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// The reply about a scheduled or moved message.
///
/// # Errors
/// As `line`.
pub fn scheduled(global: &Global, reply: Value) -> Result<(), Failure> {
    let text = |name: &str| reply[name].as_str().unwrap_or("?");
    let (word, time) = if reply["ended_at"].is_null() { ("for", "deliver_at") } else { ("at", "ended_at") };
    let shown = format!("{} {} {word} {}", text("status"), text("id"), text(time));
    result(global, reply, shown)
}
