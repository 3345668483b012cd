//! `punctual status`: the state of the instance and its problems, on one screen.

mod dead;
mod flow;
mod problems;
pub mod screen;

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::{
    client::{Client, Session},
    failure::Failure,
    output, table,
};

#[derive(Args)]
pub struct StatusArguments {
    /// Lateness from which a message is a problem
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = humantime::parse_duration)]
    overdue: Duration,
    /// Show all routes, sinks and sources, whatever their number
    #[arg(long)]
    all: bool,
}

/// The call for the overview.
const OVERVIEW: &str = "/v1/overview";

/// # Errors
/// Those of `Client::get`; `Failed` for a reply that does not come from punctual.
pub async fn overview(client: &Client) -> Result<Value, Failure> {
    let overview = client.get(OVERVIEW).await?;
    if overview["instance"]["version"].is_string() && overview["redis"]["up"].is_boolean() {
        return Ok(overview);
    }
    Err(Failure::Failed(client.stranger("200 OK", overview.to_string().as_bytes())))
}

pub async fn run(session: &Session<'_>, arguments: StatusArguments) -> Result<(), Failure> {
    let mut overview = overview(&session.client).await?;
    dead::add(&session.client, &mut overview).await;
    let problems = problems::find(&overview, arguments.overdue);
    let rows = if arguments.all { usize::MAX } else { screen::MAX_ROWS };
    let columns = output::window().map_or(table::MAX_CELL, |(_, columns)| columns);
    let screen = screen::text(&overview, session.client.shown(), rows);
    let parts = [screen, flow::lines(&overview, columns).join("\n"), dead::lines(&overview, columns).join("\n")];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    output::result(session.global, overview, parts.join("\n\n"))?;
    if problems.is_empty() { Ok(()) } else { Err(Failure::Failed(problems.join("\npunctual: "))) }
}
