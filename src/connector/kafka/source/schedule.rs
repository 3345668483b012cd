//! The records of etf1/kafka-message-scheduler: the key is the schedule's id, and the last record of a key counts.
//!
//! Its headers are `scheduler-epoch` (unix seconds), `scheduler-target-topic` and `scheduler-target-key`. The first of
//! several headers of a name counts. Its output has the value, the target key, the other headers, and
//! `scheduler-timestamp` (of the record, unix seconds), `scheduler-key` and `scheduler-topic`.

use super::{
    content::{FLOW, GROUP, metadata, text},
    record::ConsumedRecord,
};
use crate::{
    message::{MessageId, Metadata, Origin, digest},
    time::{Due, LAST_MILLIS, UnixMillis},
};

const EPOCH: &str = "scheduler-epoch";
/// The template of a sink reads it as `{header:scheduler-target-topic}`.
const TARGET_TOPIC: &str = "scheduler-target-topic";
const TARGET_KEY: &str = "scheduler-target-key";
const CONSUMED: [&str; 5] = [EPOCH, TARGET_TOPIC, TARGET_KEY, FLOW, GROUP];

/// Maximum bytes of a key that is kept as the original id. A longer key is known only by its digest.
const MAX_ORIGINAL_ID_BYTES: usize = 1024;

pub fn is_schedule(record: &ConsumedRecord) -> bool {
    record.has(EPOCH) || record.has(TARGET_TOPIC)
}

/// The id of the schedule of that key. If the id is a digest, also the key as text.
pub fn id(key: &[u8]) -> (MessageId, Option<String>) {
    let text = text(key);
    if let Some(id) = text.and_then(|text| MessageId::parse_new(text).ok()) {
        return (id, None);
    }
    (digest(&[key]), text.filter(|text| (1..=MAX_ORIGINAL_ID_BYTES).contains(&text.len())).map(str::to_owned))
}

/// # Errors
/// The header or the key, and what is wrong with it.
pub fn parse(record: &ConsumedRecord) -> Result<(MessageId, Due, Metadata), String> {
    let key = record.key.as_deref().filter(|key| !key.is_empty()).ok_or("a schedule needs a key, which is its id")?;
    let due = due(record)?;
    let topic = first(record, TARGET_TOPIC).filter(|topic| !topic.is_empty());
    let topic = topic.ok_or_else(|| format!("{TARGET_TOPIC}: is missing"))?;
    let topic = text(topic).ok_or_else(|| format!("{TARGET_TOPIC}: is no text"))?;

    let (id, original_id) = id(key);
    let mut headers = record.headers.clone();
    let seconds = record.timestamp.map(|millis| (millis / 1000).to_string().into_bytes());
    if seconds.is_some() {
        headers.push(("scheduler-timestamp".to_owned(), seconds));
    }
    headers.push(("scheduler-key".to_owned(), Some(key.to_vec())));
    headers.push(("scheduler-topic".to_owned(), Some(record.partition.topic.as_bytes().to_vec())));
    let target_key = first(record, TARGET_KEY).filter(|key| !key.is_empty());
    let mut metadata = metadata(target_key, &headers, &CONSUMED);
    let mut origin = metadata.origin.take().map_or_else(Origin::default, |origin| *origin);
    origin.id = original_id;
    origin.selectors.insert(TARGET_TOPIC.to_owned(), topic.to_owned());
    metadata.origin = origin.or_none();
    Ok((id, due, metadata))
}

fn due(record: &ConsumedRecord) -> Result<Due, String> {
    let epoch = first(record, EPOCH).ok_or_else(|| format!("{EPOCH}: is missing"))?;
    let seconds = str::from_utf8(epoch).ok().and_then(|text| text.parse::<u64>().ok()).filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or_else(|| format!("{EPOCH}: `{}` is no unix time in seconds", epoch.escape_ascii()))?;
    let due = seconds.checked_mul(1000).filter(|millis| *millis <= LAST_MILLIS).and_then(UnixMillis::new);
    due.map(Due::At).ok_or_else(|| format!("{EPOCH}: {seconds} is beyond the year 9999: milliseconds? use seconds"))
}

fn first<'a>(record: &'a ConsumedRecord, name: &str) -> Option<&'a [u8]> {
    record.header(name).next()
}

#[cfg(test)]
mod tests {
    use super::{super::record::test_record as record, *};

    #[test]
    fn the_metadata_is_what_kafka_message_scheduler_would_send() {
        let mut record = record(&[
            (EPOCH, b"1700000100"),
            (TARGET_TOPIC, b"orders"),
            (TARGET_KEY, b"customer 7"),
            ("X-Trace", b"a"),
        ]);
        record.key = Some(b"order 42".to_vec());
        let (id, due, metadata) = parse(&record).unwrap();
        assert_eq!(id, digest(&[b"order 42"]));
        assert_eq!(due, Due::At(UnixMillis::new(1_700_000_100_000).unwrap()));
        assert_eq!(metadata.key.as_deref(), Some("customer 7"));
        assert_eq!(metadata.shown_id(&id), "order 42");
        assert_eq!(metadata.selector(TARGET_TOPIC), Some("orders"));
        let headers: Vec<_> = metadata.headers.texts().collect();
        let added = [("scheduler-timestamp", "1700000000"), ("scheduler-key", "order 42"), ("scheduler-topic", "t")];
        assert_eq!(headers, [&[("X-Trace", "a")][..], &added].concat());
    }

    #[test]
    fn the_id_is_the_key_or_its_digest() {
        assert_eq!(id(b"order-42").0.as_str(), "order-42");
        assert_eq!(id(b"a\n"), (digest(&[b"a\n"]), None), "a header cannot carry it");
        assert_eq!(id(b"\xff"), (digest(&[b"\xff"]), None));
    }

    #[test]
    fn a_missing_or_broken_header_is_named() {
        for (headers, text) in [
            (&[(EPOCH, &b"1"[..])][..], "scheduler-target-topic: is missing"),
            (&[(TARGET_TOPIC, b"t")], "scheduler-epoch: is missing"),
            (&[(EPOCH, b"soon"), (TARGET_TOPIC, b"t")], "scheduler-epoch: `soon` is no unix time"),
            (&[(EPOCH, b"0"), (TARGET_TOPIC, b"t")], "scheduler-epoch: `0` is no unix time"),
            (
                &[(EPOCH, b"1700000000000"), (TARGET_TOPIC, b"t")],
                "scheduler-epoch: 1700000000000 is beyond the year 9999",
            ),
            (&[(EPOCH, b"253402300799"), (TARGET_TOPIC, b"t"), (TARGET_KEY, b"k")], ""),
        ] {
            let record = record(headers);
            assert!(is_schedule(&record));
            match parse(&record) {
                Ok(_) => assert_eq!(text, "", "a time in the far future is valid"),
                Err(error) => assert!(error.starts_with(text) && !text.is_empty(), "{error}"),
            }
        }
        let mut record = record(&[(EPOCH, b"1"), (TARGET_TOPIC, b"t")]);
        record.key = None;
        assert!(parse(&record).unwrap_err().contains("key"));
    }
}
