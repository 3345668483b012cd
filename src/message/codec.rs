//! The stored form of a message:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | version: 2 |
//! | 8 | due time, ms since the epoch, big endian |
//! | 8 | time of acceptance, ms since the epoch, big endian |
//! | 1 | form of the rest, a sum: 1 compressed by zstd, 2 with a time of expiry, 4 metadata as in version 1, 8 with a label |
//! | 8 | with form 2: `expires_at`, ms since the epoch, big endian. Uncompressed, so that a script can change it |
//! | 2 | with form 8: length of the label, big endian |
//! | label | with form 8: key, flow, group and token (`fields`). Uncompressed, so that a script can read them |
//! | 4 | with form 1: length of the remaining bytes before compression, big endian |
//! | rest | metadata (`fields`), payload |
//!
//! Version 1 is written by `lua/produce.lua` and the `take_` scripts. After the times it has the length of the metadata
//! (4 bytes, big endian), the metadata as JSON, and the payload. With a time of expiry it is written as version 2 with
//! form 2 + 4.
//!
//! The schedule script writes the first 17 bytes, by the clock of Redis; `tail` makes the rest. A body of the single
//! byte 0 marks a lost body.

use std::cell::RefCell;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use zstd::bulk::{Compressor, Decompressor};

use super::fields;
use crate::{
    message::{Metadata, StoredMessage},
    time::UnixMillis,
};

/// The latest version; `lua/schedule.lua` and `lua/bury.lua` write it.
pub const VERSION: u8 = 2;
/// The version with metadata as JSON.
const FIRST: u8 = 1;
/// Bytes before those that `tail` makes: version, due time, time of acceptance.
const TIMES_END: usize = 1 + 8 + 8;

// Forms.
const COMPRESSED: u8 = 1;
const EXPIRES: u8 = 2;
const JSON: u8 = 4;
const LABEL: u8 = 8;

/// Minimum length for compression, in bytes: shorter bodies hardly shrink, because a zstd frame has an overhead of some
/// ten bytes.
const LEAST_COMPRESSED: usize = 256;
/// Maximum length for compression, in bytes. It bounds a decompressed body to the size that a script call takes.
const MOST_COMPRESSED: usize = 4 * 1024 * 1024;
/// The fastest of the ordinary levels: a higher one saves few bytes of small messages.
const LEVEL: i32 = 1;

/// Maximum bytes of a label in the history.
const MAX_LABEL: usize = 1024;

thread_local! {
    // Reused, because making a context costs more than compressing a message.
    static COMPRESSOR: RefCell<Compressor<'static>> =
        RefCell::new(Compressor::new(LEVEL).expect("memory for a context of zstd"));
    static DECOMPRESSOR: RefCell<Decompressor<'static>> =
        RefCell::new(Decompressor::new().expect("memory for a context of zstd"));
}

/// The stored body without its first 17 bytes.
pub fn tail(metadata: &Metadata, payload: &[u8]) -> Bytes {
    let label = fields::label(metadata);
    let mut tail = BytesMut::with_capacity(32 + label.len() + payload.len());
    put_head(0, metadata.expires_at, &label, &mut tail);
    let start = tail.len();
    fields::write(metadata, !label.is_empty(), &mut tail);
    tail.extend_from_slice(payload);
    compressed(&tail[start..], metadata.expires_at, &label).unwrap_or_else(|| tail.freeze())
}

fn put_head(form: u8, expires_at: Option<u64>, label: &[u8], tail: &mut BytesMut) {
    if label.is_empty() {
        return put_form(form, expires_at, tail);
    }
    put_form(form | LABEL, expires_at, tail);
    tail.put_u16(u16::try_from(label.len()).expect("`fields` bounds it"));
    tail.extend_from_slice(label);
}

fn put_form(form: u8, expires_at: Option<u64>, tail: &mut BytesMut) {
    match expires_at {
        None => tail.put_u8(form),
        Some(at) => {
            tail.put_u8(form | EXPIRES);
            tail.put_u64(at);
        }
    }
}

/// `rest` as a compressed tail, if that is at least an eighth smaller.
fn compressed(rest: &[u8], expires_at: Option<u64>, label: &[u8]) -> Option<Bytes> {
    if !(LEAST_COMPRESSED..=MOST_COMPRESSED).contains(&rest.len()) {
        return None;
    }
    let frame = COMPRESSOR.with_borrow_mut(|compressor| compressor.compress(rest)).ok()?;
    if frame.len() + 4 > rest.len() - rest.len() / 8 {
        return None;
    }
    let mut tail = BytesMut::with_capacity(1 + 8 + 2 + label.len() + 4 + frame.len());
    put_head(COMPRESSED, expires_at, label, &mut tail);
    tail.put_u32(u32::try_from(rest.len()).ok()?);
    tail.extend_from_slice(&frame);
    Some(tail.freeze())
}

