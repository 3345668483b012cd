//! `punctual cancel ROUTE ID...`.

use clap::{ArgGroup, Args};
use reqwest::Method;
use serde_json::{Map, json};

use super::{
    Session,
    bulk::{Bulk, BulkArguments, Selection},
    client::{of_message, of_route},
    failure::Failure,
    ids, output,
};

#[derive(Args)]
#[command(group(ArgGroup::new("selection").required(true).args(["ids", "all"])))]
pub struct CancelArguments {
    route: String,
    /// One is cancelled without a question, or purged when it is dead; of several, the pending ones. `-`: one a line on
    /// standard input
    ids: Vec<String>,
    /// All pending messages, those that are due first first
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    bulk: BulkArguments,
}

pub async fn run(session: &Session<'_>, arguments: CancelArguments) -> Result<(), Failure> {
    let route = &arguments.route;
    let ids = ids::read(arguments.ids)?;
    if let [id] = ids.as_slice() {
        return cancel_one(session, route, id, arguments.bulk.dry_run).await;
    }
    let selection = if arguments.all { Selection::all() } else { Selection::Ids(ids) };
    let (path, more) = (of_route(route, "/purge")?, Map::new());
    let (verb, done, noun) = ("cancel", "cancelled", "pending message");
    let work = Bulk { path, selection, more, verb, done, noun, route, state: "pending" };
    work.run(session, &arguments.bulk).await
}

async fn cancel_one(session: &Session<'_>, route: &str, id: &str, dry_run: bool) -> Result<(), Failure> {
    let path = of_message(route, id, "")?;
    if !dry_run {
        let answer = session.client.call(Method::DELETE, &path, None).await?;
        let done = if answer["status"] == "purged" { "purged" } else { "cancelled" };
        return output::result(session.global, json!({ "count": 1, "status": done }), format_args!("{done} {id}"));
    }
    let text = match session.client.get(&path).await?["state"].as_str() {
        Some("pending") => format!("would cancel {id}"),
        Some("dead") => format!("would purge {id}, which is dead"),
        Some("unack") => return Err(Failure::Failed(format!("`{id}` is being delivered at this moment"))),
        _ => return Err(Failure::NotFound(format!("`{id}` is delivered, cancelled or unknown"))),
    };
    output::result(session.global, json!({ "count": 1, "dry_run": true }), text)
}
