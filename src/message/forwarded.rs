//! Dead letters that leave for another route.

use std::{fmt::Write, sync::Arc};

use bytes::Bytes;

use super::{MAX_ID_BYTES, MessageId, Metadata, NewMessage, OnConflict, codec};
use crate::time::{Due, UnixMillis};

/// Beginning of the names of headers that tell of a death, folded.
pub const DEAD_PREFIX: &str = "punctual-dead-";

/// Maximum length of the error in a header, in bytes.
const MAX_ERROR_BYTES: usize = 1024;

/// Bytes of the digest that replaces an id that is too long.
const SHORT_ID_BYTES: usize = 16;

/// The route to which dead letters are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    pub route: Arc<str>,
    /// Whether a dead letter is deleted once it is forwarded.
    pub purges: bool,
}

/// A dead letter as its route stores it.
#[derive(Clone, Copy, Debug)]
pub struct DeadLetter<'a> {
    pub route: &'a str,
    pub id: &'a MessageId,
    pub died: u64,
    /// The encoded message.
    pub body: &'a Bytes,
    pub failures: u32,
    /// `<reason>: <error>`
    pub error: &'a str,
}

impl DeadLetter<'_> {
    /// The message for the other route: due now, with the same id whenever this death is forwarded. Without a readable
    /// body its payload is the stored one, or empty if that was lost.
    pub fn forwarded(&self) -> NewMessage {
        let (mut metadata, payload, due) = match codec::decode(self.body) {
            Ok(message) => (message.metadata, message.payload, Some(message.due)),
            Err(codec::DecodeError::Lost) => (Metadata::default(), Bytes::new(), None),
            Err(_) => (Metadata::default(), self.body.clone(), None),
        };
        let shown_id = metadata.shown_id(self.id).to_owned();
        // Limits and the flow are those of the other route.
        let rest = Metadata {
            headers: std::mem::take(&mut metadata.headers),
            key: metadata.key,
            content_type: metadata.content_type,
            properties: metadata.properties,
            ..Metadata::default()
        };
        let (reason, error) = self.error.split_once(": ").unwrap_or((self.error, ""));
        let told = [
            ("Punctual-Dead-Route", self.route.to_owned()),
            ("Punctual-Dead-Reason", reason.to_owned()),
            ("Punctual-Dead-Error", header_text(error)),
            ("Punctual-Dead-Attempts", self.failures.to_string()),
            ("Punctual-Dead-Id", header_text(&shown_id)),
            ("Punctual-Dead-Due", due.map(UnixMillis::to_rfc3339).unwrap_or_default()),
        ];
        let tell = |mut metadata: Metadata| {
            for (name, value) in &told {
                metadata.headers.insert((*name).to_owned(), value.clone());
            }
            metadata
        };
        let mut metadata = tell(rest.clone());
        if metadata.validate().is_err() {
            // Too large with these headers, or written by a later release.
            metadata = tell(Metadata { key: rest.key.filter(|key| key.len() < 1024), ..Metadata::default() });
        }
        NewMessage {
            id: self.forwarded_id(),
            due: Due::NOW,
            payload,
            metadata,
            on_conflict: OnConflict::Keep,
            debounce: None,
            record: None,
        }
    }

    fn forwarded_id(&self) -> MessageId {
        let of = |id: &str| format!("dead~{}~{id}~{}", self.route, self.died);
        let text = of(self.id.as_str());
        if text.len() <= MAX_ID_BYTES
            && let Ok(id) = MessageId::parse(&text)
        {
            return id;
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, format!("{}~{}", self.route, self.id).as_bytes());
        let mut text = format!("dead~{}~", self.route.chars().take(64).collect::<String>());
        for byte in &digest.as_ref()[..SHORT_ID_BYTES] {
            // Writing to a text cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        MessageId::parse(&format!("{text}~{}", self.died)).expect("short enough")
    }
}

