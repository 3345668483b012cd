//! `punctual get`, `move`, `deliver` and `cancel`: messages by their ids.

use clap::Args;
use reqwest::Method;
use serde_json::{Map, Value, json};
use url::form_urlencoded::byte_serialize;

use super::{
    bulk::{self, Bulk, BulkArguments, Selection},
    client::{Session, of_message, of_route},
    failure::Failure,
    list::{self, cell, titled},
    output, table,
};

/// The first fields, in this order; the payload is last.
const FIRST: [&str; 10] = [
    "id",
    "route",
    "state",
    "waits_for",
    "due",
    "deliver_at",
    "next_attempt_at",
    "attempts",
    "last_error",
    "last_error_at",
];

#[derive(Args)]
pub struct GetArguments {
    route: String,
    id: String,
}

pub async fn get(session: &Session<'_>, arguments: GetArguments) -> Result<(), Failure> {
    let message = session.client.get(&of_message(&arguments.route, &arguments.id, "")?).await?;
    let text = shown(&message);
    output::result(session.global, message, text)
}

#[derive(Args)]
pub struct FindArguments {
    id: String,
}

/// Shows a message of any route.
pub async fn find(session: &Session<'_>, arguments: FindArguments) -> Result<(), Failure> {
    const COLUMNS: &[&str] = &["route", "state", "deliver_at", "ended_at", "attempts", "last_error"];
    let id: String = byte_serialize(arguments.id.as_bytes()).collect();
    let answer = session.client.get(&format!("/v1/messages/{id}")).await?;
    let entries = |name: &str| answer[name].as_array().cloned().unwrap_or_default();
    let (messages, failed) = (entries("messages"), entries("failed"));
    for one in &failed {
        let [route, error] = ["route", "error"].map(|name| cell(one, name));
        output::note(format_args!("{route}: {error}"));
    }
    if messages.is_empty() {
        let text =
            format!("`{}` is on no route: it is delivered and not remembered, cancelled, or unknown", arguments.id);
        return Err(if failed.is_empty() { Failure::NotFound(text) } else { Failure::Failed(text) });
    }
    output::result(session.global, answer, list::as_table(COLUMNS, &messages, cell))
}

/// The fields, then a table of the attempts that failed and one of the earlier ends.
fn shown(message: &Value) -> String {
    let mut rest = message.clone();
    let mut take = |name: &str| rest.as_object_mut().and_then(|fields| fields.remove(name)).unwrap_or_default();
    let tables = [
        (take("attempt_log"), &["at", "outcome", "status", "duration_ms", "instance", "error"][..]),
        (take("history"), &["ended_at", "outcome", "attempts", "lateness", "answer", "scheduled_by", "cancelled_by"]),
    ];
    let mut text = fields(&rest, &FIRST);
    for ((entries, columns), title) in tables.iter().zip(["failed attempts", "ends, the latest first"]) {
        let rows: Vec<Vec<String>> = entries
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| columns.iter().map(|name| cell(one, name)).collect())
            .collect();
        if !rows.is_empty() {
            text = format!("{text}\n\n{title}\n{}", titled(columns, &rows));
        }
    }
    text
}

/// One line for each field with a value: those of `first` in its order, then the others, and the payload last.
pub fn fields(entry: &Value, first: &[&str]) -> String {
    let all = entry.as_object().into_iter().flatten();
    let shown = all.filter(|(_, value)| !value.is_null() && value.as_object().is_none_or(|inner| !inner.is_empty()));
    let mut shown: Vec<(&String, &Value)> = shown.collect();
    let place = |name: &str| {
        let at = first.iter().position(|first| *first == name);
        (at.unwrap_or(first.len()), name.starts_with("payload"))
    };
    shown.sort_by_key(|(name, _)| place(name));
    let width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), table::harmless);
        format!("{name:width$}  {value}")
    };
    shown.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[derive(Args)]
pub struct MoveArguments {
    #[command(flatten)]
    of: Chosen,
    #[command(flatten)]
    due: DueArguments,
}

