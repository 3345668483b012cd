//! `punctual dead list ROUTE`.

use clap::Args;

use crate::cli::{Session, failure::Failure, filter::Filter, list::DEAD_COLUMNS, pages::Listing};

#[derive(Args)]
pub struct ListArguments {
    route: String,
    #[command(flatten)]
    filter: Filter,
    /// Most messages
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

pub async fn run(session: &Session<'_>, arguments: ListArguments) -> Result<(), Failure> {
    let ListArguments { route, filter, limit } = &arguments;
    Listing { route, state: "dead", filter, limit: Some(*limit) }.show(session, DEAD_COLUMNS).await
}