/// A text without control characters, of bounded length.
fn header_text(text: &str) -> String {
    let mut end = text.len().min(MAX_ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Properties, StoredMessage};

    fn letter<'a>(id: &'a MessageId, body: &'a Bytes, error: &'a str) -> DeadLetter<'a> {
        DeadLetter { route: "orders", id, died: 5000, body, failures: 3, error }
    }

    #[test]
    fn a_death_becomes_a_message_that_tells_of_it() {
        let id = MessageId::parse("a").unwrap();
        let mut metadata = Metadata { key: Some("k".into()), max_attempts: Some(2), ..Metadata::default() };
        metadata.headers.insert("X-Tenant".into(), "t".into());
        metadata.content_type = Some("text/xml".into());
        metadata.properties = Some(Properties { priority: Some(3), ..Properties::default() }.into());
        let (content_type, properties) = (metadata.content_type.clone(), metadata.properties.clone());
        let at = UnixMillis::new(1_700_000_000_000).unwrap();
        let stored = StoredMessage { due: at, accepted: at, metadata, payload: Bytes::from_static(b"p") };
        let body = codec::encode(&stored);
        let new = letter(&id, &body, "rejected: the endpoint said\n400").forwarded();
        assert_eq!((new.id.as_str(), &new.payload[..], new.due), ("dead~orders~a~5000", &b"p"[..], Due::NOW));
        let header = |name| new.metadata.headers.get(name);
        assert_eq!(header("X-Tenant"), Some("t"));
        assert_eq!(header("Punctual-Dead-Reason"), Some("rejected"));
        assert_eq!(header("Punctual-Dead-Error"), Some("the endpoint said 400"));
        assert_eq!(header("Punctual-Dead-Attempts"), Some("3"));
        assert_eq!(header("Punctual-Dead-Id"), Some("a"));
        assert_eq!(header("Punctual-Dead-Route"), Some("orders"));
        assert_eq!(header("Punctual-Dead-Due"), Some("2023-11-14T22:13:20.000Z"));
        assert_eq!((new.metadata.key.as_deref(), new.metadata.max_attempts), (Some("k"), None));
        assert_eq!((&new.metadata.content_type, &new.metadata.properties), (&content_type, &properties));
        assert_eq!(new.metadata.validate(), Ok(()));
    }

    #[test]
    fn lost_bodies_long_ids_and_full_headers_leave_too() {
        let long = MessageId::parse(&"i".repeat(MAX_ID_BYTES)).unwrap();
        let lost = Bytes::from_static(b"\0");
        let new = letter(&long, &lost, "orphan: the body was missing").forwarded();
        assert!(new.payload.is_empty() && new.id.as_str().len() <= MAX_ID_BYTES, "{}", new.id);
        assert_eq!(new.id, letter(&long, &lost, "another error").forwarded().id);
        let other = MessageId::parse(&format!("{}j", "i".repeat(MAX_ID_BYTES - 1))).unwrap();
        assert_ne!(new.id, letter(&other, &lost, "").forwarded().id);
        let mut metadata = Metadata::default();
        for n in 0..62 {
            metadata.headers.insert(format!("X-{n}"), "v".repeat(1024));
        }
        let at = UnixMillis::new(1_700_000_000_000).unwrap();
        let stored = StoredMessage { due: at, accepted: at, metadata, payload: Bytes::from_static(b"p") };
        let body = codec::encode(&stored);
        let error = format!("failed: {}", "e".repeat(5000));
        let new = letter(&other, &body, &error).forwarded();
        assert_eq!((new.metadata.validate(), &new.payload[..]), (Ok(()), &b"p"[..]));
        assert_eq!(new.metadata.headers.get("Punctual-Dead-Error").map(str::len), Some(MAX_ERROR_BYTES));
    }

    #[test]
    fn a_long_error_ends_before_the_character_that_does_not_fit() {
        let text = format!("{}é", "x".repeat(MAX_ERROR_BYTES - 1));
        assert_eq!(header_text(&text), text[..MAX_ERROR_BYTES - 1]);
        assert_eq!(header_text(&text[1..]), text[1..]);
    }

    #[test]
    fn a_message_with_too_much_metadata_is_forwarded_with_a_short_key_alone() {
        let id = MessageId::parse("a").unwrap();
        let at = UnixMillis::new(1_700_000_000_000).unwrap();
        for (length, is_kept) in [(1023, true), (1024, false)] {
            let mut metadata = Metadata { key: Some("k".repeat(length)), ..Metadata::default() };
            metadata.headers.insert("X".into(), "v".repeat(super::super::MAX_METADATA_BYTES));
            let body = codec::encode(&StoredMessage { due: at, accepted: at, metadata, payload: Bytes::new() });
            let new = letter(&id, &body, "rejected: no").forwarded();
            assert_eq!(new.metadata.validate(), Ok(()));
            assert_eq!((new.metadata.key.is_some(), new.metadata.headers.get("X")), (is_kept, None), "{length}");
            assert_eq!(new.metadata.headers.get("Punctual-Dead-Reason"), Some("rejected"));
        }
    }
}
