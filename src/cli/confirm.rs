//! Asks before a change that cannot be taken back.

use std::io::{self, BufRead, IsTerminal, Write};

use super::failure::Failure;

/// Asks whether to do `what`, on the terminal.
///
/// # Errors
/// `Usage` without a terminal; `Failed` when the answer is not yes.
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
