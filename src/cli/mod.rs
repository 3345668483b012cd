//! The command line. Operator commands are clients of the HTTP API, so its rights and its audit log apply to them. Exit
//! codes: 0 done, 1 failed, 2 usage or configuration, 3 not found.

mod bulk;
mod check;
mod client;
mod dead;
#[cfg(feature = "http")]
mod demo;
#[cfg(feature = "http")]
mod dev;
mod failure;
mod flows;
mod global;
mod group;
mod health;
mod import;
mod list;
mod message;
#[cfg(feature = "rabbitmq")]
mod migrate;
mod output;
mod print;
mod progress;
mod reload;
mod route;
mod schedule;
mod schedules;
mod status;
mod table;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::{client::Operator, failure::Failure, global::Global};
use crate::{app, config, connector};

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
    /// Show the status every second, until Ctrl-C
    Top(Operator<top::TopArguments>),
    /// Schedule a message
    Schedule(Box<Operator<schedule::ScheduleArguments>>),
    /// Schedule messages from NDJSON, one message per line
    Import(Operator<import::ImportArguments>),
    /// Show a message
    Get(Operator<message::GetArguments>),
    /// Find a message on any route
    Find(Operator<message::FindArguments>),
    /// List messages
    List(Operator<list::ListArguments>),
    /// Move pending messages to another time
    Move(Operator<message::MoveArguments>),
    /// Make pending messages due now
    Deliver(Operator<message::DeliverArguments>),
    /// Cancel pending messages
    Cancel(Operator<message::CancelArguments>),
    /// Dead letters: summary, list, redrive, purge, forward, export
    Dead(Operator<dead::DeadArguments>),
    /// Stop the delivery of a route, on every instance
    Pause(Operator<route::PauseArguments>),
    /// Resume the delivery of a route
    Resume(Operator<route::ResumeArguments>),
    /// Show the flows of a route, or one; set limits of a flow, pause it, resume it
    Flows(Operator<flows::FlowsArguments>),
    /// Messages of a group: list, cancel, move, deliver
    Group(Operator<group::GroupArguments>),
    /// Recurring schedules: list, show, set, next, run, pause, resume, delete
    Schedules(Operator<schedules::SchedulesArguments>),
    /// Follow the move of a route's messages to another number of partitions
    Repartition(Operator<route::RepartitionArguments>),
    /// Read the configuration of a running instance again
    Reload(Operator<reload::ReloadArguments>),
    /// Ask whether an instance is ready: exit 0 or 1
    Health(Operator<health::HealthArguments>),
    /// Run a demonstration: a private Redis, a receiver, ten messages
    #[cfg(feature = "http")]
    Demo(demo::DemoArguments),
    /// Run an instance for tests: a private Redis, a clock that can be advanced, an inbox in place of sinks
    #[cfg(feature = "http")]
    Dev(dev::DevArguments),
    /// Print a Lua script for producers
    Lua(print::LuaArguments),
    /// Print completions for a shell
    Completions(print::CompletionsArguments),
    /// Make a configuration and new definitions from the definitions of a broker with a delayed exchange
    #[cfg(feature = "rabbitmq")]
    Migrate(migrate::MigrateArguments),
}

/// Runs the command line of this process. Not async, so that all of it is compiled once, with the library.
pub fn run() -> ExitCode {
    /// Runs after the runtime has ended, also after a panic.
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
    // Exits with 2 on a usage error.
    let cli = Cli::parse();
    match Box::pin(dispatch(cli)).await {
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
            Ok(app::serve::serve(config, global.again()).await?)
        }
        Command::Check(arguments) => check::run(global, arguments).await,
        Command::Schema => output::line(format_args!("{:#}", config::schema(&connector::registry()))),
        Command::Status(operator) => operate!(status::run, global, operator),
        Command::Top(operator) => operate!(top::run, global, operator),
        Command::Schedule(operator) => operate!(schedule::run, global, operator),
        Command::Import(operator) => operate!(import::run, global, operator),
        Command::Get(operator) => operate!(message::get, global, operator),
        Command::Find(operator) => operate!(message::find, global, operator),
        Command::List(operator) => operate!(list::list, global, operator),
        Command::Move(operator) => operate!(message::move_to, global, operator),
        Command::Deliver(operator) => operate!(message::deliver, global, operator),
        Command::Cancel(operator) => operate!(message::cancel, global, operator),
        Command::Dead(operator) => operate!(dead::run, global, operator),
        Command::Pause(operator) => operate!(route::pause, global, operator),
        Command::Flows(operator) => operate!(flows::run, global, operator),
        Command::Group(operator) => operate!(group::run, global, operator),
        Command::Schedules(operator) => operate!(schedules::run, global, operator),
        Command::Repartition(operator) => operate!(route::repartition, global, operator),
        Command::Resume(operator) => operate!(route::resume, global, operator),
        Command::Reload(operator) => operate!(reload::run, global, operator),
        Command::Health(operator) => health::run(global, &operator.api, &operator.own).await,
        #[cfg(feature = "http")]
        Command::Demo(arguments) => demo::run(arguments).await,
        #[cfg(feature = "http")]
        Command::Dev(arguments) => Box::pin(dev::run(global, arguments)).await,
        Command::Lua(arguments) => print::lua(&arguments),
        Command::Completions(arguments) => print::completions(&arguments, Cli::command()),
        #[cfg(feature = "rabbitmq")]
        Command::Migrate(arguments) => migrate::run(global, arguments).await,
    }
}
