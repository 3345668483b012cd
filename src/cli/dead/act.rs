//! `punctual dead redrive ROUTE` and `punctual dead purge ROUTE`.

use clap::Args;
use serde_json::{Map, Value};

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

#[derive(Args)]
pub struct RedriveArguments {
    #[command(flatten)]
    act: ActArguments,
    /// Their time of expiry: `drop`, `keep`, or a duration such as `5m`, after which all of them expire
    #[arg(long, value_name = "EXPIRY", default_value = "drop")]
    expiry: String,
}

pub async fn redrive(session: &Session<'_>, arguments: RedriveArguments) -> Result<(), Failure> {
    let RedriveArguments { act, expiry } = arguments;
    run(session, act, "redrive", "redrove", Map::from_iter([("expiry".to_owned(), expiry.into())])).await
}

pub async fn purge(session: &Session<'_>, arguments: ActArguments) -> Result<(), Failure> {
    run(session, arguments, "purge", "purged", Map::new()).await
}

/// `verb` is the call, `done` its past; `more`: fields of its body.
async fn run(
    session: &Session<'_>,
    arguments: ActArguments,
    verb: &str,
    done: &str,
    more: Map<String, Value>,
) -> Result<(), Failure> {
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
    let work = Bulk { path, selection, more, verb, done, noun: "dead letter", route: &route, state: "dead" };
    work.run(session, &bulk).await
}
