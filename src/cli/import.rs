//! `punctual import ROUTE`: messages from NDJSON. Every message has an id, so that an import that broke off can be repeated.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use indicatif::ProgressBar;
use reqwest::Method;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::time::sleep;

use super::{
    Session,
    client::{CallError, of_route},
    failure::Failure,
    ids::MAX_IDS,
    output, progress,
};

/// Bounds of one call: as many messages as the API takes, and half of the bytes.
const MAX_MESSAGES: usize = MAX_IDS;
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Calls for one batch that are answered with 503 before the import ends.
const MAX_TRIES: u32 = 10;

/// What `dead export` and `list --json` show beside the fields of a new message.
const NOT_SCHEDULED: [&str; 9] =
    ["route", "state", "attempts", "last_error", "last_error_at", "died_at", "due", "next_attempt_at", "origin"];

#[derive(Args)]
pub struct ImportArguments {
    route: String,
    /// NDJSON: on each line a message as the API takes it, with an `id`, or as `dead export` wrote it; `-`, or nothing, is
    /// standard input
    file: Option<PathBuf>,
}

pub async fn run(session: &Session<'_>, arguments: ImportArguments) -> Result<(), Failure> {
    let file = arguments.file.filter(|path| path.as_os_str() != "-");
    let place = file.as_ref().map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let input: Box<dyn BufRead> = match &file {
        Some(path) => {
            Box::new(BufReader::new(File::open(path).map_err(|error| Failure::Usage(format!("{place}: {error}")))?))
        }
        None => Box::new(io::stdin().lock()),
    };
    let bar = progress::bar(None);
    let mut import = Import {
        session,
        path: of_route(&arguments.route, "/messages")?,
        batch: Batch::default(),
        counts: BTreeMap::new(),
        bar: bar.clone(),
    };
    let read = import.read(input).await;
    bar.finish_and_clear();
    let counts = std::mem::take(&mut import.counts);
    if let Err(failure) = read {
        let done = if counts.is_empty() { "nothing".to_owned() } else { shown(&counts) };
        return Err(
            failure.map(|text| format!("{place}: {text}\nbefore that: {done}; repeat the import, it doubles nothing"))
        );
    }
    output::result(session.global, json!(counts), shown(&counts))?;
    let refused: u64 = counts.iter().filter(|(status, _)| is_refused(status)).map(|(_, count)| count).sum();
    if refused > 0 { Err(Failure::Failed(format!("{refused} messages were not scheduled"))) } else { Ok(()) }
}

/// Whether a message of this status is not there.
fn is_refused(status: &str) -> bool {
    status.starts_with("limit_") || status == "in_flight"
}

fn shown(counts: &BTreeMap<String, u64>) -> String {
    let counts: Vec<String> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    if counts.is_empty() { "no messages".to_owned() } else { counts.join(", ") }
}

/// Messages of one call, and their lines.
#[derive(Default)]
struct Batch {
    messages: Vec<Box<RawValue>>,
    lines: Vec<usize>,
    bytes: usize,
}

struct Import<'a> {
    session: &'a Session<'a>,
    path: String,
    batch: Batch,
    /// By status.
    counts: BTreeMap<String, u64>,
    bar: ProgressBar,
}

