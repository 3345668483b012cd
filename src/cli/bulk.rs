//! A call on many messages: counts them, asks for confirmation, and repeats the call until all messages are done.

use std::{collections::HashSet, io};

use clap::Args;
use serde_json::{Map, Value, json};

use super::{client::Session, failure::Failure, global::read_stdin, list, output, progress::Progress};

/// Maximum number of ids of one call.
pub const MAX_IDS: usize = 1000;
/// Maximum number of messages of one call, so that the bar moves and Ctrl-C ends the work between two calls.
const MESSAGES_PER_CALL: u64 = 10_000;
/// Maximum number of messages that a dry run of `purge` counts.
const MAX_COUNTED: u64 = 100_000;
/// Maximum number of missing ids that an error names: finding each takes some 20 calls.
const MAX_NAMED: usize = 10;

/// The ids without repetitions. `-` is replaced by the lines of standard input, which come last.
///
/// # Errors
/// When standard input cannot be read, or has no ids.
pub fn ids(mut given: Vec<String>) -> Result<Vec<String>, Failure> {
    if given.iter().any(|id| id == "-") {
        given.retain(|id| id != "-");
        output::await_stdin("ids, one in each line,");
        let failed = |error: io::Error| Failure::Failed(format!("standard input: {error}"));
        let text = String::from_utf8(read_stdin().map_err(failed)?);
        let text = text.map_err(|_| Failure::Usage("standard input is not UTF-8".into()))?;
        let before = given.len();
        given.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        if given.len() == before {
            return Err(Failure::Usage("standard input has no ids".into()));
        }
    }
    let mut seen = HashSet::new();
    given.retain(|id| seen.insert(id.clone()));
    Ok(given)
}

#[derive(Args)]
pub struct BulkArguments {
    /// Maximum number of messages
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Only count the messages
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

/// A command that changes many messages.
pub struct Bulk<'a> {
    pub path: String,
    pub selection: Selection,
    /// Further fields of the body of a call.
    pub more: Map<String, Value>,
    /// The verb, such as `redrive`, and the word before the number of messages that were changed, such as `redrove`.
    pub verb: &'a str,
    pub done: &'a str,
    /// Singular, such as `dead letter`.
    pub noun: &'a str,
    pub route: &'a str,
    /// The state of the messages: `dead` or `pending`.
    pub state: &'a str,
}

pub enum Selection {
    Ids {
        /// Distinct ids.
        ids: Vec<String>,
        /// Only dead messages that died before this time, or pending ones that were accepted or moved last before it.
        until: Option<Value>,
    },
    /// The body of a call, without `limit` and `dry_run`.
    Where(Map<String, Value>),
}

impl Selection {
    /// The messages with `ids`, all, or those that match `filter`. `until`: that of ids.
    ///
    /// # Errors
    /// `Usage` unless exactly one of them is given.
    pub fn of(
        given: Vec<String>,
        until: Option<Value>,
        all: bool,
        filter: Map<String, Value>,
    ) -> Result<Self, Failure> {
        match (given.is_empty(), all, filter.is_empty()) {
            (false, false, true) => Ok(Self::Ids { ids: ids(given)?, until }),
            (true, true, true) => Ok(Self::Where(Map::from_iter([("all".to_owned(), true.into())]))),
            (true, false, false) => Ok(Self::Where(filter)),
            _ => {
                let text = "select them by ids, by a filter (such as --contains, --until, --group, --key), or with --all: \
                            one of these; ids of dead letters can have --until";
                Err(Failure::Usage(text.into()))
            }
        }
    }

    /// Leaves out pending messages that were accepted or moved from this time on.
    #[must_use]
    pub fn before(mut self, time: Option<String>) -> Self {
        match (&mut self, time) {
            (_, None) => {}
            (Self::Ids { until, .. }, Some(time)) => *until = Some(time.into()),
            (Self::Where(body), Some(time)) => drop(body.insert("before".into(), time.into())),
        }
        self
    }

