//! The command line. Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 not found.

mod check;
mod failure;
#[cfg(all(feature = "http", feature = "rabbitmq"))]
mod migrate;
mod open;
mod output;
mod schedule;
mod stats;
mod table;

use std::{
    io::{self, Read},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

use crate::{
    app,
    config::{self, Config, ConfigErrors, RedisUrlOption, Sources},
    connector,
};
use failure::Failure;

/// The command line.
#[derive(Parser)]
#[command(
    name = "punctual",
    version,
    about = "Messages wait in Redis and leave for Kafka, RabbitMQ, HTTP or a Redis list when they are due."
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Global {
    /// Configuration file; later ones win
    #[arg(short, long = "config", global = true, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// In place of `redis.url`; every user of this machine can read it: a password belongs in a file, or in the
    /// environment as `PUNCTUAL__REDIS__URL`
    #[arg(long, global = true, value_name = "URL")]
    redis_url: Option<String>,
    /// A file with what stands in place of `redis.url`
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "redis_url")]
    redis_url_file: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Run the scheduler and its HTTP API
    Serve,
    /// Validate the configuration
    Check(check::CheckArguments),
    /// Print the JSON Schema of the configuration
    Schema,
    /// Schedule a message
    Schedule(Box<schedule::ScheduleArguments>),
    /// Show the numbers of the routes
    Stats(stats::StatsArguments),
    /// Make the new definitions of a broker, and a configuration, from those of one with a delayed exchange
    #[cfg(all(feature = "http", feature = "rabbitmq"))]
    Migrate(migrate::MigrateArguments),
}

/// Runs the command line of this process.
pub async fn run() -> ExitCode {
    // Usage errors exit with 2 here.
    let cli = Cli::parse();
    match dispatch(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("punctual: {failure}");
            failure.exit_code()
        }
    }
}

async fn dispatch(cli: Cli) -> Result<(), Failure> {
    let global = cli.global;
    match cli.command {
        Command::Schema => output::line(format_args!("{:#}", config::schema(&connector::registry()))),
        Command::Check(arguments) => check::run(&global, arguments).await,
        Command::Serve => {
            let config = global.load()?;
            app::logging::init(config.log);
            config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            Ok(app::serve::serve(config).await?)
        }
        Command::Schedule(arguments) => schedule::run(&global, *arguments).await,
        Command::Stats(arguments) => stats::run(&global, arguments).await,
        #[cfg(all(feature = "http", feature = "rabbitmq"))]
        Command::Migrate(arguments) => migrate::run(&global, arguments).await,
    }
}

fn read_stdin() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Global {
    fn load(&self) -> Result<Config, Failure> {
        self.read().map_err(|errors| Failure::Configuration(errors.to_string()))
    }

    fn read(&self) -> Result<Config, ConfigErrors> {
        let redis_url = match (&self.redis_url, &self.redis_url_file) {
            (Some(url), _) => Some(RedisUrlOption::Text(url.clone())),
            (None, Some(file)) => Some(RedisUrlOption::File(file.clone())),
            (None, None) => None,
        };
        config::load(&Sources::of_process(self.config.clone(), redis_url), &connector::registry())
    }
}
