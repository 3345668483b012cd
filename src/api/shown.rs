//! A message as JSON.

use std::{iter, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Serialize;

use super::shown_end::ShownEnd;
use crate::{
    message::{EndedMessage, Headers, Metadata, Origin, Properties, State},
    store::{NEVER, PastAttempt, Snapshot},
    time::UnixMillis,
};

/// Payloads become JSON in slices of this number of bytes, each up to six times as long in JSON. A multiple of three,
/// so that the base64 of the slices concatenates to that of the whole.
const SLICE_BYTES: usize = 3 * 4096;

#[derive(Serialize)]
struct Shown<'a> {
    id: &'a str,
    route: &'a str,
    state: State,
    /// `None`: the message is of a schedule that is paused or has ended.
    deliver_at: Option<UnixMillis>,
    attempts: u32,
    last_error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error_at: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    died_at: Option<UnixMillis>,
    /// The last attempts that failed, the latest last.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    attempt_log: &'a [PastAttempt],
    /// Only for a single dead letter: an edit can require it.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<&'a str>,
    /// When it was accepted, or moved last.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_at: Option<UnixMillis>,
    /// The due time with which the message was scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<UnixMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<UnixMillis>,
    #[serde(flatten)]
    waits: &'a Waits,
    content_type: Option<&'a str>,
    headers: &'a Headers,
    key: Option<&'a str>,
    /// A key that is not UTF-8, or has control characters. Also set for an empty `key`, which a request would ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduled_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    properties: Option<&'a Properties>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<Box<Origin>>,
    /// The error that makes the stored body unreadable: there is no payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<&'a str>,
    /// Earlier ends of the id, the latest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<ShownEnd<'a>>,
}

/// The notes of a source without the key, which is a field of its own. `None` if nothing is left.
fn shown_origin(origin: &Origin) -> Option<Box<Origin>> {
    Origin { key_base64: None, ..origin.clone() }.or_none()
}

/// The reason why a pending message is not delivered yet.
#[derive(Debug, Default, Serialize)]
pub struct Waits {
    /// `due`, `retry`, `sink`, `paused`, `window`, `flow`, `capacity` or `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<&'static str>,
    /// Set if `waits_for` is `sink`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<Down>,
}

impl Waits {
    pub fn of(what: &'static str) -> Self {
        Self { waits_for: Some(what), down: None }
    }

    pub fn of_sink(down: Down) -> Self {
        Self { waits_for: Some("sink"), down: Some(down) }
    }
}

/// The sink, or its failure domain, that is down.
#[derive(Debug, Serialize)]
pub struct Down {
    pub sink: String,
    /// `None`: the whole sink.
    pub domain: Option<Arc<str>>,
    pub error: Option<String>,
    pub since: UnixMillis,
}

/// Whether the JSON object of a message has its payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    Shown,
    LeftOut,
}

