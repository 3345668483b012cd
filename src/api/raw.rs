//! `POST /v1/routes/{route}/raw`: the body is the payload; the other fields are in the query and the headers. Every
//! invalid parameter and header is found and named.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Path, Query, Request, State},
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use serde::{
    Deserialize,
    de::{IntoDeserializer, value::StrDeserializer},
};

use super::{
    audit::Caller,
    body,
    message_body::{DEBOUNCE_REPLACES, debounce_max},
    post::{VIA, check_expiry, idempotency_key},
    problem::{FieldError, Problem},
    replaced, scheduled,
    state::Api,
    trace,
};
use crate::{
    message::{MessageId, Metadata, NewMessage, OnConflict},
    time::{Due, UnixMillis, parse_instant},
};

/// Stored and sent with the message, like `Content-Type`: a receiver needs it to decode a compressed payload.
const CONTENT_ENCODING: &str = "Content-Encoding";

/// A request header with this prefix becomes a header of the message.
const FORWARD_PREFIX: &str = "punctual-forward-";

/// The query parameters of the call.
pub const QUERY: &[&str] =
    &["delay", "deliver_at", "id", "key", "flow", "group", "max_attempts", "expires_at", "on_conflict", "debounce"];

#[derive(Debug, Default, Deserialize)]
pub struct RawQuery {
    delay: Option<String>,
    deliver_at: Option<String>,
    id: Option<String>,
    key: Option<String>,
    flow: Option<String>,
    group: Option<String>,
    max_attempts: Option<String>,
    expires_at: Option<String>,
    on_conflict: Option<String>,
    debounce: Option<String>,
}

/// Mistakes of a call, each with the name of its parameter or header.
#[derive(Default)]
struct Mistakes {
    errors: Vec<FieldError>,
    /// Whether a value could not be read: 400 instead of 422.
    is_unreadable: bool,
}

impl Mistakes {
    fn unreadable(&mut self, name: &str, text: impl Into<String>) {
        self.errors.push(FieldError::new(name, text));
        self.is_unreadable = true;
    }

    /// The value, or `None` after a mistake.
    fn read<T>(&mut self, name: &str, value: Result<T, impl ToString>) -> Option<T> {
        value.map_err(|error| self.unreadable(name, error.to_string())).ok()
    }

    fn end(self) -> Result<(), Problem> {
        match self.errors.is_empty() {
            true => Ok(()),
            false if self.is_unreadable => Err(Problem::unreadable(self.errors)),
            false => Err(Problem::invalid(self.errors)),
        }
    }
}

pub async fn raw(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(route): Path<String>,
    Query(query): Query<RawQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let mut mistakes = Mistakes::default();
    let id = match &query.id {
        Some(id) => mistakes.read("id", MessageId::parse_new(id)),
        None => mistakes.read("Idempotency-Key", idempotency_key(request.headers())).flatten(),
    };
    let due = query.due(&mut mistakes).unwrap_or(Due::NOW);
    let on_conflict = query.on_conflict(&mut mistakes).unwrap_or_default();
    let debounce = query.debounce(on_conflict, &mut mistakes);
    let metadata = query.metadata(request.headers(), &mut mistakes);
    mistakes.end()?;
    let body = body::read(&api.body_memory, request, api.max_payload).await?;
    let message = NewMessage {
        id: id.unwrap_or_else(|| (api.new_id)()),
        due,
        payload: body.bytes.clone(),
        metadata: Metadata { scheduled_by: caller.by(), ..metadata },
        on_conflict,
        debounce,
        record: None,
    };
    let messages = vec![message];
    check_expiry(&api, &route, &messages, |_| "expires_at".to_owned()).await?;
    caller.grant.admit(1)?;
    let replacing = replaced::replacing(&messages);
    let result = api.queue.schedule(&route, VIA, messages).await;
    let scheduled = api.replacements.record(&caller, &route, &replacing, result)?;
    Ok(scheduled::one(&route, scheduled.first().expect("one answer per message")))
}

impl RawQuery {
    fn due(&self, mistakes: &mut Mistakes) -> Option<Due> {
        if self.delay.is_some() && self.deliver_at.is_some() {
            mistakes.unreadable("delay", "`delay` and `deliver_at` exclude each other");
        }
        let delay = self.delay.as_deref().and_then(|delay| mistakes.read("delay", Due::parse_delay(delay)));
        let at = self.deliver_at.as_deref().and_then(|at| mistakes.read("deliver_at", in_query(at)));
        delay.or(at.map(Due::At))
    }

    fn on_conflict(&self, mistakes: &mut Mistakes) -> Option<OnConflict> {
        let value: StrDeserializer<'_, serde::de::value::Error> = self.on_conflict.as_deref()?.into_deserializer();
        mistakes.read("on_conflict", OnConflict::deserialize(value))
    }