/// The reason why a stored body cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the body was lost")]
    Lost,
    #[error("stored by a release that writes version {0}, this one reads {VERSION}")]
    Version(u8),
    #[error("the stored body is damaged")]
    Damaged,
}

/// # Errors
/// When the body marks a lost one, has an unknown version, or is malformed.
pub fn decode(body: &Bytes) -> Result<StoredMessage, DecodeError> {
    match body.first() {
        Some(&(FIRST | VERSION)) => {}
        Some(0) => return Err(DecodeError::Lost),
        Some(&other) => return Err(DecodeError::Version(other)),
        None => return Err(DecodeError::Damaged),
    }
    if body.len() <= TIMES_END {
        return Err(DecodeError::Damaged);
    }
    let millis = |at: usize| {
        let bytes = body[at..at + 8].try_into().expect("eight bytes");
        UnixMillis::new(u64::from_be_bytes(bytes)).ok_or(DecodeError::Damaged)
    };
    let (due, accepted) = (millis(1)?, millis(9)?);
    let rest = body.slice(TIMES_END..);
    let (metadata, payload) = if body[0] == FIRST { first(rest) } else { latest(rest) }.ok_or(DecodeError::Damaged)?;
    Ok(StoredMessage { due, accepted, metadata, payload })
}

/// The time of acceptance in a body, in milliseconds; `None` for a body that is too short.
pub fn accepted(body: &[u8]) -> Option<u64> {
    body.get(9..TIMES_END)?.try_into().ok().map(u64::from_be_bytes)
}

/// The times of a body, as they are stored; zeros for a body that is too short.
pub(super) fn times(body: &[u8]) -> [u8; 16] {
    body.get(1..TIMES_END).and_then(|times| times.try_into().ok()).unwrap_or_default()
}

/// The label of a body, as `lua/include/label.lua` reads it: empty for one that cannot be read.
pub(super) fn label(body: &Bytes) -> Bytes {
    let label = match body[..] {
        [VERSION, ..] if body.get(TIMES_END).is_some_and(|form| form & JSON == 0) => labelled(body),
        _ => decode(body).ok().map(|message| fields::label(&message.metadata).freeze()),
    };
    // A copy, because a slice would keep the whole body in memory.
    label.filter(|label| label.len() <= MAX_LABEL).map_or_else(Bytes::new, |label| Bytes::copy_from_slice(&label))
}

/// The label of a body with a label.
fn labelled(body: &Bytes) -> Option<Bytes> {
    let form = body[TIMES_END];
    let at = TIMES_END + if form & EXPIRES == 0 { 1 } else { 1 + 8 };
    let length = u16::from_be_bytes(body.get(at..at + 2)?.try_into().ok()?);
    let end = at + 2 + usize::from(length);
    (form & LABEL != 0 && end <= body.len()).then(|| body.slice(at + 2..end))
}

/// Metadata and payload of version 1.
fn first(mut rest: Bytes) -> Option<(Metadata, Bytes)> {
    let length = rest.try_get_u32().ok()? as usize;
    let json = (length <= rest.len()).then(|| rest.split_to(length))?;
    let metadata = if json.is_empty() { Metadata::default() } else { serde_json::from_slice(&json).ok()? };
    Some((metadata, rest))
}

/// Metadata and payload of version 2.
fn latest(mut rest: Bytes) -> Option<(Metadata, Bytes)> {
    let form = rest.try_get_u8().ok().filter(|form| form & !(COMPRESSED | EXPIRES | JSON | LABEL) == 0)?;
    let expires_at = if form & EXPIRES == 0 { None } else { Some(rest.try_get_u64().ok()?) };
    let label = if form & LABEL == 0 {
        Bytes::new()
    } else {
        let length = usize::from(rest.try_get_u16().ok()?);
        (length <= rest.len()).then(|| rest.split_to(length))?
    };
    if form & COMPRESSED != 0 {
        let length = rest.try_get_u32().ok()? as usize;
        let plain = (length <= MOST_COMPRESSED)
            .then(|| DECOMPRESSOR.with_borrow_mut(|decompressor| decompressor.decompress(&rest, length)).ok())??;
        rest = (plain.len() == length).then(|| Bytes::from(plain))?;
    }
    let (mut metadata, payload) = if form & JSON == 0 { (fields::read(&mut rest)?, rest) } else { first(rest)? };
    fields::read_label(label, &mut metadata)?;
    Some((Metadata { expires_at, ..metadata }, payload))
}

