//! `punctual deliver ROUTE ID...`.

use clap::Args;
use serde_json::json;

use super::{Session, client::of_message, failure::Failure, ids, output};

#[derive(Args)]
pub struct DeliverArguments {
    route: String,
    /// `-`: one a line on standard input
    #[arg(required = true)]
    ids: Vec<String>,
}

/// The others are tried after one that cannot be delivered.
pub async fn run(session: &Session<'_>, arguments: DeliverArguments) -> Result<(), Failure> {
    let mut failure = None;
    for id in ids::read(arguments.ids)? {
        match session.client.post(&of_message(&arguments.route, &id, "/deliver")?, &json!({})).await {
            Ok(reply) => output::scheduled(session.global, reply)?,
            Err(refused @ Failure::NotFound(_)) => {
                output::note(format_args!("punctual: {refused}"));
                failure.get_or_insert(refused);
            }
            Err(other) => return Err(other),
        }
    }
    match failure {
        Some(_) => Err(Failure::NotFound("not all were found".into())),
        None => Ok(()),
    }
}
