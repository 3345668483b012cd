//! The action that a record requests: a message to schedule, or a cancellation.

use std::time::Duration;

use super::{
    content::{FLOW, GROUP, flow, group, metadata},
    record::ConsumedRecord,
    schedule,
    timing::{self, TIMING},
};
use crate::{
    connector::kafka::Tombstones,
    message::{Cancellation, MessageId, Metadata, NewMessage, OnConflict, digest},
    source::SourceEntry,
    time::Due,
};

/// Maximum bytes of a record that is stored, as a message or a dead letter. Redis is not made for larger values.
const MAX_STORED_BYTES: usize = 16 * 1024 * 1024;

/// The headers that are dropped from a message.
const CONSUMED: [&str; 5] = [TIMING[0], TIMING[1], TIMING[2], FLOW, GROUP];

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all records are taken")]
pub enum RecordAction {
    Take(SourceEntry),
    /// Overdue by more than `max_overdue`. Holds the cancellation of the message that the record would have replaced.
    Skip(Option<Cancellation>),
    /// Larger than `MAX_STORED_BYTES`. Holds the size in bytes.
    TooLarge(usize),
}

/// `now`: milliseconds since the epoch.
pub fn action(record: ConsumedRecord, tombstones: Tombstones, max_overdue: Option<Duration>, now: u64) -> RecordAction {
    let size = record.size();
    if size > MAX_STORED_BYTES {
        return RecordAction::TooLarge(size);
    }
    if record.has_unreadable_header {
        return invalid(record, "the name of a header is not UTF-8".into());
    }
    let is_tombstone = record.value.is_none();
    if is_tombstone
        && tombstones == Tombstones::Cancel
        && (record.key.as_deref().is_none_or(<[u8]>::is_empty) || !TIMING.iter().any(|name| record.has(name)))
    {
        return tombstone(record);
    }
    // Any other tombstone is a message, due now without a timing header.
    let is_schedule = !is_tombstone && schedule::is_schedule(&record);
    // The timestamp distinguishes it from a record at the same offset of an earlier topic of that name.
    let log_record = Some(record.to_log_record());
    let parsed = if is_schedule {
        schedule::parse(&record)
    } else {
        timing::due(&record).map(|due| {
            let (id, metadata) = id_and_metadata(&record, &CONSUMED);
            (id, due, metadata)
        })
    };
    let parsed = parsed.and_then(|(id, due, metadata)| {
        Ok((id, due, Metadata { flow: flow(&record)?, group: group(&record)?, ..metadata }))
    });
    let (id, due, metadata) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return invalid(record, error),
    };
    if let (Due::At(at), Some(most)) = (due, max_overdue)
        && u128::from(now.saturating_sub(at.get())) > most.as_millis()
    {
        return RecordAction::Skip(is_schedule.then_some(Cancellation { record: log_record, ..id.into() }));
    }
    let on_conflict = if is_schedule { OnConflict::Replace } else { OnConflict::Keep };
    let payload = record.value.unwrap_or_default();
    RecordAction::Take(SourceEntry::Schedule(NewMessage {
        id,
        due,
        payload,
        metadata,
        on_conflict,
        debounce: None,
        record: log_record,
    }))
}

/// Cancels the schedule of the record's key.
fn tombstone(record: ConsumedRecord) -> RecordAction {
    match record.key.as_deref().filter(|key| !key.is_empty()) {
        Some(key) => {
            let (id, log_record) = (schedule::id(key).0, record.to_log_record());
            RecordAction::Take(SourceEntry::Cancel(Cancellation { record: Some(log_record), ..id.into() }))
        }
        None => invalid(record, "neither a key nor a value".into()),
    }
}

fn invalid(record: ConsumedRecord, error: String) -> RecordAction {
    let (id, metadata) = id_and_metadata(&record, &[]);
    let (flow, group) = (flow(&record).unwrap_or_default(), group(&record).unwrap_or_default());
    let metadata = Metadata { flow, group, ..metadata };
    let payload = record.value.unwrap_or_default();
    let message = NewMessage {
        id,
        due: Due::NOW,
        payload,
        metadata,
        on_conflict: OnConflict::Keep,
        debounce: None,
        record: None,
    };
    RecordAction::Take(SourceEntry::Invalid(message, error))
}

