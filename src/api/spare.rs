//! Files that are kept open, and closed when the process needs to open another one.

use std::fs::File;

/// A file that can always be opened.
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

    /// Opens missing files, as far as the process can. Returns whether all are open.
    pub fn fill(&mut self) -> bool {
        while self.files.len() < self.most {
            let Ok(file) = File::open(FILE) else { return false };
            self.files.push(file);
        }
        true
    }

    /// Closes one file. Returns whether one was open.
    pub fn release(&mut self) -> bool {
        self.files.pop().is_some()
    }
}
