//! Changes of dead letters.

use std::fmt;

use bytes::Bytes;

use super::FieldChange;
use crate::message::{Headers, Metadata, StoredMessage, digest};

/// New parts of a dead letter. Its id, flow, group and other parts stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    pub payload: Option<Bytes>,
    pub content_type: FieldChange<String>,
    /// All headers.
    pub headers: Option<Headers>,
    pub key: FieldChange<NewKey>,
    pub max_attempts: FieldChange<u32>,
    /// Milliseconds since the epoch.
    pub expires_at: FieldChange<u64>,
}

/// A key as a message stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewKey {
    Text(String),
    /// Base64 of a key that is not text.
    Base64(String),
}

/// The result of an edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edited {
    /// With the new revision.
    Done {
        changes: Changes,
        revision: String,
    },
    /// The message is not dead.
    Pending,
    InFlight,
    NotFound,
    /// It died again or was edited since it was read.
    Changed,
    /// It waits for being forwarded.
    Forwarding,
    /// Its stored body cannot be read.
    Unreadable(String),
    /// The message would be invalid: fields with their errors.
    Invalid(Vec<(&'static str, String)>),
}

/// The fields that an edit sets, without their content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Name, and sizes in bytes before and after.
    sized: Vec<(&'static str, usize, usize)>,
    others: Vec<&'static str>,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sized = self.sized.iter().map(|(name, before, after)| format!("{name} {before} to {after} bytes"));
        let all: Vec<_> = sized.chain(self.others.iter().map(ToString::to_string)).collect();
        f.write_str(&all.join(", "))
    }
}

impl Edit {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The message with the new parts.
    ///
    /// # Errors
    /// The fields that would be invalid, each with its error.
    pub fn apply(&self, message: &StoredMessage) -> Result<(StoredMessage, Changes), Vec<(&'static str, String)>> {
        let mut new = message.clone();
        if let Some(payload) = &self.payload {
            new.payload = payload.clone();
        }
        let metadata = &mut new.metadata;
        if let Some(headers) = &self.headers {
            metadata.headers = headers.clone();
        }
        self.content_type.apply(&mut metadata.content_type);
        self.max_attempts.apply(&mut metadata.max_attempts);
        self.expires_at.apply(&mut metadata.expires_at);
        let key = match &self.key {
            FieldChange::Keep => None,
            FieldChange::Remove => Some((None, None)),
            FieldChange::Set(NewKey::Text(text)) => Some((Some(text.clone()), None)),
            FieldChange::Set(NewKey::Base64(bytes)) => Some((None, Some(bytes.clone()))),
        };
        if let Some((text, bytes)) = key {
            metadata.key = text;
            let mut origin = metadata.origin.take().map(|origin| *origin).unwrap_or_default();
            origin.key_base64 = bytes;
            metadata.origin = origin.or_none();
        }
        let mistakes = self.mistakes(metadata);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let changes = self.changes(message, &new);
        Ok((new, changes))
    }

    /// Those of a new message. A stored message of a source can have some, which do not concern a new payload.
    fn mistakes(&self, metadata: &Metadata) -> Vec<(&'static str, String)> {
        if (Self { payload: None, ..self.clone() }).is_empty() {
            return Vec::new();
        }
        let encoding = metadata.property_encoding().err().map(|text| ("headers", text));
        metadata.mistakes().chain(encoding).collect()
    }

    fn changes(&self, before: &StoredMessage, after: &StoredMessage) -> Changes {
        let headers =
            |message: &StoredMessage| serde_json::to_vec(&message.metadata.headers).map_or(0, |json| json.len());
        let key = |StoredMessage { metadata, .. }: &StoredMessage| {
            let bytes = metadata.origin.as_ref().and_then(|origin| origin.key_base64.as_ref());
            metadata.key.as_ref().or(bytes).map_or(0, String::len)
        };
        let content_type = |message: &StoredMessage| message.metadata.content_type.as_ref().map_or(0, String::len);
        let payload = |message: &StoredMessage| message.payload.len();
        let sized = |name, is_set: bool, size: &dyn Fn(&StoredMessage) -> usize| {
            is_set.then(|| (name, size(before), size(after)))
        };
        let all = [
            sized("payload", self.payload.is_some(), &payload),
            sized("content_type", self.content_type != FieldChange::Keep, &content_type),
            sized("headers", self.headers.is_some(), &headers),
            sized("key", self.key != FieldChange::Keep, &key),
        ];
        let others = [
            (self.max_attempts != FieldChange::Keep).then_some("max_attempts"),
            (self.expires_at != FieldChange::Keep).then_some("expires_at"),
        ];
        Changes { sized: all.into_iter().flatten().collect(), others: others.into_iter().flatten().collect() }
    }
}

