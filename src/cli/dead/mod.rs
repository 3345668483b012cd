//! `punctual dead`: the dead letters of a route.

mod act;
mod export;
mod list;
mod summary;

use clap::{Args, Subcommand};

use super::{Session, failure::Failure};

#[derive(Args)]
pub struct DeadArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Count them by reason
    Summary(summary::SummaryArguments),
    /// List them
    List(list::ListArguments),
    /// Schedule them again, due now, with 0 attempts
    Redrive(act::RedriveArguments),
    /// Delete them
    Purge(act::ActArguments),
    /// Write them as NDJSON, which `import` reads
    Export(export::ExportArguments),
}

pub async fn run(session: &Session<'_>, arguments: DeadArguments) -> Result<(), Failure> {
    match arguments.command {
        Command::Summary(arguments) => summary::run(session, arguments).await,
        Command::List(arguments) => list::run(session, arguments).await,
        Command::Redrive(arguments) => act::redrive(session, arguments).await,
        Command::Purge(arguments) => act::purge(session, arguments).await,
        Command::Export(arguments) => export::run(session, arguments).await,
    }
}
