//! `punctual schedule ROUTE`: one message.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal},
    path::PathBuf,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use reqwest::Method;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    client::{CallError, Session, of_route},
    failure::Failure,
    global::read_stdin,
    output,
};
use crate::api::{self, ulids};

#[derive(Args)]
pub struct ScheduleArguments {
    route: String,
    /// The payload as text, also an empty one; without it and `--payload-file` it is read from standard input
    #[arg(long, conflicts_with = "payload_file")]
    payload: Option<String>,
    /// A file with the payload; `-` is standard input
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// From now on, e.g. `5m`, or milliseconds; neither this nor `--deliver-at` means now
    #[arg(long, conflicts_with = "deliver_at", allow_hyphen_values = true)]
    delay: Option<String>,
    /// RFC 3339, or milliseconds since 1970
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
    /// Without it `application/json` for a payload that is JSON, `text/plain; charset=utf-8` for other text, none for other
    /// bytes
    #[arg(long)]
    content_type: Option<String>,
    #[arg(long)]
    max_attempts: Option<u32>,
    /// RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// Replace a message of the same id
    #[arg(long)]
    replace: bool,
}

/// As the API takes it.
#[derive(Serialize)]
struct Message {
    id: String,
    delay: Option<String>,
    deliver_at: Option<String>,
    /// Any bytes.
    payload_base64: String,
    key: Option<String>,
    headers: BTreeMap<String, String>,
    content_type: Option<String>,
    max_attempts: Option<u32>,
    expires_at: Option<String>,
    on_conflict: &'static str,
}

pub async fn run(session: &Session<'_>, arguments: ScheduleArguments) -> Result<(), Failure> {
    let path = of_route(&arguments.route, "/messages")?;
    let message = message(arguments)?;
    let body = serde_json::to_vec(&message).expect("text and numbers");
    let reply = session.client.call(Method::POST, &path, Some(body)).await.map_err(|error| match error {
        CallError::NoAnswer(text) => Failure::Failed(format!(
            "{text}. Whether it was scheduled is unknown: repeat it with `--id {}`",
            message.id
        )),
        other => other.into(),
    });
    output::scheduled(session.global, reply?)
}

/// Standard input. Nothing there is a mistake of a script more often than a payload.
fn given_payload() -> Result<Vec<u8>, Failure> {
    if io::stdin().is_terminal() {
        output::note("waits for the payload on standard input: end it with Ctrl-D, or use --payload");
    }
    let payload = read_stdin().map_err(|error| Failure::Failed(error.to_string()))?;
    if payload.is_empty() {
        return Err(Failure::Usage("standard input has no payload: for an empty one use --payload ''".into()));
    }
    Ok(payload)
}

/// As the API has it for the same payload as JSON or text.
fn content_type(payload: &[u8]) -> Option<&'static str> {
    let text = str::from_utf8(payload).ok()?;
    Some(if serde_json::from_str::<&RawValue>(text).is_ok() { api::JSON } else { api::TEXT })
}

fn message(arguments: ScheduleArguments) -> Result<Message, Failure> {
    let mut headers = BTreeMap::new();
    for header in &arguments.headers {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| Failure::Usage(format!("--header: `{header}` is not `Name: value`")))?;
        if headers.insert(name.trim().to_owned(), value.trim().to_owned()).is_some() {
            return Err(Failure::Usage(format!("--header: `{}` comes twice", name.trim())));
        }
    }
    let payload = match (arguments.payload, arguments.payload_file) {
        (Some(text), _) => text.into_bytes(),
        (None, Some(path)) if path.as_os_str() != "-" => {
            std::fs::read(&path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?
        }
        (None, _) => given_payload()?,
    };
    let content_type = arguments.content_type.or_else(|| content_type(&payload).map(str::to_owned));
    Ok(Message {
        // Made here, so that a call without an answer can be repeated.
        id: arguments.id.unwrap_or_else(|| ulids()().as_str().to_owned()),
        delay: arguments.delay,
        deliver_at: arguments.deliver_at,
        payload_base64: BASE64_STANDARD.encode(payload),
        key: arguments.key,
        headers,
        content_type,
        max_attempts: arguments.max_attempts,
        expires_at: arguments.expires_at,
        on_conflict: if arguments.replace { "replace" } else { "keep" },
    })
}
