//! lua/produce.lua stores what the API stores, and refuses what it refuses.

use std::collections::BTreeMap;

use punctual::{
    message::{Metadata, NewMessage, OnConflict, State, StoredMessage, codec},
    store::{Partition, ScheduleStatus, StoreError, redis::connection::classify},
    time::{Due, LAST_MILLIS, UnixMillis},
};
use redis::RedisResult;

use super::{
    bench::{Bench, MAX_PAYLOAD, id},
    include::includes,
    rows::key,
    scene::{self, ROUTE},
};

const BEGIN: &str = "-- begin include/";
const END: &str = "\n-- end\n";
const SOON: &str = "+60000";
/// As the header of the script says it.
const MAX_METADATA_BYTES: usize = 65_536;

#[tokio::test]
async fn the_script_and_the_api_store_the_same_message_alike() {
    let mut bench = Bench::start().await;
    let partition = Partition { route: ROUTE.into(), index: 0, count: 1 };
    let text = "é/\"\\\t\u{1F600} ]} \\u0041";
    let headers: BTreeMap<String, String> =
        [("X-Trace", text), ("b!#$%&'*+-.^_`|~9", "")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let metadata = [
        Metadata::default(),
        Metadata { key: Some(text.to_owned()), ..Metadata::default() },
        Metadata {
            headers: headers.into(),
            key: Some(" ".to_owned()),
            content_type: Some("application/json; charset=\"utf-8\"".into()),
            max_attempts: Some(u32::MAX),
            expires_at: Some(LAST_MILLIS),
            ..Metadata::default()
        },
        Metadata { key: Some("\"".repeat((MAX_METADATA_BYTES - 10) / 2)), ..Metadata::default() },
    ];
    for (n, metadata) in metadata.into_iter().enumerate() {
        for due in [Due::At(UnixMillis::new(LAST_MILLIS).unwrap()), Due::At(UnixMillis::default()), Due::After(60_000)]
        {
            for payload in [&b""[..], b"\0\xff\r\n{}"] {
                bench.clear().await;
                let message = |name: &str| NewMessage {
                    id: id(name),
                    due,
                    payload: payload.to_vec().into(),
                    metadata: metadata.clone(),
                    on_conflict: OnConflict::Keep,
                    debounce: None,
                    record: None,
                };
                assert_eq!(metadata.validate(), Ok(()));
                let (status, produced_due) = bench.try_produce(&partition, &message("produced")).await.expect("taken");
                let posted = bench.store.schedule(&partition, &[message("posted")]).await.expect("taken").remove(0);
                assert_eq!((status.as_str(), posted.status), ("scheduled", ScheduleStatus::Scheduled));

                let rows = bench.rows(&partition).await;
                rows.check_invariants();
                let stored = |name: &str| codec::decode(&rows.bodies[name]).expect("readable");
                let (produced, posted) = (stored("produced"), stored("posted"));
                assert_eq!(rows.pending["produced"], produced_due);
                assert_eq!(produced.due.get(), produced_due);
                assert_eq!(rows.bodies["produced"].len(), codec::encode_first(&produced).len(), "metadata {n}");
                // Only the clock has moved in between.
                let moved = posted.accepted.get().saturating_sub(produced.accepted.get());
                assert!(moved < 5000, "{moved} ms");
                if let Due::After(delay) = due {
                    assert_eq!(produced.due.get() - produced.accepted.get(), delay);
                }
                let timeless = |stored: StoredMessage| (stored.metadata, stored.payload);
                assert_eq!(timeless(produced), timeless(posted));
            }
        }
    }
}

#[tokio::test]
async fn null_stands_for_an_option_that_is_absent() {
    let mut bench = Bench::start().await;
    let options = r#"{"key":null,"headers":{},"max_attempts":null,"on_conflict":"keep"}"#;
    bench.produce_raw(ROUTE, 0, &[b"1", b"a", SOON.as_bytes(), b"", options.as_bytes()]).await.expect("taken");
    let found = bench.live(ROUTE, "a").await.expect("it is there");
    assert_eq!((found.state, found.message.unwrap().metadata), (State::Pending, Metadata::default()));
}

#[tokio::test]
async fn a_refused_flow_or_group_is_reported_with_its_form() {
    let mut bench = Bench::start().await;
    for name in ["flow", "group"] {
        let options = format!(r#"{{"{name}":"order/7"}}"#);
        let arguments = [&b"1"[..], b"a", SOON.as_bytes(), b"", options.as_bytes()];
        let error = bench.produce_raw(ROUTE, 0, &arguments).await.expect_err("refused");
        let text = format!("invalid value of {name}: it is 1 to 128 of A-Za-z0-9._:~-");
        assert!(error.to_string().contains(&text), "{error}");
    }
}

#[tokio::test]
async fn an_id_a_flow_and_a_group_have_up_to_128_bytes() {
    let mut bench = Bench::start().await;
    let longest = "x".repeat(128);
    for name in ["flow", "group"] {
        let options = format!(r#"{{"{name}":"{longest}","on_conflict":"replace"}}"#);
        let arguments = [&b"1"[..], longest.as_bytes(), SOON.as_bytes(), b"", options.as_bytes()];
        bench.produce_raw(ROUTE, 0, &arguments).await.expect("taken");
        let options = format!(r#"{{"{name}":"{longest}x"}}"#);
        let arguments = [&b"1"[..], b"a", SOON.as_bytes(), b"", options.as_bytes()];
        bench.produce_raw(ROUTE, 0, &arguments).await.expect_err("refused");
    }
}

#[tokio::test]
async fn what_the_api_refuses_the_script_refuses_and_writes_nothing() {
    let mut bench = Bench::start().await;
    let mut refused = async |slug: &str, route: &str, index: u16, arguments: &[&[u8]]| {
        let shown: Vec<_> = arguments.iter().map(|one| String::from_utf8_lossy(&one[..one.len().min(60)])).collect();
        let before = bench.dump().await;
        let error = bench.produce_raw(route, index, arguments).await.expect_err("refused");
        let StoreError::Refused { slug: got, text } = classify(&error) else { panic!("{shown:?}: {error}") };
        assert_eq!(got, slug, "{shown:?}: {text}");
        assert!(text.len() < 300 && !text.contains(['\r', '\n']), "{shown:?}: {text:?}");
        assert!(bench.dump().await == before, "{shown:?}: something was written");
    };

    let soon = SOON.as_bytes();
    for id in [&b""[..], b"a b", b"a*", b"{a}", b"a\0", b"a\r\n", b"\xc3\xa9", &[b'x'; 129]] {
        refused("invalid-id", ROUTE, 0, &[b"1", id, soon, b"", b""]).await;
    }
    for due in [
        "",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1e3",
        "-1",
        "+-1",
        "++1",
        "0x10",
        "1.5",
        " 1",
        "1\n",
        "soon",
        "9007199254740992",
        "253402387200000",
        "1700000000000000",
        "+249305040000001",
        "+9007199254740991",
        "99999999999999999999",
        "+inf",
    ] {
        assert!(Due::parse_deliver_at(due).is_err());
        refused("invalid-due", ROUTE, 0, &[b"1", b"a", due.as_bytes(), b"", b""]).await;
    }
    for options in bad_options() {
        refused("invalid-options", ROUTE, 0, &[b"1", b"a", soon, b"", &options]).await;
    }
    let before_due = &br#"{"expires_at":3999999999999}"#[..];
    refused("invalid-options", ROUTE, 0, &[b"1", b"a", b"4000000000000", b"", before_due]).await;
    refused("too-large", ROUTE, 0, &[b"1", b"a", soon, &vec![0; MAX_PAYLOAD + 1], b""]).await;
    refused("unknown-route", "four", 0, &[b"1", b"a", soon, b"", b""]).await;
    refused("unknown-route", "three", 3, &[b"1", b"a", soon, b"", b""]).await;
    for index in (0..3).filter(|index| *index != id("a").partition(3)) {
        refused("wrong-partition", "three", index, &[b"1", b"a", soon, b"", b""]).await;
    }
    for version in ["", "0", "2", "1.0"] {
        refused("version", ROUTE, 0, &[version.as_bytes(), b"a", soon, b"", b""]).await;
    }
    refused("version", ROUTE, 0, &[b"1", b"a", soon, b""]).await;
    refused("version", ROUTE, 0, &[b"1", b"a", soon, b"", b"", b""]).await;

    bench.produce_raw(ROUTE, 0, &[b"1", b"a", soon, &vec![0; MAX_PAYLOAD], b""]).await.expect("taken");
}

#[tokio::test]
async fn a_queue_of_another_release_is_left_alone() {
    let mut bench = Bench::start().await;
    let route = key(&scene::partition(), "route");
    redis::cmd("SET").arg(route).arg("2 1 0 1000 more").exec_async(&mut bench.raw).await.expect("written");
    let error = bench.produce_raw(ROUTE, 0, &[b"1", b"a", b"0", b"", b""]).await.expect_err("refused");
    assert!(matches!(classify(&error), StoreError::Refused { slug, .. } if slug == "version"));
}

#[test]
fn its_copies_of_the_includes_are_current() {
    let text = super::lua("produce");
    let (head, rest) = text.split_once(BEGIN).expect("the first include");
    let (copies, script) = rest.rsplit_once(END).expect("the end of the last include");
    let includes = includes(&text);
    if std::env::var_os("PUNCTUAL_WRITE_LUA").is_some() {
        let block = |(name, include): &(String, String)| format!("{BEGIN}{name}.lua\n{include}{}", &END[1..]);
        let copies = includes.iter().map(block).collect::<Vec<_>>().concat();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/produce.lua");
        return std::fs::write(path, format!("{head}{copies}{script}")).expect("written");
    }
    let remedy = "`PUNCTUAL_WRITE_LUA=1 cargo test --test it store::produce` writes lua/produce.lua again";
    let copies: Vec<&str> = copies.split(&format!("{END}{BEGIN}")).collect();
    for ((name, include), copy) in includes.iter().zip(&copies) {
        assert!(format!("{name}.lua\n{include}") == format!("{copy}\n"), "include/{name}.lua differs: {remedy}");
    }
    assert_eq!(includes.len(), copies.len(), "{remedy}");
}

fn bad_options() -> Vec<Vec<u8>> {
    let mut bad: Vec<Vec<u8>> = [
        "x",
        "null",
        "1",
        "\"text\"",
        "[]",
        " []",
        "[1]",
        "{",
        "{}}",
        "{\"key\":\"a\"",
        r#"{"unknown":1}"#,
        r#"{"delay":1}"#,
        r#"{"id":"b"}"#,
        r#"{"headers":[]}"#,
        r#"{"headers" : [ ]}"#,
        r#"{"headers":["a"]}"#,
        r#"{"headers":"a"}"#,
        r#"{"headers":{"A":1}}"#,
        r#"{"headers":{"A":["b"]}}"#,
        r#"{"headers":{"A":null}}"#,
        r#"{"headers":{"":"a"}}"#,
        r#"{"headers":{"a b":"a"}}"#,
        r#"{"headers":{"a:":"a"}}"#,
        r#"{"headers":{"é":"a"}}"#,
        r#"{"headers":{"Host":"a"}}"#,
        r#"{"headers":{"punctual-ID":"a"}}"#,
        r#"{"headers":{"Webhook-Id":"a"}}"#,
        r#"{"headers":{"Transfer-Encoding":"a"}}"#,
        r#"{"headers":{"X-Tenant":"a","x-tenant":"b"}}"#,
        r#"{"headers":{"X-Tenant":"a","X_Tenant":"b"}}"#,
        r#"{"headers":{"Punctual_Id":"a"}}"#,
        r#"{"headers":{"webhook_signature":"a"}}"#,
        r#"{"headers":{"Transfer_Encoding":"a"}}"#,
        r#"{"headers":{"A":"b\r\nC: d"}}"#,
        r#"{"headers":{"A":"\u0000"}}"#,
        r#"{"headers":{"A":"\u007f"}}"#,
        r#"{"key":1}"#,
        r#"{"key":["a"]}"#,
        r#"{"key":"a\nb"}"#,
        r#"{"key":"\ud800"}"#,
        r#"{"content_type":"a\r\n"}"#,
        r#"{"content_type":{}}"#,
        r#"{"max_attempts":0}"#,
        r#"{"max_attempts":-1}"#,
        r#"{"max_attempts":1.5}"#,
        r#"{"max_attempts":"1"}"#,
        r#"{"max_attempts":4294967296}"#,
        r#"{"max_attempts":1e400}"#,
        r#"{"max_attempts":nan}"#,
        r#"{"max_attempts":true}"#,
        r#"{"max_attempts":[1]}"#,
        r#"{"expires_at":-1}"#,
        r#"{"expires_at":9007199254740992}"#,
        r#"{"expires_at":0.5}"#,
        r#"{"expires_at":0}"#,
        r#"{"expires_at":253402387200000}"#,
        r#"{"expires_at":1600000000000}"#,
        r#"{"on_conflict":"merge"}"#,
        r#"{"on_conflict":1}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    // Not UTF-8, overlong, a surrogate, beyond Unicode.
    for bytes in [&b"\xff"[..], b"\xc3", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"] {
        bad.push([b"{\"key\":\"", bytes, b"\"}"].concat());
    }
    for name in RESERVED {
        bad.push(format!(r#"{{"headers":{{"{}":"a"}}}}"#, name.to_uppercase()).into_bytes());
    }
    bad.push(format!(r#"{{"headers":{{"{}":"a"}}}}"#, "x".repeat(257)).into_bytes());
    bad.push(format!(r#"{{"{}":"a"}}"#, "x\\r\\n".repeat(100_000)).into_bytes());
    bad.push(format!(r#"{{"key":"{}"}}"#, "x".repeat(MAX_METADATA_BYTES - 9)).into_bytes());
    bad.push([vec![b'['; 100_000], vec![b']'; 100_000]].concat());
    bad
}

/// RFC 9110's hop-by-hop fields, and those that frame a message.
const RESERVED: [&str; 13] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl Bench {
    async fn produce_raw(&mut self, route: &str, index: u16, arguments: &[&[u8]]) -> RedisResult<redis::Value> {
        let script = self.produce.clone();
        let count = if route == "three" { 3 } else { 1 };
        let mut call = script.key(key(&Partition { route: route.into(), index, count }, "pending"));
        for argument in arguments {
            call.arg(*argument);
        }
        call.invoke_async(&mut self.raw).await
    }
}