    /// The maximum time from the first acceptance, in milliseconds.
    fn debounce(&self, on_conflict: OnConflict, mistakes: &mut Mistakes) -> Option<u64> {
        let max = mistakes.read("debounce", debounce_max(self.debounce.as_deref()?));
        if on_conflict != OnConflict::Replace {
            mistakes.errors.push(FieldError::new("debounce", DEBOUNCE_REPLACES));
        }
        max
    }

    fn metadata(&self, headers: &HeaderMap, mistakes: &mut Mistakes) -> Metadata {
        let content_type = headers.get(header::CONTENT_TYPE).filter(|value| !value.is_empty());
        let expires_at = self.expires_at.as_deref().and_then(|at| mistakes.read("expires_at", in_query(at)));
        let max_attempts = self.max_attempts.as_deref().map(str::parse);
        let mut metadata = Metadata {
            headers: forwarded(headers, mistakes).into(),
            key: self.key.clone().filter(|key| !key.is_empty()),
            flow: self.flow.clone().filter(|flow| !flow.is_empty()),
            group: self.group.clone().filter(|group| !group.is_empty()),
            content_type: content_type.and_then(|value| mistakes.read("Content-Type", text(value))),
            properties: None,
            origin: None,
            max_attempts: max_attempts.and_then(|number| mistakes.read("max_attempts", number)),
            recurring: None,
            scheduled_by: None,
            expires_at: expires_at.map(UnixMillis::get),
        };
        metadata.keep_trace(trace::of_request(headers).as_ref());
        mistakes.errors.extend(metadata.mistakes().map(|(field, text)| FieldError::new(field, text)));
        metadata
    }
}

/// A `+` in a query decodes to a space, so an unescaped `...T09:30:00+01:00` is accepted too.
fn in_query(text: &str) -> Result<UnixMillis, String> {
    parse_instant(text).or_else(|error| parse_instant(&text.replace(' ', "+")).map_err(|_| error))
}

fn forwarded(headers: &HeaderMap, mistakes: &mut Mistakes) -> BTreeMap<String, String> {
    let mut forwarded = BTreeMap::new();
    let prefixed = headers.iter().filter_map(|(name, value)| {
        let name = title_case(name.as_str().strip_prefix(FORWARD_PREFIX)?);
        Some((format!("Punctual-Forward-{name}"), name, value))
    });
    let encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let encodings = encodings.map(|value| (CONTENT_ENCODING.to_owned(), CONTENT_ENCODING.to_owned(), value));
    for (header, name, value) in prefixed.chain(encodings) {
        let Some(value) = mistakes.read(&header, text(value)) else { continue };
        if forwarded.insert(name, value).is_some() {
            mistakes.unreadable(&header, "comes twice");
        }
    }
    forwarded
}

/// `x-trace-id` to `X-Trace-Id`. HTTP names have no case, and the parser dropped the original one. `/messages` keeps
/// the case of header names.
fn title_case(name: &str) -> String {
    let capital = |part: &str| {
        let (first, rest) = part.split_at(part.len().min(1));
        first.to_ascii_uppercase() + rest
    };
    name.split('-').map(capital).collect::<Vec<_>>().join("-")
}

fn text(value: &HeaderValue) -> Result<String, &'static str> {
    std::str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(|_| "is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn forwarded_headers_lose_their_prefix_and_others_stay_behind() {
        let all = headers(&[
            ("punctual-forward-x", "v"),
            ("punctual-forward-x-trace-id", "1"),
            ("x-other", "no"),
            ("content-type", "image/png"),
        ]);
        let mut mistakes = Mistakes::default();
        let metadata = RawQuery::default().metadata(&all, &mut mistakes);
        assert!(mistakes.end().is_ok());
        let expected = [("X".to_owned(), "v".to_owned()), ("X-Trace-Id".to_owned(), "1".to_owned())];
        assert_eq!(metadata.headers, expected.into());
        assert_eq!(metadata.content_type.as_deref(), Some("image/png"));
    }

    #[test]
    fn reserved_and_repeated_forwarded_headers_are_refused() {
        for bad in [
            headers(&[("punctual-forward-host", "x")]),
            headers(&[("punctual-forward-punctual-id", "x")]),
            headers(&[("punctual-forward-", "x")]),
            headers(&[("punctual-forward-a", "1"), ("punctual-forward-a", "2")]),
        ] {
            let mut mistakes = Mistakes::default();
            RawQuery::default().metadata(&bad, &mut mistakes);
            assert!(mistakes.end().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_plus_that_became_a_space_is_still_an_offset() {
        assert_eq!(in_query("1970-01-01T01:00:01 01:00").unwrap().get(), 1000);
        assert_eq!(in_query("1700000000000").unwrap().get(), 1_700_000_000_000);
        assert!(in_query("soon").is_err());
    }
}
