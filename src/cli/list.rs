//! `punctual list ROUTE`.

use clap::{Args, ValueEnum};

use super::{Session, failure::Failure, filter::Filter, pages::Listing};

#[derive(Args)]
pub struct ListArguments {
    route: String,
    #[arg(long, value_enum, default_value = "pending")]
    state: State,
    #[command(flatten)]
    filter: Filter,
    /// Most messages
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    /// By the time of the next attempt
    Pending,
    /// Pending after failed attempts
    Retrying,
    /// In flight
    Unack,
    /// By the time of death
    Dead,
}

pub async fn run(session: &Session<'_>, arguments: ListArguments) -> Result<(), Failure> {
    let (state, columns) = match arguments.state {
        State::Pending => ("pending", &["id", "deliver_at", "attempts", "last_error"][..]),
        State::Retrying => ("retrying", &["id", "deliver_at", "attempts", "last_error"][..]),
        State::Unack => ("unack", &["id", "due", "attempts", "last_error"][..]),
        State::Dead => ("dead", DEAD_COLUMNS),
    };
    let ListArguments { route, filter, limit, .. } = &arguments;
    Listing { route, state, filter, limit: Some(*limit) }.show(session, columns).await
}

/// Of a table of dead letters.
pub const DEAD_COLUMNS: &[&str] = &["id", "died_at", "attempts", "last_error"];
