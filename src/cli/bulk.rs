//! A call on many messages: counts them, asks, and repeats the call until all are done.

use clap::Args;
use serde_json::{Map, Value, json};

use super::{Session, confirm, failure::Failure, ids::MAX_IDS, output, progress};

/// Most messages of one call: so the bar moves, and Ctrl-C ends the work between two calls.
const MESSAGES_PER_CALL: u64 = 10_000;
/// Most messages that a dry run of `purge` counts.
const MAX_COUNTED: u64 = 100_000;

#[derive(Args)]
pub struct BulkArguments {
    /// Most messages
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Only count
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl BulkArguments {
    /// Whether there is an option that a call on one message does not have.
    pub fn is_set(&self) -> bool {
        self.limit.is_some() || self.dry_run
    }
}

/// What is done.
pub struct Bulk<'a> {
    pub path: String,
    /// The selection: each is the body of a call, without `limit` and `dry_run`.
    pub bodies: Vec<Map<String, Value>>,
    /// Such as `redrive`, and `redriven`.
    pub verb: &'a str,
    pub done: &'a str,
    /// Such as `dead letters of web`.
    pub what: String,
}

/// The bodies of calls for these ids.
pub fn bodies_of(ids: &[String]) -> Vec<Map<String, Value>> {
    ids.chunks(MAX_IDS).map(|ids| Map::from_iter([("ids".to_owned(), json!(ids))])).collect()
}

#[derive(Default)]
struct Answer {
    count: u64,
    more: bool,
    /// Of dead messages: those that died before were selected.
    until: Option<Value>,
    /// Where the next call goes on.
    cursor: Option<Value>,
}

impl Bulk<'_> {
    /// The number of messages that were changed, or would be.
    pub async fn run(mut self, session: &Session<'_>, arguments: &BulkArguments) -> Result<u64, Failure> {
        let counted = self.count(session, arguments.limit).await?;
        // With a limit, more than that is no news.
        let is_whole = !counted.more || arguments.limit == Some(counted.count);
        let about = if is_whole { "" } else { "at least " };
        // What dies meanwhile was not asked about.
        if let Some(until) = counted.until {
            for body in self.bodies.iter_mut().filter(|body| !body.contains_key("until")) {
                body.remove("all");
                body.insert("until".into(), until.clone());
            }
        }
        let (Self { verb, what, done, .. }, count) = (&self, counted.count);
        if arguments.dry_run {
            let json = json!({ "count": count, "more": counted.more, "dry_run": true });
            output::result(session.global, json, format_args!("would {verb} {about}{count} {what}"))?;
            return Ok(count);
        }
        if !arguments.yes && count > 0 {
            confirm::ask(&format!("{verb} {about}{count} {what}"))?;
        }
        // No more than was counted: what arrives meanwhile was not asked about.
        let limit = if is_whole { Some(count) } else { arguments.limit };
        let answer = self.act(session, limit).await?;
        let json = json!({ "count": answer.count, "more": answer.more, "dry_run": false });
        let more = if answer.more { "; more remain" } else { "" };
        output::result(session.global, json, format_args!("{done} {} {what}{more}", answer.count))?;
        Ok(answer.count)
    }

    async fn count(&self, session: &Session<'_>, limit: Option<u64>) -> Result<Answer, Failure> {
        let mut counted = Answer::default();
        for body in &self.bodies {
            let mut body = body.clone();
            loop {
                let left = limit.map(|limit| limit - counted.count);
                if left == Some(0) {
                    counted.more = true;
                    return Ok(counted);
                }
                let left = if self.is_bounded() { Some(left.unwrap_or(MAX_COUNTED).min(MAX_COUNTED)) } else { left };
                let answer = self.call(session, &body, left, true).await?;
                counted.count += answer.count;
                counted.until = counted.until.or(answer.until);
                match answer.cursor {
                    Some(cursor) if limit != Some(counted.count) => drop(body.insert("cursor".into(), cursor)),
                    _ => {
                        counted.more |= answer.more;
                        break;
                    }
                }
            }
        }
        Ok(counted)
    }

    /// Whether the API bounds `limit`: that of pending messages does.
    fn is_bounded(&self) -> bool {
        !self.path.contains("/dead/")
    }

    async fn act(&self, session: &Session<'_>, limit: Option<u64>) -> Result<Answer, Failure> {
        let bar = progress::bar(limit);
        let mut all = Answer::default();
        for body in &self.bodies {
            let mut body = body.clone();
            loop {
                let left = limit.map_or(u64::MAX, |limit| limit - all.count);
                if left == 0 {
                    break;
                }
                let answer = self.call(session, &body, Some(left.min(MESSAGES_PER_CALL)), false).await;
                let so_far = all.count;
                let after = |text| format!("{} {so_far} {}, then: {text}", self.done, self.what);
                let answer = answer.map_err(|failure| if so_far == 0 { failure } else { failure.map(after) })?;
                all.count += answer.count;
                all.more = answer.more;
                bar.set_position(all.count);
                if !answer.more {
                    break;
                }
                if let Some(cursor) = answer.cursor {
                    body.insert("cursor".into(), cursor);
                } else if answer.count == 0 {
                    bar.finish_and_clear();
                    let text = "none was found in the time of a call: repeat it";
                    return Err(Failure::Failed(after(text.to_owned())));
                }
            }
        }
        bar.finish_and_clear();
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
        if let Some(limit) = limit {
            body.insert("limit".into(), limit.into());
        }
        body.insert("dry_run".into(), dry_run.into());
        let answer = session.client.post(&self.path, &body.into()).await?;
        match (answer["count"].as_u64(), answer["more"].as_bool()) {
            (Some(count), Some(more)) => {
                let given = |name: &str| answer.get(name).cloned();
                Ok(Answer { count, more, until: given("until"), cursor: given("cursor") })
            }
            _ => Err(Failure::Failed(format!("{} answered without a count: {answer}", self.path))),
        }
    }
}
