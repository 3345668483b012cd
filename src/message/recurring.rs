//! Messages of schedules.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{MessageId, Metadata, NewMessage, OnConflict, Origin, StoredMessage};
use crate::{
    recurrence::Rule,
    time::{Due, UnixMillis},
};

/// Maximum length of the name of a schedule, in bytes: the id of a dead letter adds 14 or more.
pub const MAX_SCHEDULE_BYTES: usize = 100;

/// Last character of the stored id of a schedule's message. Ids of users do not have it.
const MARK: char = '@';

/// The part of a schedule's message that messages of users do not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recurring {
    /// Changes with the definition.
    pub revision: String,
    pub rule: Rule,
    /// Milliseconds after which an occurrence that was not sent expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<u64>,
}

impl MessageId {
    /// The stored id of a schedule's message.
    ///
    /// # Errors
    /// When `name` is not the name of a schedule.
    pub fn of_schedule(name: &str) -> Result<Self, String> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if (1..=MAX_SCHEDULE_BYTES).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.') {
            Ok(Self(format!("{name}{MARK}").into()))
        } else {
            Err(format!("a name is 1 to {MAX_SCHEDULE_BYTES} of A-Za-z0-9._-, and does not begin with a dot"))
        }
    }

    /// An id as it is stored: that of a user's message, or of a schedule.
    ///
    /// # Errors
    /// Those of `parse`.
    pub fn stored(text: &str) -> Result<Self, String> {
        match text.strip_suffix(MARK) {
            Some(name) => Self::of_schedule(name),
            None => Self::parse(text),
        }
    }

    /// The name of the schedule, if its message has this id.
    pub fn schedule(&self) -> Option<&str> {
        self.0.strip_suffix(MARK)
    }
}

/// The id that consumers see: `<name>@<time>`.
pub fn occurrence_id(schedule: &str, occurrence: UnixMillis) -> String {
    let time = occurrence.to_rfc3339();
    format!("{schedule}{MARK}{}", time.strip_suffix(".000Z").map_or(time.clone(), |seconds| format!("{seconds}Z")))
}

/// The id that consumers see, if the message that is stored under `id` is an occurrence.
pub fn shown_occurrence<'a>(id: &MessageId, metadata: &'a Metadata) -> Option<&'a str> {
    let shown = metadata.origin.as_ref()?.id.as_deref()?;
    let (name, _) = shown.split_once(MARK).filter(|(name, _)| !name.is_empty())?;
    id.as_str().strip_prefix(name).filter(|rest| rest.starts_with([MARK, '~'])).map(|_| shown)
}

/// An occurrence as a message of its own: one that died, or that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OccurrenceMessage {
    pub id: MessageId,
    pub metadata: Metadata,
    pub payload: Bytes,
}

impl OccurrenceMessage {
    /// The occurrence in the stored message of `schedule`.
    pub fn of(schedule: &str, message: &StoredMessage) -> Option<Self> {
        let id = MessageId::parse(&format!("{schedule}~{}", message.due.get())).ok()?;
        Some(Self { id, metadata: as_occurrence(schedule, message), payload: message.payload.clone() })
    }

    /// Under another id, because messages of users have the `taken` ids before it.
    #[must_use]
    pub fn under(&self, taken: u32) -> Self {
        let id = if taken == 0 { self.id.clone() } else { MessageId(format!("{}~{taken}", self.id).into()) };
        Self { id, ..self.clone() }
    }

    /// Whether this stored message is the occurrence.
    pub fn is(&self, stored: &StoredMessage) -> bool {
        let shown = |metadata: &Metadata| metadata.origin.as_ref().and_then(|origin| origin.id.clone());
        shown(&stored.metadata) == shown(&self.metadata)
    }
}

/// Due now, if it is scheduled.
impl From<OccurrenceMessage> for NewMessage {
    fn from(OccurrenceMessage { id, metadata, payload }: OccurrenceMessage) -> Self {
        Self { id, due: Due::NOW, payload, metadata, on_conflict: OnConflict::Keep, debounce: None, record: None }
    }
}

/// The metadata of an occurrence: those of a message that has the id of the occurrence.
pub fn as_occurrence(schedule: &str, message: &StoredMessage) -> Metadata {
    let mut origin = message.metadata.origin.as_deref().cloned().unwrap_or_else(Origin::default);
    origin.id = Some(occurrence_id(schedule, message.due));
    Metadata { origin: Some(origin.into()), recurring: None, ..message.metadata.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_schedule_is_no_id_of_a_user() {
        let id = MessageId::of_schedule("nightly").unwrap();
        assert_eq!((id.as_str(), id.schedule()), ("nightly@", Some("nightly")));
        assert!(MessageId::parse("nightly@").is_err());
        assert_eq!(MessageId::stored("nightly@"), Ok(id));
        assert_eq!(MessageId::stored("nightly").unwrap().schedule(), None);
        for bad in ["", ".a", "a b", "a@", "a:b", &"x".repeat(101)] {
            assert!(MessageId::of_schedule(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_occurrence_is_told_from_a_message_of_a_source() {
        let shown = |stored: &str, origin: &str| {
            let origin = Origin { id: Some(origin.into()), ..Origin::default() };
            let metadata = Metadata { origin: Some(origin.into()), ..Metadata::default() };
            shown_occurrence(&MessageId::stored(stored).unwrap(), &metadata).map(str::to_owned)
        };
        assert_eq!(shown("a@", "a@2026-05-24T00:00:00Z").as_deref(), Some("a@2026-05-24T00:00:00Z"));
        assert_eq!(shown("a~1779580800000", "a@2026-05-24T00:00:00Z").as_deref(), Some("a@2026-05-24T00:00:00Z"));
        for (stored, origin) in [("a", "a@x"), ("~1", "a@x"), ("~1", "@x"), ("ab~1", "a@x"), ("a~1", "a")] {
            assert_eq!(shown(stored, origin), None, "{stored} {origin}");
        }
        assert_eq!(shown_occurrence(&MessageId::of_schedule("a").unwrap(), &Metadata::default()), None);
    }

    #[test]
    fn an_occurrence_is_named_after_its_time() {
        let at = |millis| occurrence_id("nightly", UnixMillis::new(millis).unwrap());
        assert_eq!(at(1_779_580_800_000), "nightly@2026-05-24T00:00:00Z");
        assert_eq!(at(1_779_580_800_007), "nightly@2026-05-24T00:00:00.007Z");
    }

    #[test]
    fn an_occurrence_keeps_the_metadata_of_its_schedule_but_not_the_rule() {
        let recurring =
            Recurring { revision: "1".into(), rule: crate::recurrence::Rule::default(), expires_after: None };
        let metadata = Metadata { key: Some("k".into()), recurring: Some(recurring.into()), ..Metadata::default() };
        let at = UnixMillis::new(1_779_580_800_000).unwrap();
        let stored = StoredMessage { due: at, accepted: at, metadata, payload: bytes::Bytes::new() };
        let occurrence = as_occurrence("nightly", &stored);
        let id = occurrence.origin.as_ref().and_then(|origin| origin.id.clone());
        assert_eq!(id.as_deref(), Some("nightly@2026-05-24T00:00:00Z"));
        assert_eq!((occurrence.key.as_deref(), occurrence.recurring), (Some("k"), None));
    }
}
