//! The history of a route: what became of its messages. lua/include/history.lua describes how it is stored.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;

use super::{DeadReason, MessageId, codec, fields};
use crate::time::UnixMillis;

// Tags of fields, beside those of the label.
const STATUS: u8 = 20;
const ERROR: u8 = 21;
const ENDED_BY: u8 = 22;
/// Block of the end before of the same id; the last field.
const LINK: u8 = 23;

/// Maximum bytes of an error.
const MAX_ERROR: usize = 200;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    pub period: Duration,
    /// Maximum number, divided among the partitions. The oldest ends are deleted.
    pub max: u32,
}

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EndOutcome {
    Delivered = 1,
    /// It became a dead letter.
    Dead = 2,
    Cancelled = 3,
    /// It became a dead letter because it had expired.
    Expired = 4,
    Replaced = 5,
}

impl EndOutcome {
    const ALL: [Self; 5] = [Self::Delivered, Self::Dead, Self::Cancelled, Self::Expired, Self::Replaced];

    /// # Errors
    /// For a text that names none of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|outcome| outcome.as_str() == text);
        found.ok_or_else(|| format!("is one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Replaced => "replaced",
        }
    }
}

/// The end of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedMessage {
    pub id: MessageId,
    pub outcome: EndOutcome,
    /// Failed attempts, and with a delivery that one too.
    pub attempts: u32,
    pub due: UnixMillis,
    pub accepted: UnixMillis,
    pub ended: UnixMillis,
    pub key: Option<String>,
    pub flow: Option<String>,
    pub group: Option<String>,
    /// The name of the token with which it was scheduled.
    pub scheduled_by: Option<String>,
    /// The name of the token with which it was cancelled.
    pub cancelled_by: Option<String>,
    /// The last status of an HTTP endpoint.
    pub status: Option<u16>,
    /// Reason and error of a dead letter.
    pub error: Option<String>,
}

/// The data of a claimed message that its history needs, without its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndRecord {
    times: [u8; 16],
    label: Bytes,
    /// Failed attempts before the claim.
    pub failures: u32,
    /// The last status of an HTTP endpoint.
    pub status: Option<u16>,
}

impl EndRecord {
    /// `body`: as it is stored.
    pub fn of(body: &Bytes, failures: u32) -> Self {
        Self { times: codec::times(body), label: codec::label(body), failures, status: None }
    }

    #[must_use]
    pub fn with_status(self, status: Option<u16>) -> Self {
        Self { status, ..self }
    }

    /// The stored entry of a message that is delivered.
    pub fn delivered(&self, id: &str) -> Bytes {
        self.entry(EndOutcome::Delivered, id, self.failures.saturating_add(1), None, None)
    }

    /// The stored entry of a message that becomes a dead letter.
    pub fn dead(&self, id: &str, reason: DeadReason, error: &str) -> Bytes {
        let outcome = if reason == DeadReason::Expired { EndOutcome::Expired } else { EndOutcome::Dead };
        let attempts = self.failures.saturating_add(u32::from(reason.is_attempted()));
        self.entry(outcome, id, attempts, Some(&format!("{}: {error}", reason.as_str())), None)
    }

    /// The stored entry of a message that ends, without the time of the end, as lua/include/history.lua makes it.
    /// `by`: the name of the token with which it was cancelled.
    pub fn entry(&self, outcome: EndOutcome, id: &str, attempts: u32, error: Option<&str>, by: Option<&str>) -> Bytes {
        let mut entry = BytesMut::with_capacity(64 + id.len());
        entry.put_u16(0);
        entry.put_u8(outcome as u8);
        entry.put_u32(attempts);
        entry.put_slice(&self.times);
        entry.put_u8(u8::try_from(id.len()).expect("at most 128 bytes"));
        entry.put_slice(id.as_bytes());
        entry.put_slice(&self.label);
        if let Some(status) = self.status {
            fields::write_field(STATUS, &status.to_string(), &mut entry);
        }
        if let Some(error) = error {
            fields::write_field(ERROR, &error[..error.floor_char_boundary(MAX_ERROR)], &mut entry);
        }
        if let Some(by) = by {
            fields::write_field(ENDED_BY, by, &mut entry);
        }
        let length = u16::try_from(entry.len() - 2).expect("labels, errors and names are bounded");
        entry[..2].copy_from_slice(&length.to_be_bytes());
        entry.freeze()
    }
}
/// `entry` with a link to the block of the end before of the same id.
pub fn linked(entry: &Bytes, block: u64) -> Bytes {
    let mut linked = BytesMut::from(&entry[..]);
    linked.put_slice(&[LINK, 8]);
    linked.put_u64(block);
    let length = u16::try_from(linked.len() - 2).expect("labels, errors and names are bounded");
    linked[..2].copy_from_slice(&length.to_be_bytes());
    linked.freeze()
}

/// The ends in a stored block. Those behind a damaged one are left out.
pub fn parse_block(mut block: Bytes) -> Vec<EndedMessage> {
    let mut ends = Vec::new();
    while let (Some(ended), Ok(count)) = (millis(&mut block), block.try_get_u8()) {
        for _ in 0..count {
            let Some(end) = parse(ended, &mut block) else { return ends };
            ends.push(end);
        }
    }
    ends
}

/// An end with its time in front of its entry.
pub fn parse_end(mut end: Bytes) -> Option<EndedMessage> {
    let ended = millis(&mut end)?;
    parse(ended, &mut end)
}

