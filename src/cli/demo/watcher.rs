//! A child process that ends the private Redis of a demo that was killed.
//!
//! Its standard input is a pipe from the demo, which never writes to it: the end of the file is the end of the demo.

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

/// Starts it, for the demo of this number.
pub fn start(number: u64) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["demo", "--clean-up", &number.to_string()]);
    // Ctrl-C in a terminal goes to the whole group.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.kill_on_drop(true).spawn()
}

/// What it does. No process id is needed: the Redis is taken over by its socket and its lock.
pub async fn run(number: u64) {
    // An error is the end too.
    let _ = read_stdin();
    let directory = directory_of(number);
    let taken_over = timeout(START, async {
        // It may have ended in order. While it ends, its lock may be held a little longer than its pipe.
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
        // What is left in a temporary directory does no harm.
        let _ = fs::remove_dir_all(directory);
    }
}
