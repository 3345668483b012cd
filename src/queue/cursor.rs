//! Cursors: the position after which a listing continues, as score and id. Opaque to callers.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use super::QueueError;
use crate::{message::MessageId, store::DeadProgress, time::UnixMillis};

pub fn encode(score: u64, id: &MessageId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{score} {id}"))
}

/// # Errors
/// `Invalid` unless `encode` made the cursor.
pub fn decode(cursor: &str) -> Result<(u64, MessageId), QueueError> {
    let parse = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (score, id) = text.split_once(' ')?;
        Some((score.parse().ok()?, MessageId::stored(id).ok()?))
    };
    parse().ok_or_else(|| QueueError::Invalid("the cursor is not one that a listing gave out".into()))
}

/// The cursor of a bulk call: the partition, the end of its filter, and the position.
pub fn encode_bulk(partition: u16, done: &DeadProgress) -> String {
    let until = done.until.unwrap_or_default().get();
    let place = done.place.as_ref().map_or_else(String::new, |(score, id)| format!(" {score} {id}"));
    URL_SAFE_NO_PAD.encode(format!("{partition} {until}{place}"))
}

/// # Errors
/// `Invalid` unless `encode_bulk` made the cursor.
pub fn decode_bulk(cursor: &str) -> Result<(u16, DeadProgress), QueueError> {
    let parse = || {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
        let parts: Vec<&str> = text.split(' ').collect();
        let (partition, until, place) = match parts[..] {
            [partition, until] => (partition, until, None),
            [partition, until, score, id] => {
                (partition, until, Some((score.parse().ok()?, MessageId::stored(id).ok()?)))
            }
            _ => return None,
        };
        // 0 means that the time ended before the first script.
        let until = UnixMillis::new(until.parse().ok()?)?;
        let until = Some(until).filter(|until| *until != UnixMillis::default());
        Some((partition.parse().ok()?, DeadProgress { until, place, ..DeadProgress::default() }))
    };
    parse().ok_or_else(|| QueueError::Invalid("the cursor is not one that a bulk call gave out".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_given_out_is_taken_back() {
        let id = MessageId::parse("order:42").unwrap();
        assert_eq!(decode(&encode(1_700_000_000_000, &id)), Ok((1_700_000_000_000, id.clone())));
        for place in [None, Some((1, id.clone()))] {
            let done = DeadProgress { until: UnixMillis::new(7), place, ..DeadProgress::default() };
            assert_eq!(decode_bulk(&encode_bulk(3, &done)), Ok((3, done)));
        }
        for bad in ["", "x", "MSAyIDM"] {
            assert!(decode_bulk(bad).is_err(), "{bad}");
        }
        for bad in ["", "x", "!!", "MQ", "MSBhIGI"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }
}
