//! The stored form of a message, field by field:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | version: 1 |
//! | 8 | due time, ms since the epoch, big endian |
//! | 8 | time of acceptance, the same |
//! | 4 | length of the metadata, big endian |
//! | n | metadata, JSON |
//! | rest | payload |
//!
//! The schedule script writes the first 17 bytes, on Redis' clock; `tail` makes the rest. A body of the single byte 0
//! marks a lost one.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    message::{Metadata, StoredMessage},
    time::UnixMillis,
};

/// The version that this release writes.
pub const VERSION: u8 = 1;
/// Bytes before the metadata: version, due, acceptance, length.
const PREFIX_BYTES: usize = 1 + 8 + 8 + 4;

/// The body after the two times.
pub fn tail(metadata: &Metadata, payload: &[u8]) -> Bytes {
    let json = serde_json::to_vec(metadata).expect("strings and integers always serialize");
    let mut tail = BytesMut::with_capacity(4 + json.len() + payload.len());
    tail.put_u32(u32::try_from(json.len()).expect("far below 4 GiB: no source keeps more than 16 MiB"));
    tail.extend_from_slice(&json);
    tail.extend_from_slice(payload);
    tail.freeze()
}

/// Why a stored body cannot be read.
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
/// When the body is the marker of a lost one, has another version, or is malformed.
pub fn decode(body: &Bytes) -> Result<StoredMessage, DecodeError> {
    match body.first() {
        Some(&VERSION) => {}
        Some(0) => return Err(DecodeError::Lost),
        Some(&other) => return Err(DecodeError::Version(other)),
        None => return Err(DecodeError::Damaged),
    }
    if body.len() < PREFIX_BYTES {
        return Err(DecodeError::Damaged);
    }
    let millis = |at: usize| {
        let bytes = body[at..at + 8].try_into().expect("eight bytes");
        UnixMillis::new(u64::from_be_bytes(bytes)).ok_or(DecodeError::Damaged)
    };
    let length = u32::from_be_bytes(body[17..21].try_into().expect("four bytes")) as usize;
    let end = PREFIX_BYTES + length;
    if body.len() < end {
        return Err(DecodeError::Damaged);
    }
    Ok(StoredMessage {
        due: millis(1)?,
        accepted: millis(9)?,
        metadata: if length == 0 {
            Metadata::default()
        } else {
            serde_json::from_slice(&body[PREFIX_BYTES..end]).map_err(|_| DecodeError::Damaged)?
        },
        payload: body.slice(end..),
    })
}

/// A whole body, as the scheduling scripts write it.
pub fn encode(message: &StoredMessage) -> Bytes {
    let tail = tail(&message.metadata, &message.payload);
    let mut body = BytesMut::with_capacity(17 + tail.len());
    body.put_u8(VERSION);
    body.put_u64(message.due.get());
    body.put_u64(message.accepted.get());
    body.extend_from_slice(&tail);
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

    #[test]
    fn what_was_encoded_is_decoded() {
        assert_eq!(decode(&encode(&message())), Ok(message()));
    }

    #[test]
    fn damage_is_told_from_loss_and_from_a_newer_release() {
        let whole = encode(&message());
        for cut in 1..whole.len() - message().payload.len() {
            assert_eq!(decode(&whole.slice(..cut)), Err(DecodeError::Damaged), "cut at {cut}");
        }
        assert_eq!(decode(&Bytes::new()), Err(DecodeError::Damaged));
        assert_eq!(decode(&Bytes::from_static(b"\0")), Err(DecodeError::Lost));
        assert_eq!(decode(&Bytes::from_static(b"\x02abc")), Err(DecodeError::Version(2)));
    }
}
