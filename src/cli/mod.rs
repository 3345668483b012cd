//! The command line. Operator commands are clients of the HTTP API, so that its rights and its audit log apply. Exit codes:
//! 0 done, 1 failed, 2 usage or configuration, 3 not found.

mod bulk;
mod cancel;
mod check;
mod client;
mod completions;
mod confirm;
mod dead;
mod deliver;
#[cfg(feature = "http")]
mod demo;
mod failure;
mod filter;
mod get;
mod health;
mod ids;
mod import;
mod list;
mod lua;
#[cfg(feature = "rabbitmq")]
mod migrate;
mod move_to;
mod open;
mod output;
mod pages;
mod pause;
mod progress;
mod refusal;
mod repartition;
mod schedule;
mod status;
mod table;
mod top;

use std::{
    io::{self, Read},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

use self::{
    client::{ApiArguments, Client},
    failure::Failure,
};
use crate::{
    app,
    config::{self, Config, ConfigErrors, RedisUrlOption, ServerAddress, Sources},
    connector,
};

/// The command line.
#[derive(Parser)]
#[command(
    name = "punctual",
    version,
    about = "Messages wait in Redis and leave for Kafka, RabbitMQ, HTTP or a Redis list when they are due.",
    after_help = "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 not found."
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
    /// Show routes, sinks, sources and Redis; exit 1 when something is wrong
    Status(Operator<status::StatusArguments>),
    /// The same every second, until Ctrl-C
    Top(Operator<top::TopArguments>),
    /// Schedule a message
    Schedule(Box<Operator<schedule::ScheduleArguments>>),
    /// Schedule messages from NDJSON, one message a line
    Import(Operator<import::ImportArguments>),
    /// Show a message
    Get(Operator<get::GetArguments>),
    /// List messages
    List(Operator<list::ListArguments>),
    /// Move a pending message to another time
    Move(Operator<move_to::MoveArguments>),
    /// Make pending messages due now
    Deliver(Operator<deliver::DeliverArguments>),
    /// Cancel pending messages
    Cancel(Operator<cancel::CancelArguments>),
    /// Dead letters: summary, list, redrive, purge, export
    Dead(Operator<dead::DeadArguments>),
    /// Stop the delivery of a route, on every instance
    Pause(Operator<pause::PauseArguments>),
    /// Resume the delivery of a route
    Resume(Operator<pause::ResumeArguments>),
    /// Follow the move of a route to another number of partitions
    Repartition(Operator<repartition::RepartitionArguments>),
    /// Ask whether an instance is ready: exit 0 or 1
    Health(Operator<health::HealthArguments>),
    /// See it work: a private Redis, a receiver, ten messages
    #[cfg(feature = "http")]
    Demo(demo::DemoArguments),
    /// Print a Lua script for producers
    Lua(lua::LuaArguments),
    /// Print completions for a shell
    Completions(completions::CompletionsArguments),
    /// Make the new definitions of a broker, and a configuration, from those of one with a delayed exchange
    #[cfg(feature = "rabbitmq")]
    Migrate(migrate::MigrateArguments),
}

/// A command that calls the API.
#[derive(Args)]
struct Operator<A: Args> {
    #[command(flatten)]
    own: A,
    #[command(flatten)]
    api: ApiArguments,
}

/// What an operator command works with.
struct Session<'a> {
    global: &'a Global,
    client: Client,
}

impl<A: Args> Operator<A> {
    fn open(self, global: &Global) -> Result<(Session<'_>, A), Failure> {
        let client = Client::new(global, &self.api)?;
        Ok((Session { global, client }, self.own))
    }
}

/// Runs the command line of this process. Not async: all of it is compiled once, with the library.
pub fn run() -> ExitCode {
    /// After the runtime has ended, and after a panic too.
    struct LastLines;
    impl Drop for LastLines {
        fn drop(&mut self) {
            app::logging::finish();
        }
    }
    let _last_lines = LastLines;
    run_command()
}

#[tokio::main]
async fn run_command() -> ExitCode {
    // Usage errors exit with 2 here.
    let cli = Cli::parse();
    match dispatch(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Closed) {
                output::note(format_args!("punctual: {}", table::harmless(&failure.to_string())));
            }
            failure.exit_code()
        }
    }
}

async fn dispatch(cli: Cli) -> Result<(), Failure> {
    macro_rules! operate {
        ($run:path, $global:expr, $operator:expr) => {{
            let (session, arguments) = $operator.open($global)?;
            $run(&session, arguments).await
        }};
    }
    let global = &cli.global;
    match cli.command {
        Command::Serve => {
            let config = global.load()?;
            app::logging::init(config.log);
            config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            Ok(app::serve::serve(config).await?)
        }
        Command::Check(arguments) => check::run(global, arguments).await,
        Command::Schema => output::line(format_args!("{:#}", config::schema(&connector::registry()))),
        Command::Status(operator) => operate!(status::run, global, operator),
        Command::Top(operator) => operate!(top::run, global, operator),
        Command::Schedule(operator) => operate!(schedule::run, global, operator),
        Command::Import(operator) => operate!(import::run, global, operator),
        Command::Get(operator) => operate!(get::run, global, operator),
        Command::List(operator) => operate!(list::run, global, operator),
        Command::Move(operator) => operate!(move_to::run, global, operator),
        Command::Deliver(operator) => operate!(deliver::run, global, operator),
        Command::Cancel(operator) => operate!(cancel::run, global, operator),
        Command::Dead(operator) => operate!(dead::run, global, operator),
        Command::Pause(operator) => operate!(pause::run, global, operator),
        Command::Repartition(operator) => operate!(repartition::run, global, operator),
        Command::Resume(operator) => operate!(pause::resume, global, operator),
        Command::Health(operator) => health::run(global, &operator.api, &operator.own).await,
        #[cfg(feature = "http")]
        Command::Demo(arguments) => demo::run(arguments).await,
        Command::Lua(arguments) => lua::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        #[cfg(feature = "rabbitmq")]
        Command::Migrate(arguments) => migrate::run(global, arguments).await,
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

    /// Where the instance of the configuration is reached; its other settings may be wrong or missing.
    fn server_address(&self) -> Result<ServerAddress, Failure> {
        let sources = Sources::of_process(self.config.clone(), None);
        config::server_address(&sources).map_err(|errors| Failure::Configuration(errors.to_string()))
    }
}