/// Bytes that a stored body takes once decoded. `lua/include/weight.lua` computes the same number.
pub fn weight(body: &[u8]) -> usize {
    let form = match body.get(TIMES_END) {
        Some(form) if body[0] == VERSION && form & COMPRESSED != 0 => form,
        _ => return body.len(),
    };
    let mut start = TIMES_END + if form & EXPIRES == 0 { 1 } else { 1 + 8 };
    if form & LABEL != 0
        && let Some(length) = body.get(start..start + 2)
    {
        start += 2 + usize::from(u16::from_be_bytes(length.try_into().expect("two bytes")));
    }
    body.get(start..start + 4)
        .and_then(|length| length.try_into().ok())
        .map_or(body.len(), |length| start + u32::from_be_bytes(length) as usize)
}

/// `body` with this time of expiry, or without one; unchanged if it cannot be read. `lua/include/expiry.lua` does the
/// same.
pub fn expiring(body: &Bytes, expires_at: Option<u64>) -> Bytes {
    let (form, rest) = match (decode(body), body.first()) {
        (Ok(_), Some(&FIRST)) if expires_at.is_some() => (JSON, &body[TIMES_END..]),
        (Ok(old), Some(&VERSION)) => {
            let start = if old.metadata.expires_at.is_some() { TIMES_END + 1 + 8 } else { TIMES_END + 1 };
            (body[TIMES_END] & !EXPIRES, &body[start..])
        }
        _ => return body.clone(),
    };
    let mut changed = BytesMut::from(&body[..TIMES_END]);
    changed[0] = VERSION;
    put_form(form, expires_at, &mut changed);
    changed.extend_from_slice(rest);
    changed.freeze()
}

/// A complete body, as the schedule script writes it.
pub fn encode(message: &StoredMessage) -> Bytes {
    with_times(VERSION, message, &tail(&message.metadata, &message.payload))
}

/// A complete body with metadata as JSON, as `lua/produce.lua` writes it.
pub fn encode_first(message: &StoredMessage) -> Bytes {
    let expires_at = message.metadata.expires_at;
    let others = Metadata { expires_at: None, ..message.metadata.clone() };
    let json = serde_json::to_vec(&others).expect("strings and integers always serialize");
    let mut tail = BytesMut::with_capacity(1 + 8 + 4 + json.len() + message.payload.len());
    if expires_at.is_some() {
        put_form(JSON, expires_at, &mut tail);
    }
    tail.put_u32(u32::try_from(json.len()).expect("far below 4 GiB: no source keeps more than 16 MiB"));
    tail.extend_from_slice(&json);
    tail.extend_from_slice(&message.payload);
    with_times(if expires_at.is_some() { VERSION } else { FIRST }, message, &tail)
}

