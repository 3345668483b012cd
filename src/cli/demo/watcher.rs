//! A child process that stops the private Redis after its demo was killed.
//!
//! Its standard input is a pipe from the demo. The demo never writes to it, so end of file means that the demo has
//! ended.

use std::{env, fs, io, process::Stdio};

use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};

use super::workplace::{POLL, START, data_of, directory_of};
use crate::{
    app::embedded::{Embedded, EmbeddedError},
    cli::global::read_stdin,
};

/// Starts the watcher of the demo of this number.
pub fn start(number: u64) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["demo", "--clean-up", &number.to_string()]);
    // Ctrl-C in a terminal goes to the whole process group.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.kill_on_drop(true).spawn()
}

/// Runs the watcher. It needs no process id: it takes Redis over by its socket and its lock.
pub async fn run(number: u64) {
    // An error means that the demo has ended, too.
    let _ = read_stdin();
    let directory = directory_of(number);
    let taken_over = timeout(START, async {
        // The demo may have stopped in order. Its lock can be held a little longer than its pipe is open.
        while directory.exists() {
            match Embedded::start(&data_of(&directory)).await {
                Err(EmbeddedError::InUse(_)) => sleep(POLL).await,
                started => return started.ok(),
            }
        }
        None
    });
    if let Ok(Some(redis)) = taken_over.await {
        redis.stop().await;
        // A failure does no harm: the directory is a temporary one.
        let _ = fs::remove_dir_all(directory);
    }
}
