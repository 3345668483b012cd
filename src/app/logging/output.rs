//! Where the lines go: a file, a pipe, a terminal or a socket, which may block or fail at any time.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    thread::sleep,
    time::Duration,
};

/// Pause before another try where the other programs on the same pipe or terminal have made it non-blocking.
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

    /// Writes a line in one call where the system takes it in one, so that several processes can write to one file. Returns
    /// whether all of it was written. Blocks for as long as nobody reads.
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