/// Removes an entry from the front of `block`.
fn parse(ended: UnixMillis, block: &mut Bytes) -> Option<EndedMessage> {
    let length = usize::from(block.try_get_u16().ok()?);
    let mut entry = (length <= block.len()).then(|| block.split_to(length))?;
    let number = entry.try_get_u8().ok()?;
    let outcome = EndOutcome::ALL.into_iter().find(|outcome| *outcome as u8 == number)?;
    let attempts = entry.try_get_u32().ok()?;
    let (due, accepted) = (millis(&mut entry)?, millis(&mut entry)?);
    let size = usize::from(entry.try_get_u8().ok()?);
    let id = (size <= entry.len()).then(|| entry.split_to(size))?;
    let id = MessageId::stored(std::str::from_utf8(&id).ok()?).ok()?;
    let mut end = EndedMessage {
        id,
        outcome,
        attempts,
        due,
        accepted,
        ended,
        key: None,
        flow: None,
        group: None,
        scheduled_by: None,
        cancelled_by: None,
        status: None,
        error: None,
    };
    while let Some((tag, text)) = fields::read_field(&mut entry) {
        match tag {
            fields::KEY => end.key = Some(text),
            fields::FLOW => end.flow = Some(text),
            fields::GROUP => end.group = Some(text),
            fields::SCHEDULED_BY => end.scheduled_by = Some(text),
            ENDED_BY => end.cancelled_by = Some(text),
            STATUS => end.status = text.parse().ok(),
            ERROR => end.error = Some(text),
            // A link, or a field that a later release wrote.
            _ => {}
        }
    }
    Some(end)
}

fn millis(from: &mut Bytes) -> Option<UnixMillis> {
    // Times beyond those of messages were not written by punctual.
    from.try_get_u64().ok().map(|millis| UnixMillis::new(millis).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Metadata, StoredMessage};

    fn body() -> Bytes {
        codec::encode(&StoredMessage {
            due: UnixMillis::new(2000).unwrap(),
            accepted: UnixMillis::new(1000).unwrap(),
            metadata: Metadata {
                key: Some("k".into()),
                group: Some("g".into()),
                flow: Some("f".into()),
                scheduled_by: Some("shop".into()),
                ..Metadata::default()
            },
            payload: vec![b'x'; 10_000].into(),
        })
    }

    fn block(entries: &[Bytes]) -> Bytes {
        let mut block = BytesMut::new();
        for (n, entry) in entries.iter().enumerate() {
            if n % 2 == 0 {
                block.put_u64(3000);
                block.put_u8(u8::try_from(entries.len() - n).unwrap().min(2));
            }
            block.put_slice(entry);
        }
        block.freeze()
    }

    #[test]
    fn an_entry_comes_back_with_the_label_of_a_compressed_body() {
        let text = "é".repeat(150);
        let delivered = EndRecord { status: Some(204), ..EndRecord::of(&body(), 2) }.delivered("a");
        let dead = EndRecord::default().entry(EndOutcome::Dead, "b", 1, Some(&text), Some("ops"));
        assert!(delivered.len() < 60, "{}", delivered.len());
        let ends = parse_block(block(&[delivered, dead]));
        let first = &ends[0];
        assert_eq!((first.id.as_str(), first.outcome, first.attempts), ("a", EndOutcome::Delivered, 3));
        assert_eq!((first.due.get(), first.accepted.get(), first.ended.get()), (2000, 1000, 3000));
        assert_eq!(
            (first.key.as_deref(), first.group.as_deref(), first.flow.as_deref()),
            (Some("k"), Some("g"), Some("f"))
        );
        assert_eq!((first.scheduled_by.as_deref(), first.status), (Some("shop"), Some(204)));
        let second = &ends[1];
        assert_eq!((second.due.get(), second.cancelled_by.as_deref()), (0, Some("ops")));
        assert_eq!(second.error.as_deref(), Some(&*"é".repeat(100)));
    }

    #[test]
    fn a_damaged_block_ends_before_the_damage() {
        let entry = EndRecord::of(&body(), 0).entry(EndOutcome::Replaced, "a", 0, None, None);
        let whole = block(&[linked(&entry, 7), entry.clone(), entry.clone()]);
        assert_eq!(parse_block(whole.clone()).len(), 3);
        let first = 9 + entry.len() + 10;
        for cut in 0..whole.len() {
            let ends = parse_block(whole.slice(..cut));
            let expected = usize::from(cut >= first) + usize::from(cut >= first + entry.len());
            assert_eq!(ends.len(), expected, "cut at {cut}");
        }
        let alone = [&3000_u64.to_be_bytes()[..], &linked(&entry, 7)].concat();
        assert_eq!(parse_end(alone.into()).map(|end| end.id.to_string()).as_deref(), Some("a"));
    }

    #[test]
    fn an_end_has_its_outcome_status_and_attempts() {
        let record = || EndRecord::of(&body(), 2).with_status(Some(503));
        assert_eq!((record().status, record().failures), (Some(503), 2));
        let parsed = |entry: Bytes| parse_block(block(&[entry])).remove(0);
        let delivered = parsed(record().delivered("a"));
        assert_eq!((delivered.outcome, delivered.attempts, delivered.status), (EndOutcome::Delivered, 3, Some(503)));
        for (reason, outcome, attempts) in [
            (DeadReason::Rejected, EndOutcome::Dead, 3),
            (DeadReason::Crash, EndOutcome::Dead, 2),
            (DeadReason::Expired, EndOutcome::Expired, 2),
        ] {
            let dead = parsed(record().dead("a", reason, "why"));
            let error = format!("{}: why", reason.as_str());
            assert_eq!((dead.outcome, dead.attempts, dead.error), (outcome, attempts, Some(error)));
        }
        for outcome in EndOutcome::ALL {
            assert_eq!(EndOutcome::parse(outcome.as_str()), Ok(outcome));
        }
        assert_eq!(EndOutcome::parse("gone").unwrap_err(), "is one of delivered, dead, cancelled, expired, replaced");
    }
}