/// The JSON object of a message in pieces, so that a large payload is never in memory as a whole. A UTF-8 payload is
/// the string `payload`, any other is `payload_base64`.
pub fn pieces<'a>(
    route: &'a str,
    snapshot: &'a Snapshot,
    (waits, ends): (&'a Waits, &'a [EndedMessage]),
    payload: Payload,
) -> impl Iterator<Item = Vec<u8>> + Send + 'a {
    let none = Metadata::default();
    let (metadata, unreadable) = match &snapshot.message {
        Ok(message) => (&message.metadata, None),
        Err(text) => (&none, Some(&**text)),
    };
    let ever = |at: &UnixMillis| at.get() < NEVER;
    let deliver_at = Some(snapshot.deliver_at).filter(ever);
    let shown = Shown {
        id: snapshot.id.as_str(),
        route,
        state: snapshot.state,
        deliver_at,
        attempts: snapshot.attempts,
        last_error: snapshot.last_error.as_deref(),
        last_error_at: snapshot.last_error_at,
        died_at: snapshot.died_at,
        attempt_log: &snapshot.attempt_log,
        revision: snapshot.revision.as_deref(),
        accepted_at: snapshot.message.as_ref().ok().map(|message| message.accepted).filter(|at| at.get() > 0),
        due: snapshot.message.as_ref().ok().map(|message| message.due).filter(ever),
        next_attempt_at: deliver_at.filter(|_| snapshot.state == State::Pending),
        waits,
        content_type: metadata.content_type.as_deref(),
        headers: &metadata.headers,
        key: metadata.key.as_deref(),
        key_base64: match (metadata.key.as_deref(), &metadata.origin) {
            (Some(""), _) => Some(""),
            (_, origin) => origin.as_ref().and_then(|origin| origin.key_base64.as_deref()),
        },
        flow: metadata.flow.as_deref(),
        group: metadata.group.as_deref(),
        scheduled_by: metadata.scheduled_by.as_deref(),
        trace_id: metadata.headers.trace().map(|context| context.trace.to_string()),
        properties: metadata.properties.as_deref(),
        max_attempts: metadata.max_attempts,
        expires_at: metadata.expires_at,
        origin: metadata.origin.as_deref().and_then(shown_origin),
        unreadable,
        history: ends.iter().map(ShownEnd::from).collect(),
    };
    let mut head = serde_json::to_vec(&shown).expect("strings and integers always serialize");
    let stored = snapshot.message.as_ref().ok().filter(|_| payload == Payload::Shown);
    let payload = stored.map(|message| &message.payload[..]);
    let text = payload.and_then(|payload| std::str::from_utf8(payload).ok());
    let bytes = payload.filter(|_| text.is_none());
    let end = payload.map(|_| {
        head.pop();
        let name = if text.is_some() { "payload" } else { "payload_base64" };
        head.extend_from_slice(format!(",\"{name}\":\"").as_bytes());
        b"\"}".to_vec()
    });
    let encoded = bytes.into_iter().flat_map(|bytes| bytes.chunks(SLICE_BYTES));
    iter::once(head)
        .chain(slices(text.unwrap_or_default()).map(escaped))
        .chain(encoded.map(|slice| BASE64_STANDARD.encode(slice).into_bytes()))
        .chain(end)
}

/// A JSON string without its quotes.
fn escaped(text: &str) -> Vec<u8> {
    let quoted = serde_json::to_vec(text).expect("a string always serializes");
    quoted[1..quoted.len() - 1].to_vec()
}

