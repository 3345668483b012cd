use std::{cell::Cell, collections::BTreeMap};

use super::{super::SourceState, *};
use crate::message::{Metadata, TraceContext, TraceId};
use crate::store::redis::{RedisStore, connection::Connection};

#[test]
fn a_message_that_got_its_flow_from_the_route_is_the_same_when_it_is_read_again() {
    let same = |stored: Option<&str>, read: Option<&str>, key: &str| {
        let metadata = |flow: Option<&str>, key: &str| Metadata {
            flow: flow.map(str::to_owned),
            key: Some(key.to_owned()),
            ..Metadata::default()
        };
        let (id, payload) = (MessageId::parse("a").unwrap(), bytes::Bytes::new());
        let (due, accepted) = (UnixMillis::default(), UnixMillis::default());
        let stored = StoredMessage { due, accepted, metadata: metadata(stored, "k"), payload: payload.clone() };
        let (due, metadata) = (Due::NOW, metadata(read, key));
        is_same(
            &stored,
            &NewMessage { id, due, payload, metadata, on_conflict: OnConflict::Keep, debounce: None, record: None },
        )
    };
    assert!(same(None, None, "k") && same(Some("f"), Some("f"), "k") && same(Some("f"), None, "k"));
    assert!(!same(Some("f"), Some("g"), "k") && !same(None, Some("f"), "k") && !same(Some("f"), None, "other"));
}

#[test]
fn a_message_that_got_the_context_of_a_span_is_the_same_when_it_is_read_again() {
    let metadata = |span: u64, other: &str| {
        let mut metadata = Metadata { headers: [("x".to_owned(), other.to_owned())].into(), ..Metadata::default() };
        if span > 0 {
            metadata.replace_trace(TraceContext { trace: TraceId(1), span, is_sampled: true }, None);
        }
        metadata
    };
    let same = |stored: Metadata, read: Metadata| {
        let (id, payload, due) = (MessageId::parse("a").unwrap(), bytes::Bytes::new(), UnixMillis::default());
        let stored = StoredMessage { due, accepted: due, metadata: stored, payload: payload.clone() };
        let (due, on_conflict) = (Due::NOW, OnConflict::Keep);
        is_same(&stored, &NewMessage { id, due, payload, metadata: read, on_conflict, debounce: None, record: None })
    };
    assert!(same(metadata(1, "1"), metadata(0, "1")) && same(metadata(2, "1"), metadata(1, "1")));
    assert!(!same(metadata(1, "1"), metadata(0, "2")));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_repeated_until_punctual_stops() {
    let client = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
    let connection = Arc::new(Connection::new(client, Duration::from_secs(1)));
    let queue = Arc::new(Queue::new(Arc::new(RedisStore::new(connection, "p", [])), &BTreeMap::new(), false));
    let (stop, stopping) = watch::channel(false);
    let health = Arc::<SourceHealth>::default();
    let intake = Intake::new(queue, "in", "r".into(), health.clone(), stopping);
    let calls = Cell::new(0);
    let failed = || QueueError::Store(StoreError::Unavailable { kind: "shutdown", text: "a task has failed".into() });
    let call = |good| {
        calls.set(calls.get() + 1);
        let answer = if calls.get() == good { Ok(()) } else { Err(failed()) };
        async move { answer }
    };
    assert_eq!(intake.until_done(|| call(3)).await, Ok(()));
    assert_eq!(health.get(), (SourceState::Running, Some(failed().to_string())));
    // Less and less often, and then at the longest interval.
    let [first, longest] = RETRY_DELAYS;
    let began = Instant::now();
    calls.set(0);
    assert_eq!(intake.until_done(|| call(20)).await, Ok(()));
    assert!(began.elapsed() > longest * 10 && began.elapsed() < longest * 20, "{:?} from {first:?}", began.elapsed());
    stop.send_replace(true);
    calls.set(0);
    assert_eq!(intake.until_done(|| call(9)).await, Err(Stopped));
    assert_eq!(calls.get(), 1);
}
