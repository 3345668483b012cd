//! Open files that are closed to make room for another one.

use std::fs::File;

/// The usual file that can always be opened.
const FILE: &str = "/dev/null";

pub struct SpareFiles {
    files: Vec<File>,
    most: usize,
}

impl SpareFiles {
    /// Opens up to `most` files.
    pub fn new(most: usize) -> Self {
        let mut spare = Self { files: Vec::new(), most };
        spare.fill();
        spare
    }

    /// Opens those that are missing, while the process may. Returns whether it has all.
    pub fn fill(&mut self) -> bool {
        while self.files.len() < self.most {
            let Ok(file) = File::open(FILE) else { return false };
            self.files.push(file);
        }
        true
    }

    /// Closes one. Returns whether there was one.
    pub fn release(&mut self) -> bool {
        self.files.pop().is_some()
    }
}
