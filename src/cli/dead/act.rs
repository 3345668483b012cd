//! `punctual dead redrive ROUTE` and `punctual dead purge ROUTE`.

use clap::Args;
use serde_json::Map;

use crate::cli::{
    Session,
    bulk::{self, Bulk, BulkArguments},
    client::of_route,
    failure::Failure,
    filter::Filter,
    ids,
};

#[derive(Args)]
pub struct ActArguments {
    route: String,
    /// These; `-`: one a line on standard input
    ids: Vec<String>,
    /// All
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    bulk: BulkArguments,
}

/// `verb` is the call, `done` its past.
pub async fn run(session: &Session<'_>, arguments: ActArguments, verb: &str, done: &str) -> Result<(), Failure> {
    let ActArguments { route, ids, all, filter, bulk } = arguments;
    let filter = filter.body();
    let bodies = match (ids.is_empty(), all, filter.is_empty()) {
        (false, false, true) => bulk::bodies_of(&ids::read(ids)?),
        (true, true, true) => vec![Map::from_iter([("all".to_owned(), true.into())])],
        (true, false, false) => vec![filter],
        _ => {
            let text =
                "select them by ids, by a filter (--reason, --contains, --since, --until), or with --all: one of these";
            return Err(Failure::Usage(text.into()));
        }
    };
    let path = of_route(&route, &format!("/dead/{verb}"))?;
    let bulk_call = Bulk { path, bodies, verb, done, what: format!("dead letters of {route}") };
    bulk_call.run(session, &bulk).await.map(drop)
}
