//! `punctual list ROUTE`; the filter of all listings of messages, and the pages of all listings.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use url::form_urlencoded::Serializer;

use super::{
    client::{Session, of_route},
    failure::Failure,
    output, schedule, table,
};
use crate::time::UnixMillis;

#[derive(Args)]
pub struct ListArguments {
    route: String,
    #[arg(long, value_enum, default_value = "pending")]
    state: State,
    /// How messages ended, with `--state ended`
    #[arg(long, value_enum)]
    outcome: Option<Outcome>,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    page: PageArguments,
}

#[derive(Args)]
pub struct PageArguments {
    /// By time: dead letters and messages that ended are listed newest first by default, others oldest first
    #[arg(long, value_enum)]
    order: Option<Order>,
    /// Maximum number of messages
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Order {
    /// Oldest first
    Asc,
    /// Newest first
    Desc,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    /// Pending messages, by the time of the next attempt
    Pending,
    /// Pending messages with failed attempts
    Retrying,
    /// Messages in flight
    Unack,
    /// Dead letters, by the time of death
    Dead,
    /// Messages that ended, of a route with a history
    Ended,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Outcome {
    Delivered,
    Dead,
    Cancelled,
    Expired,
    Replaced,
}

pub async fn list(session: &Session<'_>, arguments: ListArguments) -> Result<(), Failure> {
    let (state, columns) = match arguments.state {
        State::Pending => ("pending", &["id", "deliver_at", "attempts", "last_error"][..]),
        State::Retrying => ("retrying", &["id", "deliver_at", "attempts", "last_error"][..]),
        State::Unack => ("unack", &["id", "due", "attempts", "last_error"][..]),
        State::Dead => ("dead", DEAD_COLUMNS),
        State::Ended => ("ended", &["id", "outcome", "ended_at", "attempts", "lateness", "answer"][..]),
    };
    let ListArguments { route, filter, page, outcome, .. } = &arguments;
    Listing { outcome: *outcome, ..Listing::page(route, state, filter, page) }.show(session, columns).await
}

/// Columns of a table of dead letters.
pub const DEAD_COLUMNS: &[&str] = &["id", "died_at", "attempts", "last_error"];

/// The options that select messages.
#[derive(Args, Clone, Default)]
pub struct Filter {
    /// Reason of the death: rejected, attempts, expired, crash, orphan, undecodable or invalid
    #[arg(long)]
    reason: Option<String>,
    /// A part of the last error, case-sensitive
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
    /// From this time on: RFC 3339, milliseconds since 1970, or a duration before now such as `2h`
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Before this time, in the same formats
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Messages of this flow; `@` is the empty one
    #[arg(long, value_name = "FLOW")]
    flow: Option<String>,
    /// Messages of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Messages with this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Messages with this header, `Name: value`. Repeat it for more of them: all must match
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// A part of the payload, case-sensitive
    #[arg(long, value_name = "TEXT")]
    payload_contains: Option<String>,
    /// Pending messages that are due within this duration from now, e.g. `2h`
    #[arg(long, value_name = "DURATION", conflicts_with = "until")]
    due_within: Option<humantime::Duration>,
}

impl Filter {
    /// Names and values of the API's query parameters.
    ///
    /// # Errors
    /// `Usage` for a header without a name and value.
    pub fn fields(&self) -> Result<Vec<(Cow<'static, str>, String)>, Failure> {
        #[expect(clippy::disallowed_methods, reason = "`2h` is before the time of the operator's own clock")]
        let now = SystemTime::now();
        let at = |text: &String| time(text, now);
        let within = |after: humantime::Duration| shown(now + *after);
        let fields = [
            ("reason", self.reason.clone()),
            ("contains", self.contains.clone()),
            ("since", self.since.as_ref().map(at)),
            ("until", self.until.as_ref().map(at).or_else(|| within(self.due_within?))),
            ("flow", self.flow.clone()),
            ("group", self.group.clone()),
            ("key", self.key.clone()),
            ("payload_contains", self.payload_contains.clone()),
        ];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
        let headers = schedule::headers(&self.headers)?;
        Ok(fields.chain(headers.into_iter().map(|(name, value)| (format!("header.{name}").into(), value))).collect())
    }

    /// The body of a bulk call; empty if no filter is set.
    ///
    /// # Errors
    /// That of `fields`.
    pub fn body(&self) -> Result<Map<String, Value>, Failure> {
        let mut body = Map::new();
        for (name, value) in self.fields()? {
            match name.strip_prefix("header.") {
                Some(header) => body.entry("header").or_insert_with(|| json!({}))[header] = value.into(),
                None => drop(body.insert(name.into_owned(), value.into())),
            }
        }
        Ok(body)
    }
}

/// A duration becomes that time from now on. The API parses all other texts.
pub fn time_from_now(text: &str) -> String {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    #[expect(clippy::disallowed_methods, reason = "`2h` is after the time of the operator's own clock")]
    let now = SystemTime::now();
    let after = humantime::parse_duration(text).ok().filter(|_| !is_number);
    after.and_then(|after| shown(now.checked_add(after)?)).unwrap_or_else(|| text.to_owned())
}

fn shown(at: SystemTime) -> Option<String> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(UnixMillis::new(u64::try_from(since.as_millis()).ok()?)?.to_rfc3339())
}

/// A duration becomes that time before `now`. The API parses all other texts.
fn time(text: &str, now: SystemTime) -> String {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let ago = humantime::parse_duration(text).ok().filter(|_| !is_number);
    ago.and_then(|ago: Duration| shown(now.checked_sub(ago)?)).unwrap_or_else(|| text.to_owned())
}

/// Maximum number of messages of a page.
const MAX_PAGE: u64 = 1000;

/// A listing of messages.
pub struct Listing<'a> {
    pub route: &'a str,
    pub state: &'static str,
    pub filter: &'a Filter,
    outcome: Option<Outcome>,
    /// `None`: that of the state.
    pub order: Option<Order>,
    /// `None`: all messages.
    pub limit: Option<u64>,
}

