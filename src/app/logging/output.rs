//! The output of the log: a file, a pipe, a terminal or a socket. Each can block or fail at any time.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    thread::sleep,
    time::Duration,
};

/// Pause before another attempt when another program has made the shared pipe or terminal non-blocking.
const BUSY: Duration = Duration::from_millis(10);

pub struct Output {
    to: File,
    /// The latest line was written in part.
    torn: bool,
}

impl Output {
    pub fn new(to: OwnedFd) -> Self {
        Self { to: to.into(), torn: false }
    }

    /// Writes a line in one call if the system takes it in one, so that several processes can write to one file.
    /// Returns whether the whole line was written. Blocks while nothing reads the output.
    pub fn write(&mut self, line: &[u8]) -> bool {
        let ended;
        let mut left = line;
        if self.torn {
            ended = [b"\n", line].concat();
            left = &ended;
        }
        let whole = left.len();
        while !left.is_empty() {
            match self.to.write(left) {
                Ok(0) => break,
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(BUSY),
                Err(_) => break,
            }
        }
        if left.len() < whole {
            self.torn = !left.is_empty();
        }
        left.is_empty()
    }
}