impl<T: Clone> FieldChange<T> {
    fn apply(&self, to: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Remove => *to = None,
            Self::Set(value) => *to = Some(value.clone()),
        }
    }
}

/// The revision of a dead letter: another one after an edit and after another death.
pub fn revision(died: u64, body: &[u8]) -> String {
    digest(&[&died.to_be_bytes(), body]).as_str().trim_start_matches('~').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{message::Origin, time::UnixMillis};

    fn message() -> StoredMessage {
        let metadata = Metadata {
            headers: [("a".to_owned(), "1".to_owned())].into(),
            key: Some("key".into()),
            content_type: Some("text/plain".into()),
            max_attempts: Some(3),
            expires_at: Some(7),
            ..Metadata::default()
        };
        let due = UnixMillis::default();
        StoredMessage { due, accepted: due, metadata, payload: "12345".into() }
    }

    #[test]
    fn an_edit_sets_and_removes_what_it_names_and_says_so() {
        assert!(Edit::default().is_empty());
        let (same, changes) = Edit::default().apply(&message()).unwrap();
        assert_eq!((same, changes.to_string().as_str()), (message(), ""));
        let all = Edit {
            payload: Some("1".into()),
            content_type: FieldChange::Set("text/x".into()),
            headers: Some(Headers::default()),
            key: FieldChange::Set(NewKey::Base64("/w==".into())),
            max_attempts: FieldChange::Set(9),
            expires_at: FieldChange::Remove,
        };
        let (new, changes) = all.apply(&message()).unwrap();
        let origin = Some(Origin { key_base64: Some("/w==".into()), ..Origin::default() }.into());
        let metadata =
            Metadata { content_type: Some("text/x".into()), max_attempts: Some(9), origin, ..Metadata::default() };
        assert_eq!(new, StoredMessage { metadata, payload: "1".into(), ..message() });
        assert_eq!(
            changes.to_string(),
            "payload 5 to 1 bytes, content_type 10 to 6 bytes, headers 9 to 2 bytes, key 3 to 4 bytes, max_attempts, expires_at"
        );
        let removed = Edit { key: FieldChange::Remove, content_type: FieldChange::Remove, ..Edit::default() };
        let (new, changes) = removed.apply(&new).unwrap();
        assert_eq!((new.metadata.key, new.metadata.origin, new.metadata.content_type), (None, None, None));
        assert_eq!(changes.to_string(), "content_type 6 to 0 bytes, key 4 to 0 bytes");
    }

    #[test]
    fn an_edit_that_makes_a_message_invalid_names_the_fields() {
        let wrong = Edit {
            max_attempts: FieldChange::Set(0),
            content_type: FieldChange::Set("a\nb".into()),
            ..Edit::default()
        };
        let fields: Vec<_> = wrong.apply(&message()).unwrap_err().into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["content_type", "max_attempts"]);
        // A stored message that is invalid takes a new payload.
        let stored = StoredMessage { metadata: Metadata { max_attempts: Some(0), ..Metadata::default() }, ..message() };
        assert!(Edit { payload: Some("x".into()), ..Edit::default() }.apply(&stored).is_ok());
    }

    #[test]
    fn a_revision_differs_after_another_death_and_another_edit() {
        let revisions = [revision(1, b"a"), revision(2, b"a"), revision(1, b"b")];
        assert!(revisions.iter().all(|one| !one.is_empty() && !one.starts_with('~')));
        assert!(revisions[0] != revisions[1] && revisions[0] != revisions[2] && revision(1, b"a") == revisions[0]);
    }
}
