//! Logs on standard error, as text or JSON. `RUST_LOG` refines the configured level.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Installs the subscriber for the process; a second call changes nothing.
pub fn init(config: LogConfig) {
    let level = LevelFilter::from_level(config.level.into());
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    // lapin logs returned messages with their payload. The sink logs connection errors itself.
    let filter = filter.add_directive("lapin=off".parse().expect("a directive"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // An embedding program may have its own.
    let _ = match config.format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
