//! `punctual dev`: an instance for tests. Its Redis is private and temporary, its clock can be advanced, and an inbox in
//! memory takes the place of the sinks.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    sync::Arc,
};

use clap::Args;

use super::{
    demo::{
        watcher,
        workplace::{data_of, directory_of},
    },
    failure::Failure,
    global::Global,
};
use crate::{
    app::{self, serve::serve_in_development},
    config::Config,
    sink::inbox::{Inbox, InboxSettings},
};

/// The configuration if no file is given.
const DEFAULT: &str = "sinks: { inbox: { type: redis_list, key: inbox } }\nroutes: { dev: { sink: inbox } }\n";

#[derive(Args)]
pub struct DevArguments {
    /// Deliver to the configured sinks, not to the inbox
    #[arg(long)]
    keep_sinks: bool,
    /// Read from the configured sources, which are off otherwise
    #[arg(long)]
    keep_sources: bool,
}

pub async fn run(global: &Global, arguments: DevArguments) -> Result<(), Failure> {
    let scratch = Scratch::new(rand::random()).map_err(|error| Failure::Failed(error.to_string()))?;
    let default_file = scratch.directory.join("punctual.yaml");
    fs::write(&default_file, DEFAULT).map_err(|error| Failure::Failed(error.to_string()))?;
    let inbox = Arc::new(Inbox::default());
    let of_sinks = inbox.clone();
    let change = move |config: &mut Config| {
        if !arguments.keep_sinks {
            for (name, sink) in &mut config.sinks {
                *sink = Arc::new(InboxSettings { name: name.as_str().into(), inbox: of_sinks.clone() });
            }
        }
        if !arguments.keep_sources {
            config.sources.clear();
            config.fingerprints.sources.clear();
        }
    };
    let (config, load) = global.load_for_development(data_of(&scratch.directory), default_file, change)?;
    app::logging::init(config.log);
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    tracing::info!(redis = %config.redis.data_dir.display(), "development: data is deleted at the end");
    // Stops the Redis if this process is killed.
    let mut watcher = watcher::start(scratch.number).map_err(|error| Failure::Failed(error.to_string()))?;
    let ended = serve_in_development(config, load, inbox).await;
    // The watcher must end before its pipe is closed. It may have been killed already.
    let _ = watcher.kill().await;
    Ok(ended?)
}

/// A temporary directory, which is deleted on drop.
struct Scratch {
    number: u64,
    directory: PathBuf,
}

impl Scratch {
    fn new(number: u64) -> std::io::Result<Self> {
        let directory = directory_of(number);
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Self { number, directory })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure does no harm: the directory is a temporary one.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
