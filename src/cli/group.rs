//! `punctual group`: the messages of a group.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};
use url::form_urlencoded::byte_serialize;

use super::{
    client::{Session, of_group},
    failure::Failure,
    list::{self, Pages},
    message::DueArguments,
    output,
};

/// Maximum number of messages of a page.
const MAX_PAGE: u64 = 1000;

const COLUMNS: &[&str] = &["id", "state", "deliver_at", "attempts", "last_error"];

#[derive(Args)]
pub struct GroupArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the messages, also those in flight and the dead letters
    List(ListArguments),
    /// Cancel the pending messages
    Cancel(OfGroup),
    /// Move the pending messages to another time
    Move(MoveArguments),
    /// Make the pending messages due now
    Deliver(OfGroup),
}

#[derive(Args)]
struct OfGroup {
    route: String,
    group: String,
}

#[derive(Args)]
struct ListArguments {
    #[command(flatten)]
    of: OfGroup,
    /// Maximum number of messages
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

#[derive(Args)]
struct MoveArguments {
    #[command(flatten)]
    of: OfGroup,
    #[command(flatten)]
    due: DueArguments,
}

pub async fn run(session: &Session<'_>, arguments: GroupArguments) -> Result<(), Failure> {
    match arguments.command {
        Command::List(ListArguments { of: OfGroup { route, group }, limit }) => {
            let path = of_group(&route, &group, "")?;
            let query = vec![("payload".into(), session.global.json.to_string())];
            let pages = Pages { path: &path, name: "messages", query, max_page: MAX_PAGE, limit: Some(limit) };
            pages.show(session, COLUMNS, list::cell).await
        }
        Command::Cancel(of) => change(session, &of, &Method::DELETE, "", "cancelled", &json!({})).await,
        Command::Move(MoveArguments { of, due }) => {
            let (name, value) = due.field();
            change(session, &of, &Method::PATCH, "", "moved", &json!({ name: value })).await
        }
        Command::Deliver(of) => change(session, &of, &Method::POST, "/deliver", "moved", &json!({})).await,
    }
}

/// Repeats the call until no message is left. `done`: the field with the number of changed messages.
async fn change(
    session: &Session<'_>,
    OfGroup { route, group }: &OfGroup,
    method: &Method,
    tail: &str,
    done: &str,
    body: &Value,
) -> Result<(), Failure> {
    let path = of_group(route, group, tail)?;
    let (mut count, mut in_flight, mut refused) = (0, Vec::new(), Vec::new());
    let mut cursor: Option<String> = None;
    loop {
        let query =
            cursor.as_ref().map(|cursor| format!("?cursor={}", byte_serialize(cursor.as_bytes()).collect::<String>()));
        let call = format!("{path}{}", query.unwrap_or_default());
        let mut reply = session.client.call(method.clone(), &call, Some(body.to_string().into())).await?;
        count += reply[done].as_u64().unwrap_or(0);
        for (field, list) in [("in_flight", &mut in_flight), ("refused", &mut refused)] {
            if let Value::Array(some) = reply[field].take() {
                list.extend(some);
            }
        }
        cursor = reply["cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    for one in &refused {
        let [id, detail] = ["id", "detail"].map(|name| list::cell(one, name));
        output::note(format_args!("`{id}` stays: {detail}"));
    }
    let stays = if in_flight.is_empty() { String::new() } else { format!(", {} in flight", in_flight.len()) };
    let text = format!("{done} {count} of group {group} of {route}{stays}");
    let json = json!({ done: count, "in_flight": in_flight, "refused": refused });
    output::result(session.global, json, text)
}
