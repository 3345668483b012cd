//! The filter of a listing, in the query of a call.

use std::collections::BTreeMap;

use super::problem::Problem;
use crate::{
    message::{DeadReason, EndOutcome, State, check_group, parse_flow},
    queue::EndedQuery,
    store::{Filter, Order},
    time::parse_instant,
};

/// The query parameters of a filter that scripts apply.
pub const FILTER_QUERY: &[&str] = &["reason", "contains", "since", "until", "flow", "group"];

/// The beginning of the name of a query parameter for a header.
pub const HEADER: &str = "header.";

/// Maximum length of `contains`, in bytes: that of a stored error.
const MAX_CONTAINS: usize = 512;
/// Maximum length of `payload_contains`, in characters.
const MAX_PAYLOAD_CHARS: usize = 200;
/// Maximum length of a key, in bytes, and of the name and the value of a header: that of a line.
const MAX_LINE: usize = 1024;
/// Maximum number of headers of a filter.
const MAX_HEADERS: usize = 8;

/// The parameters of a query, each at most once.
pub struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// # Errors
    /// 400 for a parameter that comes twice.
    pub fn new(given: Vec<(String, String)>) -> Result<Self, Problem> {
        let mut all = BTreeMap::new();
        for (name, value) in given {
            if all.contains_key(&name) {
                return Err(Problem::bad_request(format!("`{name}` comes twice")));
            }
            all.insert(name, value);
        }
        Ok(Self(all))
    }

    /// # Errors
    /// 400 with the error of `parse`.
    pub fn take<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, Problem> {
        let value = self.0.remove(name).map(|text| parse(&text)).transpose();
        value.map_err(|error| Problem::bad_request(format!("`{name}`: {error}")))
    }

    /// # Errors
    /// 400 for a wrong value.
    pub fn order(&mut self) -> Result<Option<Order>, Problem> {
        self.take("order", |text| match text {
            "asc" => Ok(Order::Ascending),
            "desc" => Ok(Order::Descending),
            _ => Err("is `asc` or `desc`".into()),
        })
    }

    /// Which ends are listed, the latest first by default.
    ///
    /// # Errors
    /// 400 for a wrong value, and for a parameter that ends do not have.
    pub fn ends(&mut self) -> Result<EndedQuery, Problem> {
        if self.0.keys().any(|name| name.starts_with(HEADER) || name == "payload_contains") {
            let text = "the history of a route keeps no headers and no payloads: filter by `key`, `flow` or `group`";
            return Err(Problem::bad_request(text));
        }
        let outcome = self.take("outcome", EndOutcome::parse)?;
        let order = self.order()?.unwrap_or(Order::Descending);
        Ok(EndedQuery { outcome, filter: self.filter(None)?, order })
    }

    /// `state`: `None` for messages that ended.
    ///
    /// # Errors
    /// 400 for a wrong value, and for a parameter that messages of `state` do not have.
    pub fn filter(&mut self, state: Option<State>) -> Result<Filter, Problem> {
        let has = |name: &str| self.0.contains_key(name);
        if has("outcome") {
            return Err(Problem::bad_request("`outcome` is for messages that ended: add `state=ended`"));
        }
        if state != Some(State::Dead) && has("reason") {
            return Err(Problem::bad_request("`reason` is for dead messages: add `state=dead`"));
        }
        if state == Some(State::Unack) && (has("since") || has("until")) {
            return Err(Problem::bad_request("`since` and `until` are not for messages in flight"));
        }
        let names: Vec<String> = self.0.keys().filter(|name| name.starts_with(HEADER)).cloned().collect();
        let header = |name: String| Some((name[HEADER.len()..].to_owned(), self.0.remove(&name)?));
        let headers: Vec<_> = names.into_iter().filter_map(header).collect();
        check_headers(&headers).map_err(|error| Problem::bad_request(format!("`{HEADER}NAME`: {error}")))?;
        let reason = |text: &str| DeadReason::parse(text).ok_or_else(|| DeadReason::unknown(text));
        let owned = |check: fn(&str) -> Result<(), String>| move |text: &str| check(text).map(|()| text.to_owned());
        Ok(Filter {
            reason: self.take("reason", reason)?,
            contains: self.take("contains", owned(check_contains))?,
            since: self.take("since", parse_instant)?,
            until: self.take("until", parse_instant)?,
            retried: false,
            flow: self.take("flow", |text| parse_flow(text).map(str::to_owned))?,
            group: self.take("group", |text| check_group(text).map(|()| text.to_owned()))?,
            key: self.take("key", owned(check_key))?,
            headers,
            payload: self.take("payload_contains", owned(check_payload))?,
        })
    }
}

/// # Errors
/// For a text of another length.
pub fn check_contains(text: &str) -> Result<(), String> {
    check_length(text.len(), MAX_CONTAINS, "bytes")
}

/// # Errors
/// For a text of another length.
pub fn check_key(text: &str) -> Result<(), String> {
    check_length(text.len(), MAX_LINE, "bytes")
}

/// # Errors
/// For a text of another length.
pub fn check_payload(text: &str) -> Result<(), String> {
    check_length(text.chars().count(), MAX_PAYLOAD_CHARS, "characters")
}

/// # Errors
/// For too many headers, and for a name or value of another length.
pub fn check_headers(given: &[(String, String)]) -> Result<(), String> {
    if given.len() > MAX_HEADERS {
        return Err(format!("at most {MAX_HEADERS} headers"));
    }
    given.iter().try_for_each(|(name, value)| {
        check_length(name.len(), MAX_LINE, "bytes of a name")?;
        if value.len() > MAX_LINE { Err(format!("a value has at most {MAX_LINE} bytes")) } else { Ok(()) }
    })
}

fn check_length(length: usize, most: usize, unit: &str) -> Result<(), String> {
    if (1..=most).contains(&length) { Ok(()) } else { Err(format!("has 1 to {most} {unit}")) }
}
