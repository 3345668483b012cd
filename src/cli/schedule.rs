//! `punctual schedule ROUTE`: one message.

use std::{collections::BTreeMap, path::PathBuf};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use reqwest::Method;
use serde::Serialize;

use super::{
    Session,
    client::{CallError, of_route},
    failure::Failure,
    output, read_stdin,
};
use crate::api::ulids;

#[derive(Args)]
pub struct ScheduleArguments {
    route: String,
    /// The payload as text; without it and `--payload-file` it is read from standard input
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
    /// Any bytes, and no content type by default.
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
        (None, _) => read_stdin().map_err(|error| Failure::Failed(error.to_string()))?,
    };
    Ok(Message {
        // Made here, so that a call without an answer can be repeated.
        id: arguments.id.unwrap_or_else(|| ulids()().as_str().to_owned()),
        delay: arguments.delay,
        deliver_at: arguments.deliver_at,
        payload_base64: BASE64_STANDARD.encode(payload),
        key: arguments.key,
        headers,
        content_type: arguments.content_type,
        max_attempts: arguments.max_attempts,
        expires_at: arguments.expires_at,
        on_conflict: if arguments.replace { "replace" } else { "keep" },
    })
}
