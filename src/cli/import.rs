//! `punctual import ROUTE`: schedules messages from NDJSON. Every message has an id, so that an interrupted import can
//! be repeated.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use reqwest::Method;
use serde_json::{Value, json, value::RawValue};
use tokio::time::sleep;

use super::{
    bulk::MAX_IDS,
    client::{CallError, Session, of_route},
    failure::{Failure, Refusal},
    output,
    progress::Progress,
    table,
};
use crate::api::MAX_JSON_BYTES;

/// Bounds of one call: as many messages as the API takes, and half of the bytes that it takes.
const MAX_MESSAGES: usize = MAX_IDS;
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of a message: that of a request with this message alone, in brackets.
const MAX_MESSAGE_BYTES: usize = MAX_JSON_BYTES - 2;
/// Maximum number of 503 replies for one batch before the import fails.
const MAX_TRIES: u32 = 10;

/// Fields that `dead export` and `list --json` add to those of a new message.
const NOT_SCHEDULED: [&str; 14] = [
    "route",
    "state",
    "attempts",
    "last_error",
    "last_error_at",
    "died_at",
    "accepted_at",
    "attempt_log",
    "scheduled_by",
    "history",
    "next_attempt_at",
    "waits_for",
    "down",
    "trace_id",
];

#[derive(Args)]
pub struct ImportArguments {
    route: String,
    /// NDJSON: each line is a message in the format of the API, with an `id`, or a line of `dead export`; standard
    /// input for `-` or by default
    file: Option<PathBuf>,
}

pub async fn run(session: &Session<'_>, arguments: ImportArguments) -> Result<(), Failure> {
    let file = arguments.file.filter(|path| path.as_os_str() != "-");
    let place = file.as_ref().map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let input: Box<dyn BufRead> = if let Some(path) = &file {
        Box::new(BufReader::new(File::open(path).map_err(|error| Failure::Usage(format!("{place}: {error}")))?))
    } else {
        output::await_stdin("messages as NDJSON");
        Box::new(io::stdin().lock())
    };
    let mut import = Import {
        session,
        path: of_route(&arguments.route, "/messages")?,
        counts: BTreeMap::new(),
        progress: Progress::new(None, shown(&BTreeMap::new()), "or a few more; repeat the import, it doubles nothing"),
    };
    let read = import.read(input).await;
    let Import { counts, progress, .. } = import;
    drop(progress);
    if let Err(failure) = read {
        let done = shown(&counts);
        return Err(
            failure.map(|text| format!("{place}: {text}\nbefore that: {done}; repeat the import, it doubles nothing"))
        );
    }
    output::result(session.global, json!(counts), shown(&counts))?;
    if counts.contains_key(EXISTS_DEAD) {
        output::note(format_args!("{EXISTS_DEAD}: they stay dead letters; `dead redrive` schedules them again"));
    }
    let refused: u64 = counts.iter().filter(|(status, _)| is_refused(status)).map(|(_, count)| count).sum();
    let verb = if refused == 1 { "was" } else { "were" };
    let text = || format!("{} {verb} not scheduled", output::counted(refused, "message"));
    if refused > 0 { Err(Failure::Failed(text())) } else { Ok(()) }
}

/// The status of an invalid message.
const INVALID: &str = "invalid";
/// The status of an id that is a dead letter.
const EXISTS_DEAD: &str = "exists_dead";

/// Whether a message with this status was not scheduled.
fn is_refused(status: &str) -> bool {
    status.starts_with("limit_") || status == "in_flight" || status == INVALID
}

fn shown(counts: &BTreeMap<String, u64>) -> String {
    let counts: Vec<String> = counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
    if counts.is_empty() { "no messages".to_owned() } else { counts.join(", ") }
}

/// A line's message.
struct Line {
    number: usize,
    message: Box<RawValue>,
}

