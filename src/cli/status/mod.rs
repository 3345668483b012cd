//! `punctual status`: everything on one screen, and whether something is wrong.

mod problems;
pub mod screen;

use std::time::Duration;

use clap::Args;

use super::{Session, failure::Failure, output};

#[derive(Args)]
pub struct StatusArguments {
    /// A message that is later than this is wrong
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = humantime::parse_duration)]
    overdue: Duration,
    /// All routes, sinks and sources, however many
    #[arg(long)]
    all: bool,
}

/// The call that shows all.
pub const OVERVIEW: &str = "/v1/overview";

pub async fn run(session: &Session<'_>, arguments: StatusArguments) -> Result<(), Failure> {
    let overview = session.client.get(OVERVIEW).await?;
    let problems = problems::find(&overview, arguments.overdue);
    let rows = if arguments.all { usize::MAX } else { screen::MAX_ROWS };
    let text = screen::text(&overview, session.client.shown(), rows);
    output::result(session.global, overview, text)?;
    if problems.is_empty() { Ok(()) } else { Err(Failure::Failed(problems.join("\npunctual: "))) }
}
