//! Message ids of the command line.

use std::{collections::HashSet, io};

use super::{failure::Failure, read_stdin};

/// Most ids of one call.
pub const MAX_IDS: usize = 1000;

/// Each once. `-` stands for the lines of standard input, which come last.
///
/// # Errors
/// When standard input cannot be read, or has no ids.
pub fn read(mut given: Vec<String>) -> Result<Vec<String>, Failure> {
    if given.iter().any(|id| id == "-") {
        given.retain(|id| id != "-");
        let failed = |error: io::Error| Failure::Failed(format!("standard input: {error}"));
        let text = String::from_utf8(read_stdin().map_err(failed)?);
        let text = text.map_err(|_| Failure::Usage("standard input is not UTF-8".into()))?;
        let before = given.len();
        given.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        if given.len() == before {
            return Err(Failure::Usage("standard input has no ids".into()));
        }
    }
    let mut seen = HashSet::new();
    given.retain(|id| seen.insert(id.clone()));
    Ok(given)
}