fn slices(mut rest: &str) -> impl Iterator<Item = &str> + Send {
    iter::from_fn(move || {
        let (slice, behind) = rest.split_at(rest.floor_char_boundary(SLICE_BYTES));
        rest = behind;
        (!slice.is_empty()).then_some(slice)
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::message_body::{Batch, Rules, parse},
        message::{MessageId, StoredMessage, TypedValue, any_headers, check_text},
    };

    fn shown(message: Result<StoredMessage, String>) -> Value {
        let snapshot = Snapshot {
            attempt_log: Vec::new(),
            revision: None,
            parked: false,
            last_error_at: UnixMillis::new(4000),
            died_at: UnixMillis::new(5000),
            id: MessageId::parse("a").unwrap(),
            state: State::Dead,
            deliver_at: UnixMillis::new(1000).unwrap(),
            attempts: 2,
            last_error: Some("rejected: HTTP 400".into()),
            message,
        };
        let pieces: Vec<Vec<u8>> = pieces("r", &snapshot, (&Waits::default(), &[]), Payload::Shown).collect();
        assert!(pieces.iter().all(|piece| piece.len() <= 6 * SLICE_BYTES), "each piece is small");
        serde_json::from_slice(&pieces.concat()).expect("JSON")
    }

    fn stored(payload: impl Into<Bytes>) -> StoredMessage {
        StoredMessage {
            due: UnixMillis::default(),
            accepted: UnixMillis::default(),
            metadata: Metadata { headers: [("X".to_owned(), "1".to_owned())].into(), ..Metadata::default() },
            payload: payload.into(),
        }
    }

    #[test]
    fn a_message_is_shown_with_the_fields_of_the_contract() {
        let expected = json!({
            "id": "a", "route": "r", "state": "dead", "deliver_at": "1970-01-01T00:00:01.000Z", "attempts": 2,
            "last_error": "rejected: HTTP 400", "last_error_at": "1970-01-01T00:00:04.000Z",
            "died_at": "1970-01-01T00:00:05.000Z", "due": "1970-01-01T00:00:00.000Z", "content_type": null, "headers": {"X": "1"}, "key": null,
            "payload": "{\"b\":1}",
        });
        assert_eq!(shown(Ok(stored("{\"b\":1}"))), expected);
        assert_eq!(shown(Ok(stored("")))["payload"], "");
    }

    #[test]
    fn a_message_in_a_trace_is_shown_with_its_id() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned();
        let headers = [("traceparent".to_owned(), parent)].into();
        let message = StoredMessage { metadata: Metadata { headers, ..Metadata::default() }, ..stored("") };
        assert_eq!(shown(Ok(message))["trace_id"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(shown(Ok(stored(""))).get("trace_id"), None);
    }

    /// No source makes such a header: that of RabbitMQ drops it, and others read no lists.
    fn copies_to_queues((name, value): (&str, &TypedValue)) -> bool {
        ["CC", "BCC"].contains(&name) && matches!(value, TypedValue::Array(_))
    }

    proptest! {
        #[test]
        fn what_is_shown_of_any_message_is_scheduled_again_as_it_was(
            headers in any_headers(), key in prop::collection::vec(any::<u8>(), 0..5), texts in any::<[Option<String>; 3]>(),
        ) {
            prop_assume!(!headers.typed().any(copies_to_queues));
            let [id, correlation_id, selector] = texts.map(|text| text.map(|text| text.chars().take(60).collect()));
            let mut origin = Origin {
                id,
                selectors: selector.into_iter().map(|text: String| ("x".to_owned(), text)).collect(),
                properties: Properties { correlation_id, ..Properties::default() }.or_none(),
                ..Origin::default()
            };
            let key = match String::from_utf8(key) {
                Ok(text) if check_text(&text).is_ok() => Some(text),
                Ok(text) => { origin.key_base64 = Some(BASE64_STANDARD.encode(text)); None }
                Err(error) => { origin.key_base64 = Some(BASE64_STANDARD.encode(error.as_bytes())); None }
            };
            let metadata = Metadata { headers, key, origin: origin.or_none(), ..Metadata::default() };
            let mut shown = shown(Ok(StoredMessage { metadata: metadata.clone(), ..stored("") }));
            let fields = shown.as_object_mut().unwrap();
            fields.retain(|name, _| ["headers", "key", "key_base64", "origin"].contains(&name.as_str()));
            fields.insert("payload_base64".to_owned(), "".into());
            let new_id = || MessageId::parse("made").unwrap();
            let rules = Rules { max_payload: 100, idempotency_key: None, trace: None, new_id: &new_id };
            let Ok(Batch::One(message)) = parse(shown.to_string().as_bytes(), &rules) else { panic!("{shown}") };
            prop_assert_eq!(message.metadata, metadata);
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_base64_and_a_lost_body_by_its_cause() {
        let bytes = shown(Ok(stored(&b"\0\xff"[..])));
        assert_eq!((bytes.get("payload"), &bytes["payload_base64"]), (None, &json!("AP8=")));
        let lost = shown(Err("the body was lost".into()));
        assert_eq!(lost["unreadable"], "the body was lost");
        assert!(lost.get("payload").is_none() && lost.get("payload_base64").is_none());
    }

    #[test]
    fn a_payload_of_many_slices_is_shown_as_it_is() {
        for character in ["\u{1}", "é", "\u{2028}😀\"\\", "x"] {
            let text = format!("{}{}", "y", character.repeat(2 * SLICE_BYTES));
            assert_eq!(shown(Ok(stored(text.clone())))["payload"], text, "{}", character.escape_debug());
        }
        let bytes = vec![0xff; 3 * SLICE_BYTES + 1];
        assert_eq!(shown(Ok(stored(bytes.clone())))["payload_base64"], BASE64_STANDARD.encode(bytes));
    }
}
