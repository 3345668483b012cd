//! What a record asks for.

use std::time::Duration;

use super::{
    content::metadata,
    record::Record,
    schedule,
    timing::{self, TIMING},
};
use crate::{
    message::{Cancellation, MessageId, NewMessage, OnConflict, digest},
    source::Entry,
    time::Due,
};

/// Largest value that is kept, as a dead letter at least, in bytes: beyond, Redis is the wrong place.
const MAX_KEPT_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub enum Reading {
    Take(Entry),
    /// Overdue for too long. With the cancellation of what it replaces, which is no longer wanted either.
    Skip(Option<Cancellation>),
    /// Of so many bytes, which is more than can be kept.
    TooLarge(usize),
}

/// `now`: milliseconds since the epoch.
pub fn read(record: Record, max_overdue: Option<Duration>, now: u64) -> Reading {
    let size = record.size();
    if size > MAX_KEPT_BYTES {
        return Reading::TooLarge(size);
    }
    if record.unreadable {
        return invalid(record, "the name of a header is not UTF-8".into());
    }
    if record.value.is_none() {
        return tombstone(record);
    }
    let is_schedule = schedule::is_schedule(&record);
    let read_from = is_schedule.then(|| record.to_log_record());
    let read = if is_schedule {
        schedule::read(&record)
    } else {
        timing::due(&record).map(|due| {
            let (id, told) = place(&record);
            let mut metadata = metadata(record.key.as_deref(), &record.headers, &TIMING);
            if let Some(told) = told {
                metadata.origin.get_or_insert_default().id = Some(told);
            }
            (id, due, metadata)
        })
    };
    let (id, due, metadata) = match read {
        Ok(read) => read,
        Err(error) => return invalid(record, error),
    };
    if let (Due::At(at), Some(most)) = (due, max_overdue)
        && u128::from(now.saturating_sub(at.get())) > most.as_millis()
    {
        return Reading::Skip(is_schedule.then_some(Cancellation { record: read_from, ..id.into() }));
    }
    let on_conflict = if is_schedule { OnConflict::Replace } else { OnConflict::Keep };
    let payload = record.value.unwrap_or_default();
    Reading::Take(Entry::Schedule(NewMessage { id, due, payload, metadata, on_conflict, record: read_from }))
}

/// Cancels the schedule of its key. One that should be delayed itself cannot be: no sink sends a tombstone.
fn tombstone(record: Record) -> Reading {
    if let Some(name) = TIMING.iter().find(|name| record.has(name)) {
        return invalid(record, format!("{name}: a record without a value cannot be delayed"));
    }
    match record.key.as_deref().filter(|key| !key.is_empty()) {
        Some(key) => {
            let (id, read_from) = (schedule::id(key).0, record.to_log_record());
            Reading::Take(Entry::Cancel(Cancellation { record: Some(read_from), ..id.into() }))
        }
        None => invalid(record, "neither a key nor a value".into()),
    }
}

fn invalid(record: Record, error: String) -> Reading {
    let (id, told) = place(&record);
    let mut metadata = metadata(record.key.as_deref(), &record.headers, &[]);
    if let Some(told) = told {
        metadata.origin.get_or_insert_default().id = Some(told);
    }
    let payload = record.value.unwrap_or_default();
    let message = NewMessage { id, due: Due::NOW, payload, metadata, on_conflict: OnConflict::Keep, record: None };
    Reading::Take(Entry::Invalid(message, error))
}

/// `topic:partition:offset`; as text too where that is too long for an id.
fn place(record: &Record) -> (MessageId, Option<String>) {
    let text = format!("{}:{}:{}", record.place.topic, record.place.partition, record.offset);
    match MessageId::parse(&text) {
        Ok(id) => (id, None),
        Err(_) => (digest(&[text.as_bytes()]), Some(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::record, *};

    const NOW: u64 = 1_700_000_010_000;

    #[test]
    fn a_record_is_known_by_its_place_and_a_schedule_by_its_key() {
        let Reading::Take(Entry::Schedule(message)) = read(record(&[("punctual-delay", b"1s")]), None, NOW) else {
            panic!("it is scheduled")
        };
        assert_eq!((message.id.as_str(), message.on_conflict), ("t:3:7", OnConflict::Keep));
        assert_eq!(message.record, None, "its id says it");
        let schedule = [("scheduler-epoch", &b"1700000009"[..]), ("scheduler-target-topic", b"x")];
        let Reading::Take(Entry::Schedule(message)) = read(record(&schedule), None, NOW) else {
            panic!("it is scheduled")
        };
        assert_eq!((message.id.as_str(), message.on_conflict), ("key", OnConflict::Replace));
        assert_eq!(message.record.unwrap().to_string(), "7 1700000000000 t:3");
        let mut long = record(&[]);
        long.place.topic = "t".repeat(200).into();
        let (id, told) = place(&long);
        assert!(id.as_str().starts_with('~') && told.unwrap().ends_with(":3:7"));
    }

    #[test]
    fn a_tombstone_cancels_what_has_its_key_and_is_not_delayed() {
        let tombstone = |headers| Record { value: None, ..record(headers) };
        let Reading::Take(Entry::Cancel(cancelled)) = read(tombstone(&[]), None, NOW) else { panic!("it cancels") };
        assert_eq!((cancelled.id.as_str(), &*cancelled.record.unwrap().to_string()), ("key", "7 1700000000000 t:3"));
        for (record, text) in [
            (tombstone(&[("punctual-delay", b"1s")]), "punctual-delay: a record without a value cannot be delayed"),
            (Record { key: None, ..tombstone(&[]) }, "neither a key nor a value"),
        ] {
            let Reading::Take(Entry::Invalid(_, error)) = read(record, None, NOW) else { panic!("{text}") };
            assert_eq!(error, text);
        }
    }

    #[test]
    fn what_is_long_overdue_is_skipped_with_what_it_replaces() {
        let most = Some(Duration::from_secs(5));
        let at = |at: &'static [u8]| record(&[("punctual-deliver-at", at)]);
        assert!(matches!(read(at(b"1700000004999"), most, NOW), Reading::Skip(None)));
        assert!(matches!(read(at(b"1700000005000"), most, NOW), Reading::Take(_)));
        assert!(matches!(read(at(b"1"), None, NOW), Reading::Take(_)));
        assert!(matches!(read(record(&[]), most, NOW), Reading::Take(_)), "now is not overdue");
        let schedule = [("scheduler-epoch", &b"1"[..]), ("scheduler-target-topic", b"x")];
        assert!(
            matches!(read(record(&schedule), most, NOW), Reading::Skip(Some(replaced)) if replaced.id.as_str() == "key")
        );
    }

    #[test]
    fn what_cannot_be_kept_is_not() {
        let large = Record { value: Some(vec![0; MAX_KEPT_BYTES].into()), ..record(&[]) };
        assert!(matches!(read(large, None, NOW), Reading::TooLarge(size) if size > MAX_KEPT_BYTES));
        let Reading::Take(Entry::Invalid(message, error)) = read(record(&[("punctual-delay", b"?")]), None, NOW) else {
            panic!("it is dead")
        };
        assert_eq!((message.id.as_str(), &error[..15]), ("t:3:7", "punctual-delay:"));
    }
}