    /// The id, if it is the only one.
    pub fn one(&self) -> Option<&str> {
        match self {
            Selection::Ids { ids, .. } if ids.len() == 1 => ids.first().map(String::as_str),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Answer {
    count: u64,
    more: bool,
    /// For dead messages: only those that died before this time were selected. For pending ones: those that were accepted
    /// or moved last before it.
    until: Option<Value>,
    /// The position at which the next call continues.
    cursor: Option<Value>,
    /// After a redrive with a rate: the due time after the last one.
    next: Option<Value>,
    /// Messages that could not be moved.
    refused: Vec<Value>,
}

/// Given ids of messages that are not in the state.
#[derive(Default)]
struct Missing {
    count: u64,
    /// The first `MAX_NAMED` ids.
    named: Vec<String>,
    /// Ids that were in the state when they were counted.
    gone: u64,
}

impl Bulk<'_> {
    /// # Errors
    /// `NotFound`, after the other messages were handled, when some of the given ids are not in the state.
    pub async fn run(mut self, session: &Session<'_>, arguments: &BulkArguments) -> Result<(), Failure> {
        let (counted, missing) = match &self.selection {
            Selection::Ids { ids, until } => self.look_up(session, ids, until.clone(), arguments.limit).await?,
            Selection::Where(body) => (self.count(session, body.clone(), arguments.limit).await?, Missing::default()),
        };
        // With a limit it does not matter whether there are more messages.
        let is_whole = !counted.more || arguments.limit == Some(counted.count);
        let about = if is_whole { "" } else { "at least " };
        // Excludes messages that die after the count, because the confirmation does not include them.
        let bound = self.bound();
        match &mut self.selection {
            Selection::Ids { until, .. } => *until = counted.until,
            Selection::Where(body) => {
                if let Some(until) = counted.until.filter(|_| !body.contains_key(bound)) {
                    if bound == "until" {
                        body.remove("all");
                    }
                    body.insert(bound.into(), until);
                }
            }
        }
        let (Self { verb, done, .. }, count) = (&self, counted.count);
        let what = self.what(count);
        if arguments.dry_run {
            let json = json!({ "count": count, "more": counted.more, "dry_run": true });
            output::result(session.global, json, format_args!("would {verb} {about}{what}"))?;
            return self.found(&missing);
        }
        if !arguments.yes && count > 0 {
            output::ask(&format!("{verb} {about}{what}"))?;
        }
        // At most the counted number, because the confirmation does not include later messages.
        let limit = if is_whole { Some(count) } else { arguments.limit };
        let answer = self.act(session, limit).await?;
        let more = answer.more || (counted.more && arguments.limit == Some(answer.count));
        for one in &answer.refused {
            let [id, detail] = ["id", "detail"].map(|name| list::cell(one, name));
            output::note(format_args!("`{id}` stays: {detail}"));
        }
        let json = json!({ "count": answer.count, "more": more, "dry_run": false });
        let remain = if more { "; more remain" } else { "" };
        output::result(session.global, json, format_args!("{done} {}{remain}", self.what(answer.count)))?;
        // Messages that left the state after the count are reported as missing, too; so are dead letters that died
        // again.
        let gone = if more { 0 } else { count.saturating_sub(answer.count) };
        self.found(&Missing { count: missing.count + gone, gone, ..missing })
    }

    /// The bodies of the calls, without `limit` and `dry_run`.
    fn bodies(&self) -> Vec<Map<String, Value>> {
        match &self.selection {
            Selection::Ids { ids, until } => ids.chunks(MAX_IDS).map(|ids| self.body(ids, until.as_ref())).collect(),
            Selection::Where(body) => vec![body.clone()],
        }
    }

    fn body(&self, ids: &[String], until: Option<&Value>) -> Map<String, Value> {
        let until = until.map(|until| (self.bound().to_owned(), until.clone()));
        [("ids".to_owned(), json!(ids))].into_iter().chain(until).collect()
    }

    /// How to continue after an interruption. A shift that is repeated must leave what was moved.
    fn rest(&self) -> String {
        let until = match &self.selection {
            Selection::Ids { until, .. } => until.as_ref(),
            Selection::Where(body) => body.get(self.bound()),
        };
        match until.and_then(Value::as_str) {
            Some(until) if self.state == "pending" => format!("with --before {until} "),
            _ => String::new(),
        }
    }

    /// The field that excludes messages that came into the state after the count.
    fn bound(&self) -> &'static str {
        if self.state == "dead" { "until" } else { "before" }
    }

    /// Number and kind of messages, such as `2 dead letters of web`.
    fn what(&self, count: u64) -> String {
        format!("{} of {}", output::counted(count, self.noun), self.route)
    }

    fn found(&self, missing: &Missing) -> Result<(), Failure> {
        let Missing { count, named, gone } = missing;
        let (Selection::Ids { ids, .. }, 1..) = (&self.selection, *count) else { return Ok(()) };
        let mut text = format!("{count} of {} are not {}", ids.len(), self.state);
        if !named.is_empty() {
            text = format!("{text}: {}", named.join(", "));
        }
        match count - named.len() as u64 {
            rest @ 1.. if !named.is_empty() => text = format!("{text} and {rest} more"),
            _ => {}
        }
        if *gone > 0 {
            let again = if self.state == "dead" { ", or died again" } else { "" };
            text = format!("{text}; {gone} changed state after the count{again}");
        }
        Err(Failure::NotFound(text))
    }

    async fn count(
        &self,
        session: &Session<'_>,
        mut body: Map<String, Value>,
        limit: Option<u64>,
    ) -> Result<Answer, Failure> {
        let mut counted = Answer::default();
        loop {
            let left = limit.map(|limit| limit - counted.count);
            let answer = self.count_once(session, &body, left).await?;
            counted.count += answer.count;
            counted.until = counted.until.or(answer.until);
            match answer.cursor {
                Some(cursor) if limit != Some(counted.count) => drop(body.insert("cursor".into(), cursor)),
                _ => return Ok(Answer { more: answer.more, ..counted }),
            }
        }
    }

    /// Returns how many of `ids` are in the state, `limit` at most, and which are not. Without `until`, that of the first
    /// reply is used.
    async fn look_up(
        &self,
        session: &Session<'_>,
        ids: &[String],
        mut until: Option<Value>,
        limit: Option<u64>,
    ) -> Result<(Answer, Missing), Failure> {
        let (mut found, mut missing) = (0, Missing::default());
        for chunk in ids.chunks(MAX_IDS) {
            let count = self.look_up_once(session, chunk, &mut until).await?;
            found += count;
            missing.count += chunk.len() as u64 - count;
            // Bisection: each part with the number of its ids in the state. The first part is searched first.
            let mut parts = vec![(chunk, count)];
            while let Some((part, count)) = parts.pop()
                && missing.named.len() < MAX_NAMED
            {
                if count == 0 {
                    let left = MAX_NAMED - missing.named.len();
                    missing.named.extend(part.iter().take(left).cloned());
                } else if count < part.len() as u64 {
                    let (first, second) = part.split_at(part.len() / 2);
                    let of_first = self.look_up_once(session, first, &mut until).await?;
                    parts.push((second, count.saturating_sub(of_first)));
                    parts.push((first, of_first));
                }
            }
        }
        let count = limit.map_or(found, |limit| limit.min(found));
        Ok((Answer { count, more: found > count, until, ..Answer::default() }, missing))
    }

    async fn look_up_once(
        &self,
        session: &Session<'_>,
        ids: &[String],
        until: &mut Option<Value>,
    ) -> Result<u64, Failure> {
        let answer = self.count_once(session, &self.body(ids, until.as_ref()), None).await?;
        *until = until.take().or(answer.until);
        if answer.more {
            return Err(Failure::Failed("they were not counted in the time of a call: repeat it".into()));
        }
        Ok(answer.count)
    }

    async fn count_once(
        &self,
        session: &Session<'_>,
        body: &Map<String, Value>,
        limit: Option<u64>,
    ) -> Result<Answer, Failure> {
        // The API limits `limit` for pending messages.
        let is_bounded = !self.path.contains("/dead/");
        let limit = if is_bounded { Some(limit.unwrap_or(MAX_COUNTED).min(MAX_COUNTED)) } else { limit };
        self.call(session, body, limit, true).await
    }

    async fn act(&self, session: &Session<'_>, limit: Option<u64>) -> Result<Answer, Failure> {
        let so_far = |count: u64| format!("{} {}", self.done, self.what(count));
        let rest = format!("repeat the command {}for the rest", self.rest());
        let progress = Progress::new(limit, so_far(0), format!("or a few more: {rest}"));
        let mut all = Answer::default();
        let mut next = None;
        for mut body in self.bodies() {
            loop {
                body.extend(next.take().map(|next| ("start".to_owned(), next)));
                let left = limit.map_or(u64::MAX, |limit| limit - all.count);
                if left == 0 {
                    break;
                }
                let before = all.count;
                let after = |text| format!("{} or a few more, then: {text}; {rest}", so_far(before));
                let answer = self.call(session, &body, Some(left.min(MESSAGES_PER_CALL)), false).await;
                let is_first = before == 0 && self.rest().is_empty();
                let answer = answer.map_err(|failure| if is_first { failure } else { failure.map(after) })?;
                all.count += answer.count;
                all.more = answer.more;
                next = answer.next;
                all.refused.extend(answer.refused);
                progress.reached(all.count, so_far(all.count));
                if !answer.more {
                    break;
                }
                if let Some(cursor) = answer.cursor {
                    body.insert("cursor".into(), cursor);
                } else if answer.count == 0 {
                    let text = "none was found in the time of a call: repeat it";
                    return Err(Failure::Failed(after(text.to_owned())));
                }
            }
        }
        Ok(all)
    }

    async fn call(
        &self,
        session: &Session<'_>,
        body: &Map<String, Value>,
        limit: Option<u64>,
        dry_run: bool,
    ) -> Result<Answer, Failure> {
        let mut body = body.clone();
        for (name, value) in &self.more {
            body.entry(name).or_insert_with(|| value.clone());
        }
        if let Some(limit) = limit {
            body.insert("limit".into(), limit.into());
        }
        body.insert("dry_run".into(), dry_run.into());
        let answer = session.client.post(&self.path, &body.into()).await?;
        match (answer["count"].as_u64(), answer["more"].as_bool()) {
            (Some(count), Some(more)) => {
                let given = |name: &str| answer.get(name).cloned();
                let refused = answer["refused"].as_array().cloned().unwrap_or_default();
                let (until, cursor, next) = (given(self.bound()), given("cursor"), given("next"));
                Ok(Answer { count, more, until, cursor, next, refused })
            }
            _ => Err(Failure::Failed(format!("{} answered without a count: {answer}", self.path))),
        }
    }
}
