//! Writes the directory with the results. Only its owner can read it, because definitions have password hashes.

use std::{
    fs::{DirBuilder, File},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Accessible to the owner only; scripts are executable.
const DIRECTORY: u32 = 0o700;
const FILE: u32 = 0o600;
const SCRIPT: u32 = 0o700;

/// Writes all files, or none if one of them exists.
///
/// # Errors
/// The path and its error.
pub fn all(directory: &Path, files: &[(&str, String)]) -> Result<Vec<PathBuf>, String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let paths: Vec<_> = files.iter().map(|(name, _)| directory.join(name)).collect();
    if let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(format!("{}: exists, and nothing is overwritten", path.display()));
    }
    match DirBuilder::new().mode(DIRECTORY).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(directory, error)),
        _ => {}
    }
    for (path, (_, content)) in paths.iter().zip(files) {
        let mode = if path.extension().is_some_and(|extension| extension == "sh") { SCRIPT } else { FILE };
        let file = File::options().write(true).create_new(true).mode(mode).open(path);
        file.and_then(|mut file| file.write_all(content.as_bytes())).map_err(|error| failed(path, error))?;
    }
    Ok(paths)
}
