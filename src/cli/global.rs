//! The options of all commands, and the configuration that they select.

use std::{
    io::{self, Read},
    path::PathBuf,
    sync::Arc,
};

use clap::Args;

use super::failure::Failure;
use crate::{
    app::reload::Load,
    config::{self, Config, ConfigErrors, RedisUrlOption, ServerAddress, Sources},
    connector,
};

#[derive(Args)]
pub struct Global {
    /// Configuration file; can be repeated, and later files override earlier ones
    #[arg(short, long = "config", global = true, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Overrides `redis.url`; every user of this machine can read the argument: a password belongs in a file, or in the
    /// environment as `PUNCTUAL__REDIS__URL`
    #[arg(long, global = true, value_name = "URL")]
    redis_url: Option<String>,
    /// A file with a URL that overrides `redis.url`
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "redis_url")]
    redis_url_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    pub fn load(&self) -> Result<Config, Failure> {
        self.read().map_err(|errors| Failure::Configuration(errors.to_string()))
    }

    /// The configuration of an instance for tests, with its Redis in `data_dir`, and the way to read it again. `default_file`
    /// is read if none is given.
    #[cfg(feature = "http")]
    pub fn load_for_development(
        &self,
        data_dir: PathBuf,
        default_file: PathBuf,
        change: impl Fn(&mut Config) + Send + Sync + 'static,
    ) -> Result<(Config, Load), Failure> {
        if self.redis_url.is_some() || self.redis_url_file.is_some() {
            let text = "`dev` has a Redis of its own: leave out `--redis-url` and `--redis-url-file`";
            return Err(Failure::Usage(text.into()));
        }
        let mut sources = self.sources();
        sources.development = Some(data_dir);
        if sources.files.is_empty() {
            sources.files.push(default_file);
        }
        let load: Load = Arc::new(move || {
            let mut config = config::load(&sources, &connector::registry())?;
            change(&mut config);
            Ok(config)
        });
        let config = load().map_err(|errors| Failure::Configuration(errors.to_string()))?;
        Ok((config, load))
    }

    /// Reads the configuration of this command again.
    pub fn again(&self) -> Load {
        let sources = self.sources();
        Arc::new(move || config::load(&sources, &connector::registry()))
    }

    pub fn read(&self) -> Result<Config, ConfigErrors> {
        config::load(&self.sources(), &connector::registry())
    }

    fn sources(&self) -> Sources {
        let redis_url = match (&self.redis_url, &self.redis_url_file) {
            (Some(url), _) => Some(RedisUrlOption::Text(url.clone())),
            (None, Some(file)) => Some(RedisUrlOption::File(file.clone())),
            (None, None) => None,
        };
        Sources::of_process(self.config.clone(), redis_url)
    }

    /// The address of the configured instance. Other settings may be wrong or missing.
    pub fn server_address(&self) -> Result<ServerAddress, Failure> {
        let sources = Sources::of_process(self.config.clone(), None);
        config::server_address(&sources).map_err(|errors| Failure::Configuration(errors.to_string()))
    }
}

pub fn read_stdin() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    Ok(bytes)
}