/// The id is `topic:partition:offset`, or the digest of that if it is too long for an id. The origin then has the text.
fn id_and_metadata(record: &ConsumedRecord, dropped: &[&str]) -> (MessageId, Metadata) {
    let mut metadata = metadata(record.key.as_deref(), &record.headers, dropped);
    if record.value.is_none() {
        metadata.origin.get_or_insert_default().tombstone = true;
    }
    let text = format!("{}:{}:{}", record.partition.topic, record.partition.index, record.offset);
    let id = MessageId::parse_new(&text).unwrap_or_else(|_| {
        let id = digest(&[text.as_bytes()]);
        metadata.origin.get_or_insert_default().id = Some(text);
        id
    });
    (id, metadata)
}

#[cfg(test)]
mod tests {
    use super::{super::record::test_record as record, *};

    const NOW: u64 = 1_700_000_010_000;

    #[test]
    fn the_id_is_the_position_of_a_record_or_the_key_of_a_schedule() {
        let scheduled = |record| match action(record, Tombstones::Cancel, None, NOW) {
            RecordAction::Take(SourceEntry::Schedule(message)) => message,
            other => panic!("{other:?}"),
        };
        let message = scheduled(record(&[("punctual-delay", b"1s")]));
        assert_eq!((message.id.as_str(), message.on_conflict), ("t:3:7", OnConflict::Keep));
        assert_eq!(message.record.unwrap().to_string(), "7 1700000000000 t:3");
        let message = scheduled(record(&[("scheduler-epoch", b"1700000009"), ("scheduler-target-topic", b"x")]));
        assert_eq!((message.id.as_str(), message.on_conflict), ("key", OnConflict::Replace));
        assert_eq!(message.record.unwrap().to_string(), "7 1700000000000 t:3");
        let mut long = record(&[]);
        long.partition.topic = "t".repeat(200).into();
        let (id, metadata) = id_and_metadata(&long, &[]);
        assert!(id.as_str().starts_with('~') && metadata.origin.unwrap().id.unwrap().ends_with(":3:7"));
    }

    #[test]
    fn a_tombstone_cancels_the_schedule_of_its_key_or_is_a_message_if_it_has_a_due_time() {
        let tombstone = |headers: &[(&str, &[u8])]| ConsumedRecord { value: None, ..record(headers) };
        let RecordAction::Take(SourceEntry::Cancel(cancelled)) = action(tombstone(&[]), Tombstones::Cancel, None, NOW)
        else {
            panic!("no cancellation")
        };
        assert_eq!((cancelled.id.as_str(), &*cancelled.record.unwrap().to_string()), ("key", "7 1700000000000 t:3"));
        let RecordAction::Take(SourceEntry::Schedule(message)) =
            action(tombstone(&[("punctual-delay", b"1s")]), Tombstones::Cancel, None, NOW)
        else {
            panic!("no message")
        };
        assert_eq!((message.id.as_str(), message.metadata.key.as_deref()), ("t:3:7", Some("key")));
        assert!(message.payload.is_empty() && message.metadata.origin.unwrap().tombstone);
        assert_eq!(message.due, Due::At(crate::time::UnixMillis::new(1_700_000_001_000).unwrap()));
        for headers in [&[][..], &[("punctual-delay", &b"1s"[..])]] {
            let without_key = || ConsumedRecord { key: None, ..tombstone(headers) };
            let RecordAction::Take(SourceEntry::Invalid(_, error)) =
                action(without_key(), Tombstones::Cancel, None, NOW)
            else {
                panic!("{headers:?}")
            };
            assert_eq!(error, "neither a key nor a value");
            let forwarded = action(without_key(), Tombstones::Forward, None, NOW);
            assert!(matches!(forwarded, RecordAction::Take(SourceEntry::Schedule(_))), "{forwarded:?}");
        }
    }

