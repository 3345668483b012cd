//! `POST /v1/routes/{route}/messages`.

use std::sync::Arc;

use axum::{
    extract::{Path, Request, State},
    http::HeaderMap,
    response::Response,
};

use super::{
    audit::Caller,
    body,
    message_body::{self, Batch, Rules},
    problem::{FieldError, Problem},
    replaced, scheduled,
    state::Api,
    trace,
};
use crate::message::{MessageId, NewMessage};

/// Maximum size of a JSON body in bytes: 1000 messages of 16 KB, or the largest payload with every byte escaped.
pub const MAX_JSON_BYTES: usize = 16 * 1024 * 1024;

/// The label of `punctual_messages_scheduled_total`.
pub const VIA: &str = "api";

pub async fn messages(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(route): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let idempotency_key = idempotency_key(request.headers())
        .map_err(|error| Problem::bad_request(format!("`Idempotency-Key` {error}")))?;
    let trace = trace::of_request(request.headers());
    let body = body::read(&api.body_memory, request, MAX_JSON_BYTES).await?;
    let rules = Rules { max_payload: api.max_payload, idempotency_key, trace, new_id: &*api.new_id };
    let (is_one, mut messages) = match message_body::parse(&body.bytes, &rules)? {
        Batch::One(message) => (true, vec![*message]),
        Batch::Many(messages) => (false, messages),
    };
    for message in &mut messages {
        message.metadata.scheduled_by = caller.by();
    }
    let place = |index: usize| if is_one { "/expires_at".to_owned() } else { format!("/{index}/expires_at") };
    check_expiry(&api, &route, &messages, place).await?;
    caller.grant.admit(messages.len())?;
    let replacing = replaced::replacing(&messages);
    let result = api.queue.schedule(&route, VIA, messages).await;
    let scheduled = api.replacements.record(&caller, &route, &replacing, result)?;
    // One result per message.
    Ok(if is_one { scheduled::one(&route, &scheduled[0]) } else { scheduled::many(&route, &scheduled) })
}

/// # Errors
/// 422 when any of `messages` would expire before it is delivered. `place`: the pointer of an index.
pub async fn check_expiry(
    api: &Api,
    route: &str,
    messages: &[NewMessage],
    place: impl Fn(usize) -> String,
) -> Result<(), Problem> {
    // Only an expiry needs the clock of Redis.
    if messages.iter().all(|message| message.metadata.expires_at.is_none()) {
        return Ok(());
    }
    let now = api.queue.now(route).await?;
    let check = |(index, message): (usize, &NewMessage)| {
        message.metadata.check_expiry(message.due, now).err().map(|text| FieldError::new(place(index), text))
    };
    let errors: Vec<_> = messages.iter().enumerate().filter_map(check).collect();
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors)) }
}

/// The id of the `Idempotency-Key` header: bare, or as the quoted string of the IETF draft
/// (draft-ietf-httpapi-idempotency-key-header, section 2.1).
///
/// # Errors
/// When the header occurs twice or its value is not a valid id.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<MessageId>, String> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("comes twice".to_owned());
    }
    let text = value.to_str().unwrap_or_default();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    MessageId::parse_new(bare).map(Some).map_err(|error| format!("is no id: {error}"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn key(values: &[&'static str]) -> Result<Option<MessageId>, String> {
        idempotency_key(&values.iter().map(|v| ("idempotency-key".parse().unwrap(), HeaderValue::from_static(v))).fold(
            HeaderMap::new(),
            |mut headers, (name, value): (axum::http::HeaderName, _)| {
                headers.append(name, value);
                headers
            },
        ))
    }

    #[test]
    fn an_idempotency_key_is_an_id_bare_or_quoted() {
        let id = MessageId::parse("a-1").unwrap();
        assert_eq!(key(&[]).unwrap(), None);
        assert_eq!(key(&["a-1"]).unwrap(), Some(id.clone()));
        assert_eq!(key(&["\"a-1\""]).unwrap(), Some(id));
        for bad in [&[""][..], &["\""], &["\"a"], &["a b"], &["a", "a"]] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }
}
