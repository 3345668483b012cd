//! `punctual schedules`: recurring schedules.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    client::{Session, of_schedule},
    failure::Failure,
    list,
    message::fields,
    output,
    schedule::{content_type, given_payload, headers},
};

const COLUMNS: &[&str] = &["name", "route", "times", "time_zone", "state", "next", "last"];
const RUN_COLUMNS: &[&str] = &["occurrence", "result", "late"];
/// The first fields of a schedule, in this order.
const FIRST: &[&str] = &["name", "route", "managed_by", "cron", "every", "time_zone", "words", "paused", "in_flight"];

#[derive(Args)]
pub struct SchedulesArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List all schedules
    List,
    /// Show a schedule: its message, its next occurrences, its last runs
    Show(NameArguments),
    /// Create a schedule, or replace its definition
    Set(Box<SetArguments>),
    /// Show the next occurrences
    Next(NextArguments),
    /// Deliver an occurrence now; the next one stays as it is
    Run(NameArguments),
    /// Stop the occurrences of a schedule
    Pause(NameArguments),
    /// Resume the occurrences of a schedule
    Resume(NameArguments),
    /// Delete a schedule; its occurrence in flight ends as it is
    Delete(DeleteArguments),
}

#[derive(Args)]
pub struct NameArguments {
    name: String,
}

#[derive(Args)]
pub struct NextArguments {
    name: String,
    /// Number of occurrences, at most 100
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = clap::value_parser!(u64).range(1..=100))]
    count: u64,
}

