use axum::response::IntoResponse;

use super::{selection::*, *};
use crate::{
    message::{DeadReason, Rate},
    store::{DeadAction, Expiry, Filter, NewDue, PendingAction, Selection, Spread},
};

fn rules() -> Rules<'static> {
    Rules { max_payload: 100, idempotency_key: None, trace: None, new_id: &|| MessageId::parse("made").unwrap() }
}

fn one(body: &str) -> NewMessage {
    match parse(body.as_bytes(), &rules()) {
        Ok(Batch::One(message)) => *message,
        other => panic!("{body}: {other:?}"),
    }
}

fn refused(body: &str) -> Problem {
    parse(body.as_bytes(), &rules()).expect_err(body)
}

fn status(body: &str) -> u16 {
    refused(body).into_response().status().as_u16()
}

async fn pointers(body: &str) -> Vec<String> {
    let response = refused(body).into_response();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let document: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    document["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_string_payload_is_its_text_and_any_other_the_very_text_that_was_sent() {
    assert_eq!(one(r#"{"payload":"a\nb é"}"#).payload, "a\nb é");
    for text in [r#"{"b": 1,  "a":1.50}"#, "1e400", "9007199254740993", "null", "true", "[ ]"] {
        assert_eq!(one(&format!(r#"{{"payload": {text} }}"#)).payload, text);
    }
    assert_eq!(one(r#"{"payload_base64":"AP8="}"#).payload, &b"\0\xff"[..]);
}

#[test]
fn the_content_type_follows_the_form_of_the_payload_unless_given() {
    let content_type = |body: &str| one(body).metadata.content_type;
    assert_eq!(content_type(r#"{"payload":"x"}"#).as_deref(), Some(TEXT));
    assert_eq!(content_type(r#"{"payload":{}}"#).as_deref(), Some(JSON));
    assert_eq!(content_type(r#"{"payload_base64":""}"#), None);
    assert_eq!(content_type(r#"{"payload":"<a/>","content_type":"text/xml"}"#).as_deref(), Some("text/xml"));
}

#[test]
fn exactly_one_payload_and_at_most_one_due_time() {
    for body in [
        "{}",
        r#"{"payload":1,"payload_base64":""}"#,
        r#"{"payload":null,"payload_base64":""}"#,
        r#"{"payload":1,"delay":1,"deliver_at":1}"#,
    ] {
        assert_eq!(status(body), 422, "{body}");
    }
    assert_eq!(one(r#"{"payload":1}"#).due, Due::NOW);
}

#[test]
fn due_times_have_four_forms() {
    let due = |field: &str| one(&format!(r#"{{"payload":1,{field}}}"#)).due;
    assert_eq!(due(r#""delay":"5m""#), Due::After(300_000));
    assert_eq!(due(r#""delay":1500"#), Due::After(1500));
    assert_eq!(due(r#""deliver_at":1700000000000"#), Due::At(UnixMillis::new(1_700_000_000_000).unwrap()));
    assert_eq!(due(r#""deliver_at":"1970-01-01T00:00:01Z""#), Due::At(UnixMillis::new(1000).unwrap()));
}

#[test]
fn numbers_that_no_clock_shows_are_refused() {
    for value in [
        "1e400",
        "-1",
        "9223372036854775808",
        "1700000000000000",
        "1.5",
        "true",
        "[]",
        "{}",
        "\"nan\"",
        "\"inf\"",
        "\"\"",
    ] {
        for name in ["delay", "deliver_at", "expires_at"] {
            assert_eq!(status(&format!(r#"{{"payload":1,"{name}":{value}}}"#)), 422, "{name}: {value}");
        }
    }
    for value in ["0", "-1", "1.5", "4294967296", "\"3\"", "1e400"] {
        let status = parse(format!(r#"{{"payload":1,"max_attempts":{value}}}"#).as_bytes(), &rules());
        assert!(status.is_err(), "{value}");
    }
    for value in ["3", "3.0", "3e0", "0.3e1"] {
        assert_eq!(
            one(&format!(r#"{{"payload":1,"max_attempts":{value}}}"#)).metadata.max_attempts,
            Some(3),
            "{value}"
        );
    }
    assert_eq!(one(r#"{"payload":1,"delay":1000.0}"#).due, Due::After(1000));
    assert_eq!(one(r#"{"payload":1,"properties":{"priority":4.0}}"#).metadata.properties.unwrap().priority, Some(4));
    // Not JSON at all.
    assert_eq!(status(r#"{"payload":1,"delay":nan}"#), 400);
}

#[test]
fn properties_are_taken_as_they_are_and_unknown_ones_refused() {
    let properties = |json: &str| one(&format!(r#"{{"payload":1,"properties":{json}}}"#)).metadata.properties;
    let all = r#"{"content_encoding":"gzip","correlation_id":"c","reply_to":"r","type":"t","priority":9,"app_id":"a"}"#;
    assert_eq!(serde_json::to_string(&properties(all).unwrap()).unwrap(), all);
    assert_eq!(properties("{}"), None);
    assert_eq!(properties("null"), None);
    for bad in [
        r#"{"user_id":"guest"}"#,
        r#"{"priority":256}"#,
        r#"{"priority":"1"}"#,
        r#"{"type":1}"#,
        r#"{"type":"a","type":"b"}"#,
        r#"{"reply_to":"a\nb"}"#,
        r#"["gzip"]"#,
        r#""gzip""#,
    ] {
        assert_eq!(status(&format!(r#"{{"payload":1,"properties":{bad}}}"#)), 422, "{bad}");
    }
}

#[test]
fn a_header_may_repeat_the_content_encoding_and_not_contradict_it() {
    let body = |header: &str| {
        format!(r#"{{"payload":1,"headers":{{"{header}":"GZIP"}},"properties":{{"content_encoding":"ENCODING"}}}}"#)
    };
    for header in ["Content-Encoding", "content_encoding"] {
        one(&body(header).replace("ENCODING", "gzip"));
        assert_eq!(status(&body(header).replace("ENCODING", "br")), 422, "{header}");
    }
}

#[test]
fn unknown_and_duplicate_fields_are_refused() {
    for body in [
        r#"{"payload":1,"dealy":1}"#,
        r#"{"payload":1,"payload":2}"#,
        r#"{"payload":1,"id":"a","id":"b"}"#,
        r#"{"payload":1,"headers":{"a":"1","a":"2"}}"#,
        r#"{"payload":1,"headers":{"X-Tenant":"1","x-tenant":"2"}}"#,
        r#"{"payload":1,"headers":{"a":1}}"#,
        r#"{"payload":1,"on_conflict":"merge"}"#,
    ] {
        assert_eq!(status(body), 422, "{body}");
    }
}

#[test]
fn what_is_not_json_is_400_and_what_is_no_message_422() {
    for body in ["", "{", "{\"payload\":1} x", "\u{0}", "{\"payload\":\"\u{1}\"}", "nan", "'a'"] {
        assert_eq!(status(body), 400, "{body:?}");
    }
    for body in ["1", "\"a\"", "null", "[1]", "[[]]", "[[null,null,null,1]]"] {
        assert_eq!(status(body), 422, "{body}");
    }
    assert!(parse(b"{\"payload\":\"\xff\"}", &rules()).is_err());
}

#[test]
fn deep_json_neither_overflows_nor_is_changed() {
    let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    let generous = Rules { max_payload: usize::MAX, ..rules() };
    let Ok(Batch::One(message)) = parse(format!(r#"{{"payload":{deep}}}"#).as_bytes(), &generous) else {
        panic!("refused")
    };
    assert_eq!(message.payload, deep);
    for body in [format!(r#"{{"payload":1,"id":{deep}}}"#), deep.clone(), format!(r#"{{"x":{deep}}}"#)] {
        assert_eq!(status(&body), 422);
    }
    assert_eq!(status(&"[".repeat(1_000_000)), 400);
}

#[test]
fn one_byte_over_the_limit_is_413() {
    let body = |length: usize| format!(r#"{{"payload":"{}"}}"#, "x".repeat(length));
    assert_eq!(one(&body(100)).payload.len(), 100);
    assert_eq!(status(&body(101)), 413);
}

#[tokio::test]
async fn every_invalid_field_of_every_item_is_named() {
    let body = r#"[{"payload":1}, {"payload":1,"id":"a b","delay":-1}, 7, {"payload":1,"headers":{"Host":"x"}}]"#;
    assert_eq!(pointers(body).await, ["/1/id", "/1/delay", "/2", "/3/headers"]);
    assert_eq!(pointers(r#"{"payload":1,"key":7,"max_attempts":0}"#).await, ["/key", "/max_attempts"]);
    assert_eq!(pointers(r#"{"payload":1,"flow":7}"#).await, ["/flow"]);
    assert_eq!(pointers(r#"{"payload":1,"flow":"a b","max_attempts":0}"#).await, ["/flow", "/max_attempts"]);
}

#[test]
fn an_array_holds_at_most_1000_messages_and_may_be_empty() {
    let array = |length: usize| format!("[{}]", vec![r#"{"payload":1}"#; length].join(","));
    assert!(matches!(parse(array(1000).as_bytes(), &rules()), Ok(Batch::Many(messages)) if messages.len() == 1000));
    assert!(matches!(parse(b"[]", &rules()), Ok(Batch::Many(messages)) if messages.is_empty()));
    assert_eq!(status(&array(1001)), 422);
}

#[test]
fn the_id_is_the_fields_then_the_headers_then_made() {
    let keyed = Rules { idempotency_key: Some(MessageId::parse("key").unwrap()), ..rules() };
    let id = |body: &str, rules: &Rules| match parse(body.as_bytes(), rules) {
        Ok(Batch::One(message)) => message.id.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(id(r#"{"payload":1,"id":"mine"}"#, &keyed), "mine");
    assert_eq!(id(r#"{"payload":1}"#, &keyed), "key");
    assert_eq!(id(r#"{"payload":1}"#, &rules()), "made");
    assert_eq!(parse(b"[]", &keyed).unwrap_err().into_response().status(), 400);
}

const REDRIVE: DeadAction = DeadAction::Redrive(Expiry::Drop);

#[test]
fn a_redrive_alone_has_an_expiry() {
    let expiry = |text: &str| parse_dead(format!(r#"{{"all":true,"expiry":{text}}}"#).as_bytes(), REDRIVE);
    for (text, expected) in [
        (r#""drop""#, Expiry::Drop),
        (r#""keep""#, Expiry::Keep),
        (r#""5m""#, Expiry::After(300_000)),
        ("1000", Expiry::After(1000)),
    ] {
        assert_eq!(expiry(text).unwrap().action, DeadAction::Redrive(expected));
    }
    for bad in ["null", "0", "-1", r#""soon""#, r#""Keep""#, "true", "{}"] {
        assert!(expiry(bad).is_err(), "{bad}");
    }
    for bare in ["5", "0", "5.0", "1e3"] {
        let (_, errors) = expiry(&format!("\"{bare}\"")).expect_err(bare).parts();
        assert_eq!(errors[0].detail, format!("`{bare}` has no unit: write a duration such as `5s` or `5m`"));
    }
    assert!(parse_dead(br#"{"all":true,"expiry":"drop"}"#, DeadAction::Purge).is_err());
}

#[test]
fn dead_messages_are_selected_in_one_way_never_by_omission() {
    let at = |millis| UnixMillis::new(millis);
    let filter = Filter {
        reason: Some(DeadReason::Rejected),
        contains: Some("HTTP 4".into()),
        since: at(1_700_000_000_000),
        until: at(1_700_000_000_001),
        retried: false,
        flow: Some("tenant:7".into()),
        group: Some("order:7".into()),
        key: Some("k".into()),
        headers: vec![("X-Tenant".into(), "a".into())],
        payload: Some("total".into()),
    };
    let of_no_key = Filter { flow: Some(String::new()), ..Filter::default() };
    for (body, selection) in [
        (r#"{"all":true}"#, Selection::Where(Filter::default())),
        (r#"{"ids":["a"]}"#, Selection::Ids { ids: vec![MessageId::parse("a").unwrap()], until: None }),
        (
            r#"{"ids":["a"],"until":1700000000001}"#,
            Selection::Ids { ids: vec![MessageId::parse("a").unwrap()], until: at(1_700_000_000_001) },
        ),
        (
            r#"{"reason":"rejected","contains":"HTTP 4","since":1700000000000,"until":"2023-11-14T22:13:20.001Z",
                "flow":"tenant:7","group":"order:7","key":"k","header":{"X-Tenant":"a"},"payload_contains":"total"}"#,
            Selection::Where(filter),
        ),
        (r#"{"flow":"@"}"#, Selection::Where(of_no_key)),
    ] {
        let spread = Spread::default();
        let expected =
            DeadRequest { action: REDRIVE, to: None, spread, selection, limit: u64::MAX, dry_run: false, cursor: None };
        assert_eq!(parse_dead(body.as_bytes(), REDRIVE).unwrap(), expected, "{body}");
    }
    let limited = parse_dead(br#"{"all":true,"limit":3,"dry_run":true}"#, REDRIVE).unwrap();
    assert_eq!((limited.limit, limited.dry_run), (3, true));
    for body in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"all":false}"#,
        r#"{"all":null}"#,
        r#"{"ids":null}"#,
        r#"{"ids":[]}"#,
        r#"{"ids":"a"}"#,
        r#"{"ids":["*"]}"#,
        r#"{"id":["a"]}"#,
        r#"{"all":true,"ids":["a"]}"#,
        r#"{"all":true,"reason":"rejected"}"#,
        r#"{"ids":["a"],"contains":"x"}"#,
        r#"{"ids":["a"],"since":1700000000000}"#,
        r#"{"ids":["a"],"until":"soon"}"#,
        r#"{"all":true,"until":1700000000000}"#,
        r#"{"reason":"reject"}"#,
        r#"{"contains":""}"#,
        r#"{"flow":""}"#,
        r#"{"flow":"a b"}"#,
        r#"{"group":""}"#,
        r#"{"group":null}"#,
        r#"{"header":{}}"#,
        r#"{"all":false,"header":{}}"#,
        r#"{"ids":["a"],"group":"a"}"#,
        r#"{"flow":null}"#,
        r#"{"ids":["a"],"flow":"a"}"#,
        r#"{"since":1700000000}"#,
        r#"{"limit":1}"#,
        r#"{"all":true,"limit":0}"#,
        r#"{"all":true,"limit":-1}"#,
        r#"{"all":true,"dry_run":1}"#,
        r#"{"all":true,"dryrun":true}"#,
    ] {
        assert!(parse_dead(body.as_bytes(), REDRIVE).is_err(), "{body}");
    }
}

#[test]
fn a_redrive_alone_has_a_start_and_a_rate() {
    let spread = parse_dead(br#"{"all":true,"start":1700000000000,"rate":"50/s"}"#, REDRIVE).unwrap().spread;
    assert_eq!(spread, Spread { start: UnixMillis::new(1_700_000_000_000), rate: Some(Rate::parse("50/s").unwrap()) });
    for bad in [r#""rate":50"#, r#""rate":"0/s""#, r#""rate":null"#, r#""start":"soon""#, r#""start":null"#] {
        assert!(parse_dead(format!(r#"{{"all":true,{bad}}}"#).as_bytes(), REDRIVE).is_err(), "{bad}");
    }
    for field in [r#""rate":"1/s""#, r#""start":1700000000000"#] {
        assert!(parse_dead(format!(r#"{{"all":true,{field}}}"#).as_bytes(), DeadAction::Purge).is_err(), "{field}");
    }
}

#[test]
fn pending_messages_are_selected_in_one_way_and_moved_to_one_time() {
    let purge = parse_pending(br#"{"group":"g","payload_contains":"x","limit":3}"#, false).unwrap();
    let filter = Filter { group: Some("g".into()), payload: Some("x".into()), ..Filter::default() };
    let expected = (PendingAction::Cancel, Selection::Where(filter), 3);
    assert_eq!((purge.action, purge.selection, purge.limit), expected);
    let shift = parse_pending(br#"{"ids":["a"],"shift":"-2h"}"#, true).unwrap();
    assert_eq!(shift.action, PendingAction::Move(NewDue::By(-7_200_000)));
    for (body, moves) in [
        ("{}", false),
        (r#"{"all":null}"#, false),
        (r#"{"all":true,"group":"g"}"#, false),
        (r#"{"ids":["a"],"until":1700000000000}"#, false),
        (r#"{"ids":[]}"#, false),
        (r#"{"ids":["a"],"cursor":"x"}"#, false),
        (r#"{"all":true,"reason":"rejected"}"#, false),
        (r#"{"all":true,"delay":"1s"}"#, false),
        (r#"{"all":true}"#, true),
        (r#"{"delay":"1s"}"#, true),
        (r#"{"all":true,"delay":"1s","shift":"1s"}"#, true),
        (r#"{"all":true,"limit":100001}"#, false),
        (r#"{"header":{}}"#, false),
        (r#"{"header":{},"shift":"1h"}"#, true),
        (r#"{"header":["a"]}"#, false),
        (r#"{"header":{"a":1}}"#, false),
        (r#"{"header":{"":"x"}}"#, false),
        (r#"{"payload_contains":""}"#, false),
    ] {
        assert!(parse_pending(body.as_bytes(), moves).is_err(), "{body}");
    }
    let long = |length: usize| format!(r#"{{"payload_contains":"{}"}}"#, "\u{e9}".repeat(length));
    assert!(parse_pending(long(200).as_bytes(), false).is_ok());
    assert!(parse_pending(long(201).as_bytes(), false).is_err());
}

#[test]
fn a_note_is_text_and_a_call_without_a_body_takes_none() {
    assert_eq!(parse_note(b"").unwrap(), "");
    assert_eq!(parse_note(br#"{"note":"why"}"#).unwrap(), "why");
    let longest = "\u{e9}".repeat(500);
    assert_eq!(parse_note(format!(r#"{{"note":"{longest}"}}"#).as_bytes()).unwrap(), longest);
    for body in [format!(r#"{{"note":"{longest}x"}}"#), r#"{"note":1}"#.into(), r#"{"reason":"x"}"#.into(), "x".into()]
    {
        assert!(parse_note(body.as_bytes()).is_err(), "{body}");
    }
    assert_eq!(parse_partitions(br#"{"partitions":256}"#).unwrap(), 256);
    for body in ["", "{}", r#"{"partitions":0}"#, r#"{"partitions":257}"#, r#"{"partitions":65537}"#, r#"{"number":1}"#]
    {
        assert!(parse_partitions(body.as_bytes()).is_err(), "{body}");
    }
    assert!(parse_nothing(b"").is_ok() && parse_nothing(b"{}").is_ok());
    assert!(parse_nothing(b"[]").is_err() && parse_nothing(br#"{"a":1}"#).is_err());
}

#[test]
fn headers_of_any_type_are_a_list_in_their_order() {
    let metadata = |headers: &str| one(&format!(r#"{{"payload":1,"headers":{headers}}}"#)).metadata;
    let typed = metadata(
        r#"[{"name":"z","value":"1"},{"name":"a","type":"string","value":"2"},{"name":"z","type":"null"},
            {"name":"n","type":"table","value":{"x":{"type":"double","value":"0.1"}}}]"#,
    );
    let shown = serde_json::to_string(&typed.headers).unwrap();
    let expected = concat!(
        r#"[{"name":"z","type":"string","value":"1"},{"name":"a","value":"2"},{"name":"z","type":"null","value":null},"#,
        r#"{"name":"n","type":"table","value":{"x":{"type":"double","value":"0.1"}}}]"#
    );
    assert_eq!(shown, expected);
    let plain = metadata(r#"[{"name":"a","value":"2"},{"name":"z","value":"1"}]"#);
    assert_eq!(plain, metadata(r#"{"z":"1","a":"2"}"#), "an object has no order");
    // A record of Kafka can have these headers. Only with a list in them RabbitMQ copies a message.
    let copies = r#"[{"name":"CC","type":"string-base64","value":"/w=="},{"name":"BCC","type":"null"}]"#;
    assert_eq!(metadata(copies).headers.len(), 2);
}

#[test]
fn a_key_of_bytes_is_base64_and_that_of_a_text_is_the_text() {
    let metadata = |fields: &str| one(&format!(r#"{{"payload":1,{fields}}}"#)).metadata;
    assert_eq!(metadata(r#""key_base64":"azc=""#), metadata(r#""key":"k7""#));
    let bytes = metadata(r#""key_base64":"/wA=""#);
    assert_eq!((bytes.key, bytes.origin.unwrap().key_base64.as_deref()), (None, Some("/wA=")));
}

#[tokio::test]
async fn a_wrong_header_key_or_origin_is_named_by_its_pointer() {
    for (fields, pointer) in [
        (r#""headers":[{"value":"x"}]"#, "/headers/0"),
        (r#""headers":[{"name":"a","value":"x"},{"name":"b","type":"int","value":1}]"#, "/headers/1/type"),
        (r#""headers":[{"name":"a","type":"int8","value":128}]"#, "/headers/0/value"),
        (r#""headers":[{"name":"a","value":1}]"#, "/headers/0/value"),
        (r#""headers":[{"name":"a","value":"x","x":1}]"#, "/headers/0"),
        (r#""headers":[{"name":"a","name":"b","value":"x"}]"#, "/headers/0"),
        (r#""headers":[{"name":7,"value":"x"}]"#, "/headers/0/name"),
        (r#""headers":["a"]"#, "/headers/0"),
        (r#""headers":[{"name":"punctual-id","value":"x"}]"#, "/headers/0/name"),
        (r#""headers":[{"name":"CC","type":"array","value":[]}]"#, "/headers/0/name"),
        (
            r#""headers":[{"name":"a","type":"array","value":[{"type":"bytes","value":"?"}]}]"#,
            "/headers/0/value/0/value",
        ),
        (r#""headers":"x""#, "/headers"),
        (r#""key":"a","key_base64":"""#, ""),
        (r#""key_base64":"?""#, "/key_base64"),
        (r#""origin":{"no":1}"#, "/origin"),
        (r#""origin":{"timestamp":-1}"#, "/origin/timestamp"),
        (r#""origin":{"properties":{"priority":256}}"#, "/origin/properties/priority"),
    ] {
        assert_eq!(pointers(&format!(r#"{{"payload":1,{fields}}}"#)).await, [pointer], "{fields}");
    }
    let long = "x".repeat(256);
    let pointer = pointers(&format!(r#"{{"payload":1,"origin":{{"cluster_id":"{long}"}}}}"#)).await;
    assert_eq!(pointer, ["/origin/cluster_id"]);
}