impl Import<'_> {
    async fn read(&mut self, input: impl BufRead) -> Result<(), Failure> {
        for (index, line) in input.lines().enumerate() {
            let line = line.map_err(|error| Failure::Failed(error.to_string()))?;
            if line.trim().is_empty() {
                continue;
            }
            let number = index + 1;
            let message = message(&line).map_err(|text| Failure::Usage(format!("line {number}: {text}")))?;
            let bytes = message.get().len();
            if self.batch.messages.len() == MAX_MESSAGES || self.batch.bytes + bytes > MAX_BYTES {
                self.send().await?;
            }
            self.batch.bytes += bytes;
            self.batch.messages.push(message);
            self.batch.lines.push(number);
        }
        self.send().await
    }

    async fn send(&mut self) -> Result<(), Failure> {
        let Batch { messages, lines, .. } = std::mem::take(&mut self.batch);
        if messages.is_empty() {
            return Ok(());
        }
        let body = serde_json::to_vec(&messages).expect("JSON");
        let reply = self.call(body).await.map_err(|error| failure(error, &lines))?;
        let results = reply["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        if results.len() != lines.len() {
            return Err(Failure::Failed(format!("{} results for {} messages", results.len(), lines.len())));
        }
        for result in results {
            let status = result["status"].as_str().unwrap_or("unknown");
            *self.counts.entry(status.to_owned()).or_default() += 1;
        }
        self.bar.inc(lines.len() as u64);
        Ok(())
    }

    /// Waits where the API asks for it: at the rate of the token, and during an outage of Redis.
    async fn call(&self, body: Vec<u8>) -> Result<Value, CallError> {
        let mut tries = 0;
        loop {
            let error = match self.session.client.call(Method::POST, &self.path, Some(body.clone())).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let CallError::Refused(refusal) = &error else { return Err(error) };
            let is_busy = refusal.status == 503 || refusal.kind == "limit-rate";
            tries += u32::from(refusal.status == 503);
            match refusal.retry_after.filter(|_| is_busy && tries < MAX_TRIES) {
                Some(seconds) => sleep(Duration::from_secs(seconds)).await,
                None => return Err(error),
            }
        }
    }
}

/// Names the lines in place of the indices.
fn failure(error: CallError, lines: &[usize]) -> Failure {
    if let CallError::Refused(refusal) = &error
        && !refusal.fields.is_empty()
    {
        let line = |(pointer, detail): &(String, String)| {
            let (index, field) = pointer.trim_start_matches('/').split_once('/').unwrap_or((pointer, ""));
            let number = index.trim_start_matches('/').parse::<usize>().ok().and_then(|index| lines.get(index));
            let at = number.map_or_else(|| pointer.clone(), |number| format!("line {number}"));
            if field.is_empty() { format!("{at}: {detail}") } else { format!("{at}: {field}: {detail}") }
        };
        return Failure::Usage(refusal.fields.iter().map(line).collect::<Vec<_>>().join("\n"));
    }
    let (first, last) = (lines.first().copied().unwrap_or(0), lines.last().copied().unwrap_or(0));
    Failure::from(error).map(|text| format!("lines {first} to {last}: {text}"))
}

/// A message as the API takes it; numbers stay as they are written.
fn message(line: &str) -> Result<Box<RawValue>, String> {
    let fields: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(line).map_err(|error| format!("not a JSON object: {error}"))?;
    if fields.get("id").is_none_or(|id| !id.get().starts_with('"')) {
        return Err("has no `id`, without which a repeated import would double it".to_owned());
    }
    if fields.contains_key("unreadable") {
        return Err("its stored body could not be read, so there is no payload".to_owned());
    }
    // A new message has no state; whatever else it has, the API checks.
    if !fields.contains_key("state") {
        return RawValue::from_string(line.trim().to_owned()).map_err(|error| error.to_string());
    }
    let kept = fields.into_iter().filter(|(name, _)| !NOT_SCHEDULED.contains(&&**name));
    let kept: Map<String, Value> = kept
        .map(|(name, value)| Ok((name, serde_json::from_str(value.get())?)))
        .collect::<Result<_, serde_json::Error>>()
        .map_err(|error| error.to_string())?;
    serde_json::value::to_raw_value(&kept).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_message_stays_as_it_is_written_and_an_exported_one_loses_its_state() {
        let new = r#"{"id": "a", "payload": 1.10, "dely": 1}"#;
        assert_eq!(message(new).unwrap().get(), new);
        let exported = r#"{"id":"a","state":"dead","route":"r","attempts":3,"payload":"x","headers":{}}"#;
        assert_eq!(message(exported).unwrap().get(), r#"{"headers":{},"id":"a","payload":"x"}"#);
        for wrong in [r#"{"payload":1}"#, r#"{"id":7}"#, "[]", "{", r#"{"id":"a","unreadable":"lost"}"#] {
            assert!(message(wrong).is_err(), "{wrong}");
        }
    }
}