#[derive(Args)]
pub struct DeleteArguments {
    name: String,
    /// Only show what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

#[derive(Args)]
pub struct SetArguments {
    name: String,
    #[arg(long)]
    route: String,
    #[command(flatten)]
    times: TimesArguments,
    /// IANA name of the time zone of `--cron`; by default UTC
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// RFC 3339, or milliseconds since 1970; no occurrence is before
    #[arg(long, value_name = "TIME")]
    starts_at: Option<String>,
    /// RFC 3339, or milliseconds since 1970; all occurrences are before
    #[arg(long, value_name = "TIME")]
    ends_at: Option<String>,
    /// Maximum time by which each occurrence is delayed, e.g. `30s`
    #[arg(long, value_name = "DURATION")]
    jitter: Option<String>,
    /// Occurrences that could not be sent in time: `skip`, `last`, or `all=N` for the last N; by default `last`
    #[arg(long, value_name = "RULE", value_parser = missed)]
    missed: Option<Value>,
    /// The payload as text, possibly empty; without this and `--payload-base64` it is read from standard input
    #[arg(long, conflicts_with = "payload_base64")]
    payload: Option<String>,
    /// The payload as base64
    #[arg(long, value_name = "BASE64")]
    payload_base64: Option<String>,
    /// By default `application/json` for a payload that is JSON, `text/plain; charset=utf-8` for other text, and none
    /// for other bytes
    #[arg(long)]
    content_type: Option<String>,
    /// `Name: value`; can be repeated
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    #[arg(long)]
    key: Option<String>,
    /// 1 to 128 characters of A-Za-z0-9._:~-; by default that of the route's `flow.key`
    #[arg(long)]
    flow: Option<String>,
    #[arg(long)]
    max_attempts: Option<u32>,
    /// Time after which an occurrence that was not sent becomes a dead letter, e.g. `1h`
    #[arg(long, value_name = "DURATION")]
    expires_after: Option<String>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct TimesArguments {
    /// Five fields, six with seconds first, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Interval, e.g. `5m`: counted from `--starts-at`, otherwise from 1970
    #[arg(long, value_name = "DURATION")]
    every: Option<String>,
}

/// The schedule in the format of the API.
#[derive(Serialize)]
struct Definition {
    route: String,
    cron: Option<String>,
    every: Option<String>,
    time_zone: Option<String>,
    starts_at: Option<String>,
    ends_at: Option<String>,
    jitter: Option<String>,
    missed: Option<Value>,
    /// Base64 of any bytes.
    payload_base64: String,
    content_type: Option<String>,
    headers: BTreeMap<String, String>,
    key: Option<String>,
    flow: Option<String>,
    max_attempts: Option<u32>,
    expires_after: Option<String>,
}

fn missed(text: &str) -> Result<Value, String> {
    match (text, text.split_once('=')) {
        ("skip" | "last", _) => Ok(text.into()),
        (_, Some(("all", number))) => {
            let most = number.parse::<u16>().map_err(|_| format!("`{number}` is not a number of 1 to 1000"))?;
            Ok(json!({ "all": most }))
        }
        _ => Err("is `skip`, `last` or `all=N`".to_owned()),
    }
}

pub async fn run(session: &Session<'_>, arguments: SchedulesArguments) -> Result<(), Failure> {
    match arguments.command {
        Command::List => list_all(session).await,
        Command::Show(NameArguments { name }) => {
            let schedule = session.client.get(&of_schedule(&name, "")?).await?;
            let text = whole(&schedule);
            output::result(session.global, schedule, text)
        }
        Command::Set(arguments) => set(session, *arguments).await,
        Command::Next(NextArguments { name, count }) => {
            let reply = session.client.get(&of_schedule(&name, &format!("/next?count={count}"))?).await?;
            let text = lines(&reply["next"]);
            output::result(session.global, reply, text)
        }
        Command::Run(NameArguments { name }) => {
            let reply = session.client.post(&of_schedule(&name, "/run")?, &json!({})).await?;
            let [id, route] = ["id", "route"].map(|field| list::cell(&reply, field));
            output::result(session.global, reply, format_args!("{name} runs now, as message {id} of {route}"))
        }
        Command::Pause(NameArguments { name }) => steer(session, &name, "pause", "paused").await,
        Command::Resume(NameArguments { name }) => steer(session, &name, "resume", "resumed").await,
        Command::Delete(arguments) => delete(session, arguments).await,
    }
}

async fn list_all(session: &Session<'_>) -> Result<(), Failure> {
    let mut reply = session.client.get("/v1/schedules").await?;
    let Value::Array(schedules) = reply["schedules"].take() else {
        return Err(Failure::Failed("/v1/schedules answered without schedules".into()));
    };
    if session.global.json {
        return schedules.into_iter().try_for_each(output::listed);
    }
    output::listed(list::as_table(COLUMNS, &schedules, cell))
}

fn cell(schedule: &Value, column: &str) -> String {
    match column {
        "times" => match schedule["every"].as_str() {
            Some(every) => format!("every {every}"),
            None => list::cell(schedule, "cron"),
        },
        "state" if schedule["paused"] == true => "paused".to_owned(),
        "state" if schedule["in_flight"] == true => "in flight".to_owned(),
        "state" if schedule["next"].is_null() => "ended".to_owned(),
        "state" => "waits".to_owned(),
        "last" if schedule["last"].is_object() => {
            let last = &schedule["last"];
            format!("{} {}", list::cell(last, "result"), run_cell(last, "occurrence"))
        }
        column => list::cell(schedule, column),
    }
}

/// Text of a field of a run, or of several occurrences that were missed.
fn run_cell(run: &Value, column: &str) -> String {
    match column {
        // The time at which it was noticed that they were missed.
        "occurrence" if run["occurrence"].is_null() => list::cell(run, "at"),
        "result" if run["count"].is_u64() => format!("{} {}", run["count"], list::cell(run, "result")),
        "late" => match run["late_ms"].as_u64() {
            Some(late) => format!("{}.{:03}s", late / 1000, late % 1000),
            None => "-".to_owned(),
        },
        column => list::cell(run, column),
    }
}

/// A table of fields, the next occurrences, and a table of the last runs.
fn whole(schedule: &Value) -> String {
    let mut shown = schedule.clone();
    let parts = ["following", "runs", "last"].map(|name| shown.as_object_mut().and_then(|all| all.remove(name)));
    let [following, runs, _] = parts.map(Option::unwrap_or_default);
    let mut text = fields(&shown, FIRST);
    for (title, rows) in [("NEXT", lines(&following)), ("", runs_table(&runs))] {
        if !rows.is_empty() {
            text = format!("{text}\n\n{title}{}{rows}", if title.is_empty() { "" } else { "\n" });
        }
    }
    text
}

fn lines(times: &Value) -> String {
    let times: Vec<&str> = times.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    times.join("\n")
}

fn runs_table(runs: &Value) -> String {
    match runs.as_array() {
        Some(runs) if !runs.is_empty() => list::as_table(RUN_COLUMNS, runs, run_cell),
        _ => String::new(),
    }
}

async fn set(session: &Session<'_>, arguments: SetArguments) -> Result<(), Failure> {
    let path = of_schedule(&arguments.name, "")?;
    let headers = headers(&arguments.headers)?;
    let payload = match (arguments.payload, arguments.payload_base64) {
        (Some(text), _) => text.into_bytes(),
        (None, Some(text)) => BASE64_STANDARD
            .decode(text.trim())
            .map_err(|error| Failure::Usage(format!("--payload-base64: is not base64: {error}")))?,
        (None, None) => given_payload()?,
    };
    let definition = Definition {
        route: arguments.route,
        cron: arguments.times.cron,
        every: arguments.times.every,
        time_zone: arguments.time_zone,
        starts_at: arguments.starts_at,
        ends_at: arguments.ends_at,
        jitter: arguments.jitter,
        missed: arguments.missed,
        content_type: arguments.content_type.or_else(|| content_type(&payload).map(str::to_owned)),
        payload_base64: BASE64_STANDARD.encode(payload),
        headers,
        key: arguments.key,
        flow: arguments.flow,
        max_attempts: arguments.max_attempts,
        expires_after: arguments.expires_after,
    };
    let body = serde_json::to_vec(&definition).expect("text and numbers");
    let schedule = session.client.call(Method::PUT, &path, Some(body)).await?;
    let [name, route, words, next] = ["name", "route", "words", "next"].map(|field| list::cell(&schedule, field));
    let then = match (schedule["paused"] == true, next) {
        (true, _) => "it is paused".to_owned(),
        (false, next) => format!("next {next}"),
    };
    output::result(session.global, schedule, format_args!("set {name} of {route}: {words}, {then}"))
}

/// `done`: the participle of `call`.
async fn steer(session: &Session<'_>, name: &str, call: &str, done: &str) -> Result<(), Failure> {
    session.client.post(&of_schedule(name, &format!("/{call}"))?, &json!({})).await?;
    output::result(session.global, json!({ "schedule": name, "status": done }), format_args!("{done} {name}"))
}

async fn delete(session: &Session<'_>, arguments: DeleteArguments) -> Result<(), Failure> {
    let DeleteArguments { name, dry_run, yes } = arguments;
    let path = of_schedule(&name, "")?;
    if dry_run || !yes {
        let schedule = session.client.get(&path).await?;
        let what = format!("delete {name} of {}", list::cell(&schedule, "route"));
        if dry_run {
            let json = json!({ "dry_run": true, "schedule": name });
            return output::result(session.global, json, format_args!("would {what}"));
        }
        output::ask(&what)?;
    }
    session.client.call(Method::DELETE, &path, None).await?;
    output::result(session.global, json!({ "schedule": name, "status": "deleted" }), format_args!("deleted {name}"))
}

#[test]
fn a_rule_for_missed_ones_is_a_word_or_a_number() {
    assert_eq!(missed("skip"), Ok(json!("skip")));
    assert_eq!(missed("all=10"), Ok(json!({ "all": 10 })));
    for wrong in ["all", "all=", "all=x", "skip=1", "none"] {
        assert!(missed(wrong).is_err(), "{wrong}");
    }
}
