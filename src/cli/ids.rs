//! Message ids of the command line.

use std::io;

use super::{failure::Failure, read_stdin};

/// Most ids of one call.
pub const MAX_IDS: usize = 1000;

/// A lone `-` stands for the lines of standard input.
///
/// # Errors
/// When standard input cannot be read.
pub fn read(given: Vec<String>) -> Result<Vec<String>, Failure> {
    if given != ["-"] {
        return Ok(given);
    }
    let failed = |error: io::Error| Failure::Failed(format!("standard input: {error}"));
    let text = String::from_utf8(read_stdin().map_err(failed)?);
    let text = text.map_err(|_| Failure::Usage("standard input is not UTF-8".into()))?;
    let ids: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if ids.is_empty() { Err(Failure::Usage("standard input has no ids".into())) } else { Ok(ids) }
}
