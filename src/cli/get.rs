//! `punctual get ROUTE ID`.

use clap::Args;
use serde_json::Value;

use super::{Session, client::of_message, failure::Failure, output, table};

/// What comes first, in this order; the payload is last.
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

pub async fn run(session: &Session<'_>, arguments: GetArguments) -> Result<(), Failure> {
    let message = session.client.get(&of_message(&arguments.route, &arguments.id, "")?).await?;
    let text = text(&message);
    output::result(session.global, message, text)
}

fn text(message: &Value) -> String {
    let fields = message.as_object().into_iter().flatten();
    let shown = fields.filter(|(_, value)| !value.is_null() && value.as_object().is_none_or(|inner| !inner.is_empty()));
    let mut shown: Vec<(&String, &Value)> = shown.collect();
    let place = |name: &str| {
        let first = FIRST.iter().position(|first| *first == name);
        (first.unwrap_or(FIRST.len()), name.starts_with("payload"))
    };
    shown.sort_by_key(|(name, _)| place(name));
    let width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), table::harmless);
        format!("{name:width$}  {value}")
    };
    shown.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_payload_is_last_and_empty_fields_are_left_out() {
    let message =
        serde_json::json!({ "payload": "x", "zone": 1, "id": "a", "key": null, "headers": {}, "state": "dead" });
    assert_eq!(text(&message), "id       a\nstate    dead\nzone     1\npayload  x");
}