    #[test]
    fn a_record_overdue_by_more_than_the_limit_is_skipped_and_cancels_what_it_replaces() {
        let most = Some(Duration::from_secs(5));
        let at = |at: &'static [u8]| record(&[("punctual-deliver-at", at)]);
        assert!(matches!(action(at(b"1700000004999"), Tombstones::Cancel, most, NOW), RecordAction::Skip(None)));
        assert!(matches!(action(at(b"1700000005000"), Tombstones::Cancel, most, NOW), RecordAction::Take(_)));
        assert!(matches!(action(at(b"1"), Tombstones::Cancel, None, NOW), RecordAction::Take(_)));
        assert!(
            matches!(action(record(&[]), Tombstones::Cancel, most, NOW), RecordAction::Take(_)),
            "due now is not overdue"
        );
        let schedule = record(&[("scheduler-epoch", b"1"), ("scheduler-target-topic", b"x")]);
        let RecordAction::Skip(Some(cancelled)) = action(schedule, Tombstones::Cancel, most, NOW) else {
            panic!("no cancellation")
        };
        assert_eq!(cancelled.id.as_str(), "key");
    }

    #[test]
    fn a_record_that_is_too_large_is_not_stored_and_an_invalid_one_is() {
        let large = ConsumedRecord { value: Some(vec![0; MAX_STORED_BYTES].into()), ..record(&[]) };
        assert!(
            matches!(action(large, Tombstones::Cancel, None, NOW), RecordAction::TooLarge(size) if size > MAX_STORED_BYTES)
        );
        let value = Some(vec![0; MAX_STORED_BYTES - b"key".len()].into());
        let largest = action(ConsumedRecord { value, ..record(&[]) }, Tombstones::Cancel, None, NOW);
        assert!(matches!(largest, RecordAction::Take(SourceEntry::Schedule(_))));
        let invalid = action(record(&[("punctual-delay", b"?")]), Tombstones::Cancel, None, NOW);
        let RecordAction::Take(SourceEntry::Invalid(message, error)) = invalid else { panic!("{invalid:?}") };
        assert_eq!((message.id.as_str(), &error[..15]), ("t:3:7", "punctual-delay:"));
    }

    #[test]
    fn the_flow_of_a_record_is_not_one_of_its_headers_and_does_not_make_a_tombstone_a_message() {
        let schedule = [("scheduler-epoch", &b"1700000009"[..]), ("scheduler-target-topic", b"x")];
        for headers in [&[("punctual-delay", &b"1s"[..])][..], &[], &schedule] {
            let own = [("punctual-flow", &b"tenant-7"[..]), ("punctual-group", b"order:7"), ("X", b"v")];
            let headers = [headers, &own].concat();
            let taken = action(record(&headers), Tombstones::Cancel, None, NOW);
            let RecordAction::Take(SourceEntry::Schedule(message)) = taken else { panic!("{taken:?}") };
            assert_eq!(message.metadata.flow.as_deref(), Some("tenant-7"));
            assert_eq!(message.metadata.group.as_deref(), Some("order:7"));
            assert!(message.metadata.headers.iter().all(|header| !header.name.starts_with("punctual-")));
            assert_eq!(&message.metadata.headers["X"], "v");
        }
        let headers = [("punctual-delay", &b"?"[..]), ("punctual-flow", b"a"), ("punctual-group", b"g")];
        let broken = action(record(&headers), Tombstones::Cancel, None, NOW);
        let RecordAction::Take(SourceEntry::Invalid(message, _)) = broken else { panic!("{broken:?}") };
        let Metadata { flow, group, .. } = message.metadata;
        assert_eq!((flow.as_deref(), group.as_deref()), (Some("a"), Some("g")), "a redrive keeps them");
        let tombstone = ConsumedRecord { value: None, ..record(&[("punctual-flow", b"a")]) };
        let cancelled = action(tombstone, Tombstones::Cancel, None, NOW);
        assert!(matches!(cancelled, RecordAction::Take(SourceEntry::Cancel(_))), "{cancelled:?}");
    }
}