fn with_times(version: u8, message: &StoredMessage, tail: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(TIMES_END + tail.len());
    body.put_u8(version);
    body.put_u64(message.due.get());
    body.put_u64(message.accepted.get());
    body.extend_from_slice(tail);
    body.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> StoredMessage {
        StoredMessage {
            due: UnixMillis::new(1_700_000_000_123).unwrap(),
            accepted: UnixMillis::new(1_700_000_000_000).unwrap(),
            metadata: Metadata {
                headers: [("X-Trace".to_owned(), "é/\"".to_owned())].into(),
                key: Some("k".into()),
                expires_at: Some(9_007_199_254_740_991),
                ..Metadata::default()
            },
            payload: Bytes::from_static(b"\0\xff{}"),
        }
    }

    /// Bytes that cannot be compressed.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        assert_eq!(decode(&encode(&message())), Ok(message()));
        assert_eq!(decode(&encode_first(&message())), Ok(message()));
    }

    #[test]
    fn a_time_of_expiry_is_set_and_dropped_in_every_form() {
        let long = StoredMessage { payload: vec![b'x'; 1000].into(), ..message() };
        for (message, body) in
            [&message(), &long].into_iter().flat_map(|one| [(one, encode(one)), (one, encode_first(one))])
        {
            for at in [None, Some(7), None, Some(8)] {
                let changed = expiring(&body, at);
                let metadata = Metadata { expires_at: at, ..message.metadata.clone() };
                assert_eq!(decode(&changed), Ok(StoredMessage { metadata, ..message.clone() }));
                assert_eq!(expiring(&changed, message.metadata.expires_at), body);
            }
        }
        let never = StoredMessage { metadata: Metadata::default(), ..message() };
        assert_eq!(expiring(&encode_first(&never), None), encode_first(&never));
        assert_eq!(decode(&expiring(&encode_first(&never), Some(1))).unwrap().metadata.expires_at, Some(1));
    }

    #[test]
    fn damage_is_told_from_loss_and_from_a_newer_release() {
        for whole in [encode(&message()), encode_first(&message())] {
            for cut in 1..whole.len() - message().payload.len() {
                assert_eq!(decode(&whole.slice(..cut)), Err(DecodeError::Damaged), "cut at {cut}");
            }
        }
        assert_eq!(decode(&Bytes::new()), Err(DecodeError::Damaged));
        assert_eq!(decode(&Bytes::from_static(b"\0")), Err(DecodeError::Lost));
        assert_eq!(decode(&Bytes::from_static(b"\x03abc")), Err(DecodeError::Version(3)));
    }

    #[test]
    fn a_body_of_version_1_as_producers_write_it_is_read() {
        let stored = b"\x01\0\0\x01\x8b\xcf\xe5\x68\x7b\0\0\x01\x8b\xcf\xe5\x68\0\0\0\0\x0b{\"key\":\"k\"}text";
        let message = decode(&Bytes::from_static(stored)).unwrap();
        assert_eq!((message.due.get(), message.accepted.get()), (1_700_000_000_123, 1_700_000_000_000));
        assert_eq!((message.metadata.key.as_deref(), &message.payload[..]), (Some("k"), &b"text"[..]));
    }

    #[test]
    fn a_body_is_compressed_when_that_makes_it_smaller() {
        let with = |payload: Vec<u8>| encode(&StoredMessage { payload: payload.into(), ..message() });
        let text = |length: usize| "order 12345, 3 pieces; ".bytes().cycle().take(length).collect::<Vec<_>>();
        for (payload, smaller) in [
            (text(100), false),
            (text(1000), true),
            (text(1 << 20), true),
            (text(MOST_COMPRESSED), false),
            (noise(1000), false),
        ] {
            let (length, body) = (payload.len(), with(payload.clone()));
            assert_eq!(body.len() < length, smaller, "{length} bytes became {}", body.len());
            assert!((length..length + 72).contains(&weight(&body)), "{length}: {}", weight(&body));
            assert_eq!(decode(&body).unwrap().payload, payload);
        }
    }

    #[test]
    fn a_frame_that_has_another_length_than_it_names_is_damaged() {
        let body = encode(&StoredMessage { payload: vec![b'x'; 100_000].into(), ..message() });
        assert!(body.len() < 200, "{}", body.len());
        let start = TIMES_END + 1 + 8 + 2 + 3;
        let named = u32::try_from(weight(&body) - start).unwrap();
        for other in [0, 1, named - 1, named + 1, u32::try_from(MOST_COMPRESSED).unwrap() + 1, u32::MAX] {
            let mut changed = BytesMut::from(&body[..]);
            changed[start..start + 4].copy_from_slice(&other.to_be_bytes());
            assert_eq!(decode(&changed.freeze()), Err(DecodeError::Damaged), "{other}");
        }
    }

    #[test]
    fn a_label_is_read_without_the_rest_of_its_body() {
        let labelled = |expires_at, group: Option<&str>, payload: usize| {
            let metadata = Metadata {
                key: Some("k".into()),
                flow: Some("f".into()),
                group: group.map(str::to_owned),
                scheduled_by: Some("shop".into()),
                expires_at,
                ..Metadata::default()
            };
            StoredMessage { metadata, payload: vec![b'x'; payload].into(), ..message() }
        };
        for message in [labelled(None, None, 1), labelled(Some(7), Some("g"), 1), labelled(Some(7), None, 4000)] {
            let expected = fields::label(&message.metadata).freeze();
            for body in [encode(&message), encode_first(&message)] {
                assert_eq!(label(&body), expected);
                let mut read = Metadata::default();
                fields::read_label(label(&body), &mut read).unwrap();
                let Metadata { key, flow, group, scheduled_by, .. } = message.metadata.clone();
                assert_eq!(read, Metadata { flow, group, key, scheduled_by, ..Metadata::default() });
            }
        }
        let plain = StoredMessage { metadata: Metadata::default(), ..message() };
        assert_eq!((label(&encode(&plain)), label(&encode_first(&plain))), (Bytes::new(), Bytes::new()));
        let long = labelled(None, Some(&"g".repeat(MAX_LABEL)), 1);
        assert_eq!(label(&encode(&long)), Bytes::new(), "too long");
        for cut in 0..encode(&labelled(None, None, 1)).len() {
            let part = label(&encode(&labelled(None, None, 1)).slice(..cut));
            assert!(part.is_empty() || part.len() == fields::label(&labelled(None, None, 1).metadata).len(), "{cut}");
        }
    }

    #[test]
    fn the_weight_of_a_body_is_its_length_before_compression() {
        for expires_at in [None, Some(7)] {
            let metadata = Metadata { expires_at, key: Some("k".into()), ..Metadata::default() };
            let long = |byte| StoredMessage { metadata: metadata.clone(), payload: byte, ..message() };
            let [same, random] = [vec![b'x'; 4000], noise(4000)].map(|payload| encode(&long(payload.into())));
            assert!(same.len() < 200 && random.len() > 4000);
            assert_eq!(weight(&random), random.len());
            // Besides the length in front of the frame.
            assert!(weight(&same).abs_diff(random.len()) <= 4, "{} {}", weight(&same), random.len());
            let first = encode_first(&long(vec![b'x'; 4000].into()));
            assert_eq!(weight(&first), first.len());
        }
    }

    #[test]
    fn a_body_is_compressed_from_a_saving_of_an_eighth() {
        let noise = noise(1040);
        let plain = StoredMessage { metadata: Metadata::default(), ..message() };
        let mut largest = i64::MIN;
        for (length, noisy) in
            (1000..1040).flat_map(|length| (3 * length / 4..length).map(move |noisy| (length, noisy)))
        {
            let payload = [&noise[..noisy], &vec![b'x'; length - noisy]].concat().into();
            let tail = encode(&StoredMessage { payload, ..plain.clone() }).slice(TIMES_END..);
            // The end of the metadata is a byte.
            let bound = length + 1 - (length + 1) / 8;
            if tail[0] == COMPRESSED {
                largest = largest.max(i64::try_from(tail.len() - 1).unwrap() - i64::try_from(bound).unwrap());
            }
        }
        assert_eq!(largest, 0);
    }

    #[test]
    fn a_label_is_stored_once() {
        let metadata = Metadata { key: Some("unusual".into()), ..Metadata::default() };
        let body = encode(&StoredMessage { metadata, ..message() });
        assert_eq!(body.windows(7).filter(|part| part == b"unusual").count(), 1, "{body:?}");
    }

    #[test]
    fn a_label_is_read_before_damage_and_in_every_form() {
        let metadata = Metadata { key: Some("k".into()), ..Metadata::default() };
        let expected = fields::label(&metadata).freeze();
        let keyed = StoredMessage { metadata, ..message() };
        let whole = encode(&keyed);
        // Form and length come before the label.
        let cut = whole.slice(..TIMES_END + 1 + 2 + expected.len());
        assert_eq!((decode(&cut), label(&cut)), (Err(DecodeError::Damaged), expected.clone()));
        let json = expiring(&expiring(&encode_first(&keyed), Some(7)), None);
        assert_eq!((json[0], json[TIMES_END], label(&json)), (VERSION, JSON, expected));
        // Without a label the end of the metadata and the payload look like one.
        let plain =
            StoredMessage { metadata: Metadata::default(), payload: Bytes::from_static(b"\x01text"), ..message() };
        assert_eq!(label(&encode(&plain)), Bytes::new());
    }

    #[test]
    fn the_weight_of_a_body_without_a_label_is_its_length_before_compression_too() {
        let plain = |payload: Bytes| encode(&StoredMessage { metadata: Metadata::default(), payload, ..message() });
        // Form, length and the end of the metadata.
        assert_eq!(weight(&plain(vec![b'x'; 4000].into())), TIMES_END + 1 + 4000 + 1);
    }

    #[test]
    fn metadata_as_json_leave_the_time_of_expiry_to_the_head() {
        let body = encode_first(&message());
        assert!(!body.windows(10).any(|part| part == b"expires_at"), "{body:?}");
    }
}
