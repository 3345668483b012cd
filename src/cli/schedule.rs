//! `punctual schedule ROUTE`: one message, straight into Redis.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use serde_json::json;

use super::{Global, failure::Failure, open, output, read_stdin};
use crate::{
    api::{schedule_status, ulids},
    message::{MessageId, Metadata, NewMessage, OnConflict},
    store::ScheduleStatus,
    time::{Due, parse_instant},
};

#[derive(Args)]
pub struct ScheduleArguments {
    route: String,
    /// The payload as text; without it and `--payload-file` it is read from standard input
    #[arg(long, conflicts_with = "payload_file")]
    payload: Option<String>,
    /// A file with the payload
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// From now on, e.g. `5m`, or milliseconds; neither this nor `--deliver-at` means now
    #[arg(long, conflicts_with = "deliver_at")]
    delay: Option<String>,
    /// RFC 3339, or milliseconds since the epoch
    #[arg(long, value_name = "TIME")]
    deliver_at: Option<String>,
    /// 1 to 128 of A-Za-z0-9._:~-; made when absent
    #[arg(long)]
    id: Option<String>,
    #[arg(long)]
    key: Option<String>,
    /// `Name: value`; may be repeated
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    #[arg(long)]
    content_type: Option<String>,
    #[arg(long)]
    max_attempts: Option<u32>,
    /// RFC 3339, or milliseconds since the epoch
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// Replace a message of the same id
    #[arg(long)]
    replace: bool,
}

pub async fn run(global: &Global, arguments: ScheduleArguments) -> Result<(), Failure> {
    let route = arguments.route.clone();
    let message = message(arguments)?;
    let queue = open::queue(global).await?;
    let answers = queue.schedule(&route, "cli", vec![message]).await?;
    let answer = &answers[0];
    match answer.status {
        ScheduleStatus::Over(limit) => return Err(Failure::Failed(format!("`{}`: {}", answer.id, limit.explain()))),
        ScheduleStatus::InFlight => {
            return Err(Failure::Failed(format!("`{}` is in flight and cannot be replaced", answer.id)));
        }
        _ => {}
    }
    let (status, time) = (schedule_status(answer.status), answer.due.to_rfc3339());
    let (field, word) = match answer.status {
        ScheduleStatus::Ended(_) => ("ended_at", "at"),
        _ => ("deliver_at", "for"),
    };
    let json = json!({ "id": answer.id.as_str(), "route": route, field: time, "status": status });
    output::result(global, json, format_args!("{status} {} {word} {time}", answer.id))
}

fn message(arguments: ScheduleArguments) -> Result<NewMessage, Failure> {
    let usage = |option: &'static str| move |text: String| Failure::Usage(format!("--{option}: {text}"));
    let due = match (&arguments.delay, &arguments.deliver_at) {
        (Some(delay), _) => Due::parse_delay(delay).map_err(usage("delay"))?,
        (None, Some(at)) => Due::parse_deliver_at(at).map_err(usage("deliver-at"))?,
        (None, None) => Due::NOW,
    };
    let id = match &arguments.id {
        Some(id) => MessageId::parse(id).map_err(usage("id"))?,
        None => ulids()(),
    };
    let mut headers = BTreeMap::new();
    for header in &arguments.headers {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| Failure::Usage(format!("--header: `{header}` is not `Name: value`")))?;
        headers.insert(name.trim().to_owned(), value.trim().to_owned());
    }
    let expires_at = arguments.expires_at.as_deref().map(parse_instant).transpose().map_err(usage("expires-at"))?;
    let metadata = Metadata {
        headers,
        key: arguments.key,
        content_type: arguments.content_type,
        properties: None,
        origin: None,
        max_attempts: arguments.max_attempts,
        expires_at: expires_at.map(crate::time::UnixMillis::get),
    };
    metadata.validate().map_err(|(field, text)| Failure::Usage(format!("{field}: {text}")))?;
    let payload = match (arguments.payload, arguments.payload_file) {
        (Some(text), _) => text.into_bytes(),
        (None, Some(path)) => {
            std::fs::read(&path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?
        }
        (None, None) => read_stdin().map_err(|error| Failure::Failed(error.to_string()))?,
    };
    let on_conflict = if arguments.replace { OnConflict::Replace } else { OnConflict::Keep };
    Ok(NewMessage { id, due, payload: payload.into(), metadata, on_conflict, record: None })
}