impl<'a> Listing<'a> {
    pub fn page(route: &'a str, state: &'static str, filter: &'a Filter, page: &PageArguments) -> Self {
        Self { route, state, filter, outcome: None, order: page.order, limit: Some(page.limit) }
    }

    /// All messages, oldest first or newest first.
    pub fn all(route: &'a str, state: &'static str, filter: &'a Filter, order: Order, limit: Option<u64>) -> Self {
        Self { route, state, filter, outcome: None, order: Some(order), limit }
    }

    fn pages<'b>(&self, path: &'b str) -> Result<Pages<'b>, Failure> {
        let mut query = vec![("state".into(), self.state.to_owned())];
        query.extend(self.order.map(|order| ("order".into(), format!("{order:?}").to_lowercase())));
        query.extend(self.outcome.map(|outcome| ("outcome".into(), format!("{outcome:?}").to_lowercase())));
        query.extend(self.filter.fields()?);
        Ok(Pages { path, name: "messages", query, max_page: MAX_PAGE, limit: self.limit })
    }

    /// That of `Pages`.
    pub async fn read(
        &self,
        session: &Session<'_>,
        each: impl FnMut(Value) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        self.pages(&of_route(self.route, "/messages")?)?.read(session, each).await
    }

    pub async fn show(&self, session: &Session<'_>, columns: &[&str]) -> Result<(), Failure> {
        self.pages(&of_route(self.route, "/messages")?)?.show(session, columns, cell).await
    }
}

/// A listing of the API, page by page.
pub struct Pages<'a> {
    pub path: &'a str,
    /// Name of the field with the entries.
    pub name: &'static str,
    pub query: Vec<(Cow<'static, str>, String)>,
    /// Maximum number of entries of a page.
    pub max_page: u64,
    /// `None`: all entries.
    pub limit: Option<u64>,
}

impl Pages<'_> {
    /// Passes the entries to `each`, in order. Returns whether there are more than `limit`.
    pub async fn read(
        &self,
        session: &Session<'_>,
        mut each: impl FnMut(Value) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let (mut left, mut cursor) = (self.limit, None::<String>);
        loop {
            let page = left.map_or(self.max_page, |left| left.min(self.max_page)).to_string();
            let mut query = Serializer::new(String::new());
            query.append_pair("limit", &page).extend_pairs(&self.query);
            if let Some(cursor) = &cursor {
                query.append_pair("cursor", cursor);
            }
            let path = format!("{}?{}", self.path, query.finish());
            let mut answer = session.client.get(&path).await?;
            let Value::Array(entries) = answer[self.name].take() else {
                return Err(Failure::Failed(format!("{path} answered without {}", self.name)));
            };
            left = left.map(|left| left.saturating_sub(entries.len() as u64));
            entries.into_iter().try_for_each(&mut each)?;
            cursor = answer["cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || left == Some(0) {
                return Ok(cursor.is_some());
            }
        }
    }

    /// Prints the entries: a table with `columns`, which are names of fields, or with `--json` one JSON object per
    /// line. `cell`: text of a field of an entry.
    pub async fn show(
        &self,
        session: &Session<'_>,
        columns: &[&str],
        cell: fn(&Value, &str) -> String,
    ) -> Result<(), Failure> {
        let mut rows = Vec::new();
        let more = self.read(session, |entry| {
            if session.global.json {
                return output::listed(entry);
            }
            rows.push(columns.iter().map(|name| cell(&entry, name)).collect());
            Ok(())
        });
        let more = more.await?;
        if !session.global.json {
            output::listed(titled(columns, &rows))?;
        }
        if more {
            output::note("there are more: --limit");
        }
        Ok(())
    }
}

/// A table of these entries, as `Pages::show` prints it.
pub fn as_table(columns: &[&str], entries: &[Value], cell: fn(&Value, &str) -> String) -> String {
    let row = |entry| columns.iter().map(|name| cell(entry, name)).collect();
    titled(columns, &entries.iter().map(row).collect::<Vec<_>>())
}

/// A table with the names of fields above it.
/// A table with a title for each column.
pub fn titled(columns: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = columns.iter().map(|name| name.replace('_', " ").to_uppercase()).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    table::text(&header, rows)
}

/// Text of a field; `lateness` and `answer` are made of the fields of a message that ended.
pub fn cell(entry: &Value, name: &str) -> String {
    let value = match name {
        "lateness" => return entry["late_ms"].as_u64().map_or_else(|| "-".to_owned(), |late| format!("{late} ms")),
        "answer" if entry["error"].is_string() => &entry["error"],
        "answer" => &entry["status"],
        name => &entry[name],
    };
    match value {
        Value::Null => "-".to_owned(),
        value => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

#[test]
fn a_duration_is_before_now() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    assert_eq!(time("2h", now), "2027-01-15T06:00:00.000Z");
    assert_eq!(time("1799999999000", now), "1799999999000");
    assert_eq!(time("2026-01-01T00:00:00Z", now), "2026-01-01T00:00:00Z");
    assert_eq!(time("yesterday", now), "yesterday");
}