/// Pending messages of a route.
#[derive(Args)]
struct Chosen {
    route: String,
    /// Ids. One message needs no confirmation. `-`: one per line on standard input
    ids: Vec<String>,
    /// All pending messages, in the order of their due times
    #[arg(long)]
    all: bool,
    /// Only messages that were accepted or moved last before this time: RFC 3339, or milliseconds since 1970. An
    /// interrupted command names it
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    #[command(flatten)]
    filter: list::Filter,
    #[command(flatten)]
    bulk: BulkArguments,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct DueArguments {
    /// By a duration with a sign, e.g. `+2h` or `-30m`, from the time of each message
    #[arg(long, allow_hyphen_values = true)]
    shift: Option<String>,
    /// From now, e.g. `5m`, or milliseconds
    #[arg(long)]
    delay: Option<String>,
    /// RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME")]
    deliver_at: Option<String>,
}

impl DueArguments {
    /// The field of a request.
    pub fn field(self) -> (&'static str, Option<String>) {
        match (self.shift, self.delay, self.deliver_at) {
            (Some(shift), ..) => ("shift", Some(shift)),
            (None, Some(delay), _) => ("delay", Some(delay)),
            (None, None, deliver_at) => ("deliver_at", deliver_at),
        }
    }
}

pub async fn move_to(session: &Session<'_>, arguments: MoveArguments) -> Result<(), Failure> {
    let MoveArguments { of: Chosen { route, ids, all, before, filter, bulk }, due } = arguments;
    let (name, value) = due.field();
    let only = name != "shift" && !bulk.dry_run && before.is_none();
    let selection = Selection::of(ids, None, all, filter.body()?)?.before(before);
    if let Some(id) = selection.one().filter(|_| only) {
        let path = of_message(&route, id, "")?;
        let body = json!({ name: value }).to_string();
        let reply = session.client.call(Method::PATCH, &path, Some(body.into())).await?;
        return output::scheduled(session.global, reply);
    }
    let more = Map::from_iter([(name.to_owned(), value.into())]);
    change(session, &route, selection, more, ("move", "move", "moved"), &bulk).await
}

/// `call`: that of the API, with its verb and participle.
async fn change(
    session: &Session<'_>,
    route: &str,
    selection: Selection,
    more: Map<String, Value>,
    (call, verb, done): (&str, &str, &str),
    arguments: &BulkArguments,
) -> Result<(), Failure> {
    let path = of_route(route, &format!("/{call}"))?;
    let work = Bulk { path, selection, more, verb, done, noun: "pending message", route, state: "pending" };
    work.run(session, arguments).await
}

#[derive(Args)]
pub struct DeliverArguments {
    route: String,
    /// Ids of messages; `-`: one per line on standard input
    #[arg(required = true)]
    ids: Vec<String>,
}

/// Continues with the other messages after one that cannot be delivered.
pub async fn deliver(session: &Session<'_>, arguments: DeliverArguments) -> Result<(), Failure> {
    let mut failure = None;
    for id in bulk::ids(arguments.ids)? {
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

#[derive(Args)]
pub struct CancelArguments {
    #[command(flatten)]
    of: Chosen,
}

/// One dead letter is purged.
pub async fn cancel(session: &Session<'_>, arguments: CancelArguments) -> Result<(), Failure> {
    let Chosen { route, ids, all, before, filter, bulk } = arguments.of;
    let selection = Selection::of(ids, None, all, filter.body()?)?.before(before);
    match selection.one() {
        Some(id) => cancel_one(session, &route, id, bulk.dry_run).await,
        None => change(session, &route, selection, Map::new(), ("purge", "cancel", "cancelled"), &bulk).await,
    }
}

async fn cancel_one(session: &Session<'_>, route: &str, id: &str, dry_run: bool) -> Result<(), Failure> {
    let path = of_message(route, id, "")?;
    if !dry_run {
        let answer = session.client.call(Method::DELETE, &path, None).await?;
        let done = if answer["status"] == "purged" { "purged" } else { "cancelled" };
        return output::result(session.global, json!({ "count": 1, "status": done }), format_args!("{done} {id}"));
    }
    let message = session.client.get(&path).await?;
    let text = match message["state"].as_str() {
        _ if message["ended_at"].is_string() => return Err(Failure::NotFound(format!("`{id}` has ended"))),
        Some("pending") => format!("would cancel {id}"),
        Some("dead") => format!("would purge {id}, which is dead"),
        Some("unack") => return Err(Failure::Failed(format!("`{id}` is being delivered at this moment"))),
        _ => return Err(Failure::NotFound(format!("`{id}` is delivered, cancelled or unknown"))),
    };
    output::result(session.global, json!({ "count": 1, "dry_run": true }), text)
}

#[test]
fn the_payload_is_last_and_empty_fields_are_left_out() {
    let message =
        serde_json::json!({ "payload": "x", "zone": 1, "id": "a", "key": null, "headers": {}, "state": "dead" });
    assert_eq!(fields(&message, &FIRST), "id       a\nstate    dead\nzone     1\npayload  x");
}
