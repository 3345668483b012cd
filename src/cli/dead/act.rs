//! `punctual dead redrive ROUTE` and `punctual dead purge ROUTE`.

use clap::Args;

use crate::cli::{
    Session,
    bulk::{Bulk, BulkArguments, Selection},
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
    let selection = match (ids.is_empty(), all, filter.is_empty()) {
        (false, false, true) => Selection::Ids(ids::read(ids)?),
        (true, true, true) => Selection::all(),
        (true, false, false) => Selection::Where(filter),
        _ => {
            let text =
                "select them by ids, by a filter (--reason, --contains, --since, --until), or with --all: one of these";
            return Err(Failure::Usage(text.into()));
        }
    };
    let path = of_route(&route, &format!("/dead/{verb}"))?;
    let work = Bulk { path, selection, verb, done, what: format!("dead letters of {route}"), state: "dead" };
    work.run(session, &bulk).await
}