struct Import<'a> {
    session: &'a Session<'a>,
    path: String,
    /// Number of messages by status.
    counts: BTreeMap<String, u64>,
    progress: Progress,
}

impl Import<'_> {
    async fn read(&mut self, input: impl BufRead) -> Result<(), Failure> {
        let (mut batch, mut held) = (Vec::new(), 0);
        for (index, line) in input.split(b'\n').enumerate() {
            let line = line.map_err(|error| Failure::Failed(error.to_string()))?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let number = index + 1;
            let message = match message(&line, now()) {
                Ok(message) => message,
                Err(text) => {
                    self.invalid(number, &text);
                    continue;
                }
            };
            let bytes = message.get().len();
            if bytes > MAX_MESSAGE_BYTES {
                self.invalid(number, &format!("has {bytes} bytes, at most {MAX_MESSAGE_BYTES}"));
                continue;
            }
            if batch.len() == MAX_MESSAGES || held + bytes > MAX_BYTES {
                self.send(std::mem::take(&mut batch)).await?;
                held = 0;
            }
            held += bytes;
            batch.push(Line { number, message });
        }
        self.send(batch).await
    }

    /// Sends the batch. Lines that the API refuses are reported and left out.
    async fn send(&mut self, mut batch: Vec<Line>) -> Result<(), Failure> {
        while let (Some(first), Some(last)) = (batch.first(), batch.last()) {
            let place = format!("lines {} to {}", first.number, last.number);
            let refusal = match self.call(&batch).await {
                Ok(reply) => return self.count(&reply, batch.len()),
                Err(CallError::Refused(refusal)) if matches!(refusal.status, 413 | 422) => refusal,
                Err(error) => return Err(Failure::from(error).map(|text| format!("{place}: {text}"))),
            };
            let named = by_index(&refusal);
            if named.is_empty() {
                return Err(Failure::from(refusal).map(|text| format!("{place}: {text}")));
            }
            if named.keys().any(|index| *index >= batch.len()) {
                return Err(Failure::from(refusal).map(|text| format!("{place}: {text}")));
            }
            let mut index = 0..;
            batch.retain(|line| {
                let texts = index.next().and_then(|index| named.get(&index));
                texts.inspect(|texts| self.invalid(line.number, &texts.join("; "))).is_none()
            });
        }
        Ok(())
    }

    fn count(&mut self, reply: &Value, messages: usize) -> Result<(), Failure> {
        let results = reply["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        if results.len() != messages {
            return Err(Failure::Failed(format!(
                "{} for {messages} messages",
                output::counted(results.len() as u64, "result")
            )));
        }
        for result in results {
            let status = match (result["status"].as_str(), result["state"].as_str()) {
                (Some("exists"), Some("dead")) => EXISTS_DEAD,
                (status, _) => status.unwrap_or("unknown"),
            };
            *self.counts.entry(status.to_owned()).or_default() += 1;
        }
        self.progress.reached(self.counts.values().sum(), shown(&self.counts));
        Ok(())
    }

    fn invalid(&mut self, number: usize, text: &str) {
        self.progress.report(&table::harmless(&format!("line {number}: {text}")));
        *self.counts.entry(INVALID.to_owned()).or_default() += 1;
    }

    /// Repeats the call while the API asks for a retry: at the rate limit of the token, and during an outage of Redis.
    async fn call(&self, batch: &[Line]) -> Result<Value, CallError> {
        let messages: Vec<&RawValue> = batch.iter().map(|line| &*line.message).collect();
        let body = serde_json::to_vec(&messages).expect("JSON");
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

/// Errors by the index of their message. The pointers of the refusal begin with that index: `/7/delay`.
fn by_index(refusal: &Refusal) -> BTreeMap<usize, Vec<String>> {
    let mut named: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (pointer, detail) in &refusal.fields {
        let pointer = pointer.trim_start_matches('/');
        let (index, field) = pointer.split_once('/').unwrap_or((pointer, ""));
        let Ok(index) = index.parse() else { continue };
        let text = if field.is_empty() { detail.clone() } else { format!("{field}: {detail}") };
        named.entry(index).or_default().push(text);
    }
    named
}

/// In ms since the epoch, on the clock of this machine.
fn now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "only tells times of expiry that passed long ago")]
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A message in the format of the API; numbers stay as they are written. `now` is in ms since the epoch.
fn message(line: &[u8], now: u64) -> Result<Box<RawValue>, String> {
    let line = str::from_utf8(line).map_err(|error| format!("not UTF-8: {error}"))?;
    let mut fields: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(line).map_err(|error| format!("not a JSON object: {error}"))?;
    if fields.get("id").is_none_or(|id| !id.get().starts_with('"')) {
        return Err("has no `id`, without which a repeated import would double it".to_owned());
    }
    if fields.contains_key("unreadable") {
        return Err("its stored body could not be read, so there is no payload".to_owned());
    }
    // A line without a state is a new message. The API checks its fields.
    if !fields.contains_key("state") {
        return RawValue::from_string(line.trim().to_owned()).map_err(|error| error.to_string());
    }
    // The original due time, if it differs from the time of the next attempt.
    if let Some(due) = fields.remove("due") {
        fields.insert("deliver_at".to_owned(), due);
    }
    let has_type = fields.get("content_type").is_some_and(|text| !["null", r#""""#].contains(&text.get()));
    // As `payload`, a text without a content type would get the default one.
    if let Some(payload) = fields.remove("payload") {
        match serde_json::from_str::<String>(payload.get()) {
            Ok(text) if !has_type => {
                let encoded = serde_json::value::to_raw_value(&BASE64_STANDARD.encode(text)).expect("a string");
                fields.insert("payload_base64".to_owned(), encoded);
            }
            _ => drop(fields.insert("payload".to_owned(), payload)),
        }
    }
    // Without its expiry, an expired message is sent, as by a redrive.
    if fields.get("expires_at").is_some_and(|at| at.get().parse().is_ok_and(|at: u64| at <= now)) {
        fields.remove("expires_at");
    }
    fields.retain(|name, _| !NOT_SCHEDULED.contains(&&**name));
    serde_json::value::to_raw_value(&fields).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_message_stays_as_it_is_written_and_an_exported_one_loses_its_state() {
        let message = |line: &str| message(line.as_bytes(), 1_700_000_000_000).map(|message| message.get().to_owned());
        let new = r#"{"id": "a", "payload": 1.10, "dely": 1}"#;
        assert_eq!(message(new).unwrap(), new);
        let exported =
            r#"{"id":"a","state":"dead","route":"r","attempts":3,"payload":"x","headers":{},"content_type":"t"}"#;
        assert_eq!(message(exported).unwrap(), r#"{"content_type":"t","headers":{},"id":"a","payload":"x"}"#);
        let bare = r#"{"id":"a","state":"pending","due":"D","deliver_at":"A","content_type":null,"payload":"text"}"#;
        let restored = r#"{"content_type":null,"deliver_at":"D","id":"a","payload_base64":"dGV4dA=="}"#;
        assert_eq!(message(bare).unwrap(), restored);
        let expired = |at: u64| format!(r#"{{"expires_at":{at},"id":"a","payload":1,"state":"dead"}}"#);
        assert_eq!(message(&expired(1_700_000_000_000)).unwrap(), r#"{"id":"a","payload":1}"#);
        let later = r#"{"expires_at":1700000000001,"id":"a","payload":1}"#;
        assert_eq!(message(&expired(1_700_000_000_001)).unwrap(), later);
        for wrong in [r#"{"payload":1}"#, r#"{"id":7}"#, "[]", "{", r#"{"id":"a","unreadable":"lost"}"#] {
            assert!(message(wrong).is_err(), "{wrong}");
        }
    }
}
