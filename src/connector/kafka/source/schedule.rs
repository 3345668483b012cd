//! The records of etf1/kafka-message-scheduler: the key is the schedule's id, the last record of a key counts.
//!
//! `scheduler-epoch` (unix seconds), `scheduler-target-topic` and `scheduler-target-key` are what it is told; of
//! several headers of a name the first counts. Its output has the value, the target key, the other headers, and
//! `scheduler-timestamp` (of the record, unix seconds), `scheduler-key` and `scheduler-topic`.

use super::{
    content::{metadata, text},
    record::Record,
};
use crate::{
    message::{MessageId, Metadata, Origin, digest},
    time::{Due, UnixMillis},
};

const EPOCH: &str = "scheduler-epoch";
/// A sink finds it as `{header:scheduler-target-topic}`.
const TARGET_TOPIC: &str = "scheduler-target-topic";
const TARGET_KEY: &str = "scheduler-target-key";
const CONSUMED: [&str; 3] = [EPOCH, TARGET_TOPIC, TARGET_KEY];

/// Longest key that is told as the id it was; a longer one only by its digest.
const MAX_TOLD_BYTES: usize = 1024;

pub fn is_schedule(record: &Record) -> bool {
    record.has(EPOCH) || record.has(TARGET_TOPIC)
}

/// The id of what has that key, and the key as text where the id is only its digest.
pub fn id(key: &[u8]) -> (MessageId, Option<String>) {
    let text = text(key);
    if let Some(id) = text.and_then(|text| MessageId::parse(text).ok()) {
        return (id, None);
    }
    (digest(&[key]), text.filter(|text| (1..=MAX_TOLD_BYTES).contains(&text.len())).map(str::to_owned))
}

/// # Errors
/// What is wrong with which header.
pub fn read(record: &Record) -> Result<(MessageId, Due, Metadata), String> {
    let key = record.key.as_deref().filter(|key| !key.is_empty()).ok_or("a schedule has a key, which is its id")?;
    let due = due(record)?;
    let topic = first(record, TARGET_TOPIC).filter(|topic| !topic.is_empty());
    let topic = topic.ok_or_else(|| format!("{TARGET_TOPIC}: is missing"))?;
    let topic = text(topic).ok_or_else(|| format!("{TARGET_TOPIC}: is no text"))?;

    let (id, told) = id(key);
    let mut headers = record.headers.clone();
    let seconds = record.timestamp.map(|millis| (millis / 1000).to_string().into_bytes());
    let added = [("scheduler-timestamp", seconds), ("scheduler-key", Some(key.to_vec()))];
    headers
        .extend(added.into_iter().filter(|(_, value)| value.is_some()).map(|(name, value)| (name.to_owned(), value)));
    headers.push(("scheduler-topic".to_owned(), Some(record.place.topic.as_bytes().to_vec())));
    let target_key = first(record, TARGET_KEY).filter(|key| !key.is_empty());
    let mut metadata = metadata(target_key, &headers, &CONSUMED);
    let mut origin = metadata.origin.take().map_or_else(Origin::default, |origin| *origin);
    origin.id = told;
    origin.selectors.insert(TARGET_TOPIC.to_owned(), topic.to_owned());
    metadata.origin = origin.or_none();
    Ok((id, due, metadata))
}

fn due(record: &Record) -> Result<Due, String> {
    let epoch = first(record, EPOCH).ok_or_else(|| format!("{EPOCH}: is missing"))?;
    let seconds = str::from_utf8(epoch).ok().and_then(|text| text.parse::<u64>().ok()).filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or_else(|| format!("{EPOCH}: `{}` is no unix time in seconds", epoch.escape_ascii()))?;
    let due = seconds.checked_mul(1000).and_then(UnixMillis::new);
    due.map(Due::At).ok_or_else(|| format!("{EPOCH}: {seconds} s are not below 2^53 ms"))
}

fn first<'a>(record: &'a Record, name: &str) -> Option<&'a [u8]> {
    record.header(name).next()
}

#[cfg(test)]
mod tests {
    use super::{super::testing::record, *};

    #[test]
    fn a_schedule_leaves_as_its_scheduler_would_have_sent_it() {
        let mut record = record(&[
            (EPOCH, b"1700000100"),
            (TARGET_TOPIC, b"orders"),
            (TARGET_KEY, b"customer 7"),
            ("X-Trace", b"a"),
        ]);
        record.key = Some(b"order 42".to_vec());
        let (id, due, metadata) = read(&record).unwrap();
        assert_eq!(id, digest(&[b"order 42"]));
        assert_eq!(due, Due::At(UnixMillis::new(1_700_000_100_000).unwrap()));
        assert_eq!(metadata.key.as_deref(), Some("customer 7"));
        assert_eq!(metadata.shown_id(&id), "order 42");
        assert_eq!(metadata.selector(TARGET_TOPIC), Some("orders"));
        let headers: Vec<_> = metadata.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let added = [("scheduler-key", "order 42"), ("scheduler-timestamp", "1700000000"), ("scheduler-topic", "t")];
        assert_eq!(headers, [&[("X-Trace", "a")][..], &added].concat());
    }

    #[test]
    fn a_key_that_is_an_id_is_the_id_and_any_other_has_a_digest() {
        assert_eq!(id(b"order-42").0.as_str(), "order-42");
        assert_eq!(id(b"a\n"), (digest(&[b"a\n"]), None), "it cannot stand in a header");
        assert_eq!(id(b"\xff"), (digest(&[b"\xff"]), None));
    }

    #[test]
    fn what_lacks_something_is_no_schedule() {
        for (headers, text) in [
            (&[(EPOCH, &b"1"[..])][..], "scheduler-target-topic: is missing"),
            (&[(TARGET_TOPIC, b"t")], "scheduler-epoch: is missing"),
            (&[(EPOCH, b"soon"), (TARGET_TOPIC, b"t")], "scheduler-epoch: `soon` is no unix time"),
            (&[(EPOCH, b"0"), (TARGET_TOPIC, b"t")], "scheduler-epoch: `0` is no unix time"),
            (&[(EPOCH, b"1700000000000"), (TARGET_TOPIC, b"t"), (TARGET_KEY, b"k")], ""),
        ] {
            let record = record(headers);
            assert!(is_schedule(&record));
            match read(&record) {
                Ok(_) => assert_eq!(text, "", "far ahead, but a time"),
                Err(error) => assert!(error.starts_with(text) && !text.is_empty(), "{error}"),
            }
        }
        let mut record = record(&[(EPOCH, b"1"), (TARGET_TOPIC, b"t")]);
        record.key = None;
        assert!(read(&record).unwrap_err().contains("key"));
    }
}
