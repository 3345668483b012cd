//! Fuzzing of request bodies.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    message_body::{Batch, MAX_MESSAGES, Rules, parse, parse_dead, parse_patch},
    problem::{MAX_DETAIL_CHARS, Problem},
};
use crate::{
    fuzz::FuzzTarget,
    message::{MessageId, Metadata, NewMessage},
    store::{DeadAction, Expiry},
    time::Due,
};

const MAX_PAYLOAD: usize = 100;

const TARGET: FuzzTarget = FuzzTarget {
    name: "message_body",
    words: &[
        r#""id":"#,
        r#""delay":"#,
        r#""deliver_at":"#,
        r#""payload":"#,
        r#""payload_base64":"#,
        r#""content_type":"#,
        r#""headers":"#,
        r#""key":"#,
        r#""flow":"#,
        r#""properties":"#,
        r#""content_encoding":"#,
        r#""priority":"#,
        r#""max_attempts":"#,
        r#""expires_at":"#,
        r#""on_conflict":"replace""#,
        r#""ids":"#,
        r#""all":true"#,
        r#""reason":"rejected""#,
        r#""since":"#,
        "null",
        "true",
        "\"",
        "\\u0000",
        "\\ud800",
        "{",
        "}",
        "[",
        "]",
        ",",
        "1e400",
        "5m",
        "2026-11-21T09:30:00Z",
    ],
    run,
};

fn run(body: &[u8]) -> String {
    let rules = Rules {
        max_payload: MAX_PAYLOAD,
        idempotency_key: None,
        trace: None,
        new_id: &|| MessageId::parse("made").expect("an id"),
    };
    let parsed = parse(body, &rules);
    let due = checked(parse_patch(body, MAX_PAYLOAD).map(|patch| format!("{patch:?}")));
    let ids = checked(
        parse_dead(body, DeadAction::Redrive(Expiry::Drop)).map(|dead| format!("{} {}", dead.limit, dead.dry_run)),
    );
    let messages = match parsed {
        Ok(Batch::One(message)) => vec![*message],
        Ok(Batch::Many(messages)) => messages,
        Err(problem) => return checked(Err(problem)) + &due + &ids,
    };
    assert!(messages.len() <= MAX_MESSAGES);
    for message in &messages {
        assert!(message.payload.len() <= MAX_PAYLOAD);
        assert_eq!(message.metadata.validate(), Ok(()));
        let Ok(Batch::One(again)) = parse(written(message).as_bytes(), &rules) else {
            panic!("what was accepted is refused when it is written again: {message:?}");
        };
        assert_eq!(format!("{message:?}"), format!("{again:?}"));
    }
    assert!(serde_json::from_slice::<&serde_json::value::RawValue>(body).is_ok(), "accepted, and no JSON");
    let Some(first) = messages.first() else { return "no messages".into() };
    let Metadata { headers, key, flow, content_type, properties, max_attempts, expires_at, .. } = &first.metadata;
    format!(
        "{} {} {} {} {} {} {} {:?} {} {}",
        messages.len().min(3) > 1,
        headers.len().min(3),
        key.is_some(),
        flow.is_some(),
        content_type.as_deref().unwrap_or_default().len().min(30),
        max_attempts.is_some(),
        expires_at.is_some(),
        first.on_conflict,
        matches!(first.due, Due::At(_)),
        properties.as_ref().map_or(0, |all| serde_json::to_string(all).expect("JSON").len() / 16),
    )
}

/// The result for a body, with errors bounded.
fn checked(result: Result<String, Problem>) -> String {
    result.unwrap_or_else(|problem| {
        let (detail, errors) = problem.parts();
        assert!(detail.chars().count() <= MAX_DETAIL_CHARS + 3, "{detail}");
        let errors: Vec<_> = errors.iter().map(|error| format!("{}: {}", error.pointer, error.detail)).collect();
        format!("{detail}; {}", errors.join("; "))
    })
}

/// A body with every field of a message.
fn written(message: &NewMessage) -> String {
    let mut body = serde_json::to_value(&message.metadata).expect("JSON");
    body["id"] = message.id.as_str().into();
    body["payload_base64"] = BASE64_STANDARD.encode(&message.payload).into();
    match message.due {
        Due::After(millis) => body["delay"] = millis.into(),
        Due::At(at) => body["deliver_at"] = at.get().into(),
    }
    body["on_conflict"] = serde_json::to_value(message.on_conflict).expect("JSON");
    body.to_string()
}

#[test]
fn the_corpus_keeps_to_what_is_promised() {
    TARGET.replay();
}

#[test]
#[ignore = "runs for minutes: tests/run.sh --fuzz"]
fn mutations_keep_to_what_is_promised() {
    TARGET.explore();
}
