//! Cursors: the position after which a listing continues, as score and id. Opaque to callers.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use super::QueueError;
use crate::{
    message::MessageId,
    store::{BulkProgress, Order},
    time::UnixMillis,
};

/// The place of an end in lists: time, then partition and number of the end.
pub type EndKey = (UnixMillis, u16, u64);

/// Index and number of a partition, the start of the call that began, and the last id there.
type GroupPlace = ((u16, u16), Option<UnixMillis>, Option<MessageId>);

pub fn encode(order: Order, score: u64, id: &MessageId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}{score} {id}", sign(order)))
}

/// # Errors
/// `Invalid` unless `encode` made the cursor, in the same order.
pub fn decode(order: Order, cursor: &str) -> Result<(u64, MessageId), QueueError> {
    let parse = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (score, id) = text.strip_prefix(sign(order))?.split_once(' ')?;
        let score = score.strip_prefix(|first: char| first.is_ascii_digit()).map(|_| score)?;
        Some((score.parse().ok()?, MessageId::stored(id).ok()?))
    };
    parse().ok_or_else(|| QueueError::Invalid("the cursor is not one that a listing in this order gave out".into()))
}

fn sign(order: Order) -> &'static str {
    match order {
        Order::Ascending => "",
        Order::Descending => "-",
    }
}

/// The cursor of a list of ends: time, partition and number of the last one.
pub fn encode_ended(order: Order, (at, partition, number): EndKey) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}{} {partition} {number}", sign(order), at.get()))
}

/// # Errors
/// `Invalid` unless `encode_ended` made the cursor, in the same order.
pub fn decode_ended(order: Order, cursor: &str) -> Result<EndKey, QueueError> {
    let parse = || {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
        let text = text.strip_prefix(sign(order))?;
        let [at, partition, number] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some((UnixMillis::new(at.parse().ok()?)?, partition.parse().ok()?, number.parse().ok()?))
    };
    parse().ok_or_else(|| QueueError::Invalid("the cursor is not one that a listing in this order gave out".into()))
}

/// The cursor of a bulk call: the partition, the end of its filter, and the position.
pub fn encode_bulk(partition: u16, done: &BulkProgress) -> String {
    let until = done.until.unwrap_or_default().get();
    let place = done.place.as_ref().map_or_else(String::new, |(score, id)| format!(" {score} {id}"));
    URL_SAFE_NO_PAD.encode(format!("{partition} {until}{place}"))
}

/// # Errors
/// `Invalid` unless `encode_bulk` made the cursor.
pub fn decode_bulk(cursor: &str) -> Result<(u16, BulkProgress), QueueError> {
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
        Some((partition.parse().ok()?, BulkProgress { until, place, ..BulkProgress::default() }))
    };
    parse().ok_or_else(|| QueueError::Invalid("the cursor is not one that a bulk call gave out".into()))
}

/// The cursor of a group: index and number of a partition, the start of the call that began, and the last id there.
pub fn encode_group((index, count): (u16, u16), before: Option<UnixMillis>, after: Option<&MessageId>) -> String {
    let before = before.unwrap_or_default().get();
    URL_SAFE_NO_PAD.encode(format!("{index}/{count} {before} {}", after.map_or("", MessageId::as_str)))
}

/// # Errors
/// `Invalid` unless `encode_group` made the cursor.
pub fn decode_group(cursor: &str) -> Result<GroupPlace, QueueError> {
    let parse = || {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
        let [partition, before, after] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
        let (index, count) = partition.split_once('/')?;
        let before = UnixMillis::new(before.parse().ok()?)?;
        let after = if after.is_empty() { None } else { Some(MessageId::stored(after).ok()?) };
        let before = Some(before).filter(|before| *before != UnixMillis::default());
        Some(((index.parse().ok()?, count.parse().ok()?), before, after))
    };
    parse().ok_or_else(|| QueueError::Invalid("the cursor is not one that a call for a group gave out".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_given_out_is_taken_back() {
        let id = MessageId::parse("order:42").unwrap();
        let orders = [Order::Ascending, Order::Descending];
        for (order, other) in [(orders[0], orders[1]), (orders[1], orders[0])] {
            let cursor = encode(order, 1_700_000_000_000, &id);
            assert_eq!(decode(order, &cursor), Ok((1_700_000_000_000, id.clone())));
            assert!(decode(other, &cursor).is_err());
        }
        for place in [None, Some((1, id.clone()))] {
            let done = BulkProgress { until: UnixMillis::new(7), place, ..BulkProgress::default() };
            assert_eq!(decode_bulk(&encode_bulk(3, &done)), Ok((3, done)));
        }
        for (before, after) in [(None, None), (UnixMillis::new(7), Some(&id))] {
            let place = ((2, 4), before, after.cloned());
            assert_eq!(decode_group(&encode_group((2, 4), before, after)), Ok(place));
        }
        let key = (UnixMillis::new(1_700_000_000_000).expect("a time"), 3, u64::MAX);
        for (order, other) in [(orders[0], orders[1]), (orders[1], orders[0])] {
            assert_eq!(decode_ended(order, &encode_ended(order, key)), Ok(key));
            assert!(decode_ended(other, &encode_ended(order, key)).is_err());
        }
        for bad in ["", "x", "MSAy", "MSAyIDMgNA"] {
            assert!(orders.iter().all(|order| decode_ended(*order, bad).is_err()), "{bad}");
        }
        for bad in ["", "x", "MSAyIDM"] {
            assert!(decode_group(bad).is_err(), "{bad}");
            assert!(decode_bulk(bad).is_err(), "{bad}");
        }
        for bad in ["", "x", "!!", "MQ", "MSBhIGI"] {
            assert!(orders.iter().all(|order| decode(*order, bad).is_err()), "{bad}");
        }
    }
}
