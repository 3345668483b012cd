//! Cuts a server of a cluster off from the others, while clients reach it.

use std::{fs::File, os::unix::fs::FileExt};

use tempfile::TempDir;

use crate::support::preload;

/// The code of the library, which is preloaded into each server.
const CODE: &str = include_str!("apart.c");
/// Names the file with the ports of the server that is cut off.
const FILE: &str = "PUNCTUAL_TEST_CUT";
/// The port of a server's bus.
pub const BUS: &str = "PUNCTUAL_TEST_BUS";

pub struct Apart {
    directory: TempDir,
    file: File,
}

impl Apart {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        preload::compile(directory.path(), "apart", CODE);
        let file = File::create(directory.path().join("ports")).expect("a file");
        let apart = Self { directory, file };
        apart.set([0; 2]);
        apart
    }

    /// For servers that have these variables.
    pub fn environment(&self, others: &[(String, String)]) -> Vec<(String, String)> {
        let path = |name| self.directory.path().join(name).display().to_string();
        let (preloaded, others): (Vec<_>, Vec<_>) =
            others.iter().cloned().partition(|(name, _)| name == preload::VARIABLE);
        let libraries: Vec<_> = preloaded.into_iter().map(|(_, value)| value).chain([path("apart.so")]).collect();
        let own = [(preload::VARIABLE.to_owned(), libraries.join(" ")), (FILE.to_owned(), path("ports"))];
        others.into_iter().chain(own).collect()
    }

    /// The ports of clients and of the bus of the server that is cut off. Zeros: none is.
    pub fn set(&self, ports: [u16; 2]) {
        let bytes: Vec<u8> = ports.into_iter().flat_map(u16::to_ne_bytes).collect();
        self.file.write_all_at(&bytes, 0).expect("written");
    }
}
