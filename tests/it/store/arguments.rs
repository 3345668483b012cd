//! Arguments of the calls in the scenes.

use std::time::Duration;

use bytes::Bytes;
use punctual::{
    message::{Cancellation, DeadReason, LogRecord, Metadata, NewMessage, OnConflict},
    store::{ClaimEnd, ClaimRequest, Edit, FailedAttempt, Filter, Lease, Selection, Sent, Settlement, Suspects, Token},
    time::{Due, UnixMillis},
};

use super::{
    bench::id,
    content::{HELD_UNTIL, LONG_AGO, rows},
    operation::{BY, FAR},
};

/// Current ones with a history and without, a stale one, an unknown one, and one named again.
pub fn leases() -> Vec<Lease> {
    let rows = rows();
    let size = |text: &str| rows.bodies.get(text).map_or(0, Bytes::len);
    let lease = |text: &str, token| Lease { id: id(text), token: Token(token), bytes: size(text) };
    let held = HELD_UNTIL - 1;
    vec![
        lease("held", held),
        lease("due", 1),
        lease("held-failed", held),
        lease("expired", 1_999_999),
        lease("unknown", held),
        lease("held-crashed", held),
        lease("held-both", held),
        lease("held-anew", held),
        lease("held", held),
    ]
}

pub fn attempt() -> FailedAttempt {
    FailedAttempt {
        duration: Duration::from_millis(7),
        outcome: "failed",
        status: Some(500),
        instance: "host:1".into(),
        error: "HTTP 500".into(),
    }
}

/// Settlements after attempts that failed.
pub fn failed(end: &ClaimEnd) -> Vec<Settlement> {
    let settlement = |lease| Settlement { attempt: Some(attempt()), ..Settlement::new(lease, end.clone()) };
    leases().into_iter().map(settlement).collect()
}

pub fn ends() -> [ClaimEnd; 5] {
    [
        ClaimEnd::Ack,
        ClaimEnd::Retry { delay: Duration::ZERO, error: "HTTP 500".into(), hold: None },
        ClaimEnd::Bury { reason: DeadReason::Expired, error: "too late".into() },
        ClaimEnd::Release { at: UnixMillis::default() },
        ClaimEnd::Defer { pause: Duration::ZERO, sent: Sent::Yes { hold: None } },
    ]
}

pub fn some_dead() -> Selection {
    Selection::Ids { ids: ["dead", "due", "unknown", "dead-lost", "dead"].map(id).to_vec(), until: None }
}

pub fn all_dead() -> Selection {
    Selection::Where(Filter::default())
}

pub fn claim(claimant: u64, sequence: u64) -> ClaimRequest {
    ClaimRequest {
        claimant,
        sequence,
        again: false,
        backlog: sequence.is_multiple_of(2),
        suspects: Suspects::Defer(Duration::ZERO),
        max_suspects: 1,
        limit: 10,
        max_bytes: u64::MAX,
        lease: Duration::from_secs(30),
    }
}

pub fn message(text: &str, due: Due, replace: bool) -> NewMessage {
    NewMessage {
        id: id(text),
        due,
        payload: Bytes::from_static(b"new"),
        metadata: Metadata::default(),
        on_conflict: if replace { OnConflict::Replace } else { OnConflict::Keep },
        debounce: None,
        record: None,
    }
}

pub fn record(offset: u64) -> LogRecord {
    LogRecord { place: "t:0".into(), offset, timestamp: LONG_AGO }
}

pub fn cancelled(text: &str) -> Cancellation {
    Cancellation { id: id(text), record: Some(record(8)), unseen: true, keep_dead: false, by: BY.map(str::to_owned) }
}

pub fn edited(payload: &'static str) -> Edit {
    Edit { payload: Some(payload.into()), ..Edit::default() }
}

pub fn read_from(offset: u64, message: NewMessage) -> NewMessage {
    NewMessage { record: Some(record(offset)), ..message }
}

/// The message that a scene about lua/produce.lua sends; `waiting`: a pending one.
pub fn to_produce(scene: &str, waiting: &str) -> NewMessage {
    match scene {
        "produce" => message("fresh", Due::At(UnixMillis::default()), false),
        "produce in place of a pending one" => message(waiting, Due::NOW, true),
        _ => message("dead", Due::NOW, true),
    }
}

/// In scenes about groups, a message of one. An id of odd length keeps none.
pub fn grouped(kind: &str, mut message: NewMessage) -> NewMessage {
    if kind == "groups" && message.id.as_str().len().is_multiple_of(2) {
        message.metadata.group = Some("new".to_owned());
    }
    message
}

pub fn batch(kind: &str) -> Vec<NewMessage> {
    let batch = [
        message("fresh", Due::After(FAR), false),
        message("ended", Due::NOW, true),
        read_from(7, message("ended", Due::NOW, true)),
        read_from(8, message("ended", Due::After(FAR), true)),
        read_from(8, message("new", Due::After(FAR), true)),
        message("long-gone", Due::At(UnixMillis::default()), false),
        message("early", Due::At(UnixMillis::default()), false),
        message("fresh", Due::After(FAR + 1), true),
        message("due", Due::NOW, false),
        message("failed", Due::NOW, true),
        message("failed", Due::After(1), true),
        read_from(9, message("failed", Due::After(2), true)),
        message("held", Due::NOW, true),
        message("dead-crashed", Due::NOW, false),
        message("dead", Due::NOW, true),
        message("dead-lost", Due::NOW, true),
        message("orphan", Due::NOW, true),
    ];
    batch.map(|message| grouped(kind, message)).to_vec()
}
