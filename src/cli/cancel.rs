//! `punctual cancel ROUTE ID...`.

use clap::{ArgGroup, Args};
use reqwest::Method;
use serde_json::{Map, json};

use super::{
    Session,
    bulk::{self, Bulk, BulkArguments},
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
    if let ([id], false) = (ids.as_slice(), arguments.bulk.is_set()) {
        session.client.call(Method::DELETE, &of_message(route, id, "")?, None).await?;
        return output::result(session.global, json!({ "count": 1 }), format_args!("cancelled {id}"));
    }
    let bodies =
        if arguments.all { vec![Map::from_iter([("all".to_owned(), true.into())])] } else { bulk::bodies_of(&ids) };
    let path = of_route(route, "/purge")?;
    let what = format!("pending messages of {route}");
    let bulk = Bulk { path, bodies, verb: "cancel", done: "cancelled", what };
    let count = bulk.run(session, &arguments.bulk).await?;
    if !arguments.all && arguments.bulk.limit.is_none() && count < ids.len() as u64 {
        return Err(Failure::NotFound(format!("{} of {} are not pending", ids.len() as u64 - count, ids.len())));
    }
    Ok(())
}
