//! `POST /v1/routes/{route}/raw`: the body is the payload; the other fields are in the query and the headers.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Path, Query, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Deserialize;

use super::{
    audit::Caller,
    body,
    post::{VIA, check_expiry, idempotency_key},
    problem::Problem,
    scheduled,
    state::Api,
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
pub const QUERY: &[&str] = &["delay", "deliver_at", "id", "key", "flow", "max_attempts", "expires_at", "on_conflict"];

#[derive(Debug, Default, Deserialize)]
pub struct RawQuery {
    delay: Option<String>,
    deliver_at: Option<String>,
    id: Option<String>,
    key: Option<String>,
    flow: Option<String>,
    max_attempts: Option<u32>,
    expires_at: Option<String>,
    on_conflict: Option<OnConflict>,
}

pub async fn raw(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(route): Path<String>,
    Query(query): Query<RawQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let id = match &query.id {
        Some(id) => Some(MessageId::parse_new(id).map_err(|error| Problem::bad_request(format!("`id`: {error}")))?),
        None => idempotency_key(request.headers())?,
    };
    let due = query.due()?;
    let metadata = query.metadata(request.headers())?;
    let body = body::read(&api.body_memory, request, api.max_payload).await?;
    let message = NewMessage {
        id: id.unwrap_or_else(|| (api.new_id)()),
        due,
        payload: body.bytes.clone(),
        metadata,
        on_conflict: query.on_conflict.unwrap_or_default(),
        record: None,
    };
    let messages = vec![message];
    check_expiry(&api, &route, &messages, |_| "expires_at".to_owned()).await?;
    caller.grant.admit(1)?;
    let scheduled = api.queue.schedule(&route, VIA, messages).await?;
    api.replacements.record(&caller, &route, &scheduled);
    Ok(scheduled::one(&route, scheduled.first().expect("one answer per message")))
}

impl RawQuery {
    fn due(&self) -> Result<Due, Problem> {
        match (&self.delay, &self.deliver_at) {
            (None, None) => Ok(Due::NOW),
            (Some(delay), None) => {
                Due::parse_delay(delay).map_err(|error| Problem::bad_request(format!("`delay`: {error}")))
            }
            (None, Some(at)) => in_query(at).map(Due::At),
            (Some(_), Some(_)) => Err(Problem::bad_request("`delay` and `deliver_at` exclude each other")),
        }
    }

    fn metadata(&self, headers: &HeaderMap) -> Result<Metadata, Problem> {
        let content_type = headers.get(header::CONTENT_TYPE).filter(|value| !value.is_empty());
        let content_type = content_type.map(|value| text("Content-Type", value)).transpose()?;
        let metadata = Metadata {
            headers: forwarded(headers)?.into(),
            key: self.key.clone().filter(|key| !key.is_empty()),
            flow: self.flow.clone().filter(|flow| !flow.is_empty()),
            content_type,
            properties: None,
            origin: None,
            max_attempts: self.max_attempts,
            expires_at: self.expires_at.as_deref().map(in_query).transpose()?.map(UnixMillis::get),
        };
        let invalid =
            |(field, text)| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("{field}: {text}"));
        metadata.validate().map_err(invalid).map(|()| metadata)
    }
}

/// A `+` in a query decodes to a space, so an unescaped `...T09:30:00+01:00` is accepted too.
fn in_query(text: &str) -> Result<UnixMillis, Problem> {
    parse_instant(text)
        .or_else(|error| parse_instant(&text.replace(' ', "+")).map_err(|_| error))
        .map_err(Problem::bad_request)
}

fn forwarded(headers: &HeaderMap) -> Result<BTreeMap<String, String>, Problem> {
    let mut forwarded = BTreeMap::new();
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(FORWARD_PREFIX) else { continue };
        let name = title_case(name);
        let value = text(&name, value)?;
        if forwarded.contains_key(&name) {
            return Err(Problem::bad_request(format!("`Punctual-Forward-{name}` comes twice")));
        }
        forwarded.insert(name, value);
    }
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    if let Some(value) = encodings.next() {
        let value = text(CONTENT_ENCODING, value)?;
        if encodings.next().is_some() || forwarded.insert(CONTENT_ENCODING.to_owned(), value).is_some() {
            return Err(Problem::bad_request("`Content-Encoding` comes twice"));
        }
    }
    Ok(forwarded)
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

fn text(name: &str, value: &HeaderValue) -> Result<String, Problem> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned).map_err(|_| Problem::bad_request(format!("header `{name}` is not UTF-8")))
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
        let metadata = RawQuery::default().metadata(&all).unwrap();
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
            assert!(RawQuery::default().metadata(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_plus_that_became_a_space_is_still_an_offset() {
        assert_eq!(in_query("1970-01-01T01:00:01 01:00").unwrap().get(), 1000);
        assert_eq!(in_query("1700000000000").unwrap().get(), 1_700_000_000_000);
        assert!(in_query("soon").is_err());
    }
}
