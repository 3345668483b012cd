//! The id and the metadata of a member.

use bytes::Bytes;

use crate::{
    message::{MessageId, Metadata, Origin, digest},
    store::redis::{ExternalEntry, ExternalPlace},
};

/// The id is the member if that is a valid id, otherwise the digest of the member. `again`: a unique number, for a
/// member that was added again while its message is live. Its id is then another digest.
pub fn entry(place: &ExternalPlace, member: Bytes, again: Option<u64>) -> ExternalEntry {
    let as_id = std::str::from_utf8(&member).ok().and_then(|text| MessageId::parse_new(text).ok());
    let id = match (as_id, again) {
        (Some(id), None) => id,
        (None, None) => digest(&[key_of(place), &member]),
        (_, Some(number)) => digest(&[key_of(place), &member, &number.to_be_bytes()]),
    };
    // A payload is not an id. With `again`, consumers must distinguish the message from the live one.
    let is_id = !matches!(place, ExternalPlace::Members { .. }) && again.is_none();
    let original_id = std::str::from_utf8(&member).ok().filter(|text| is_id && *text != id.as_str());
    let origin = Origin { id: original_id.map(str::to_owned), ..Origin::default() };
    let content_type = matches!(place, ExternalPlace::Hashes { .. }).then(|| "application/json".to_owned());
    ExternalEntry { member, id, metadata: Metadata { origin: origin.or_none(), content_type, ..Metadata::default() } }
}

fn key_of(place: &ExternalPlace) -> &[u8] {
    match place {
        ExternalPlace::Members { key, .. } | ExternalPlace::Hashes { key, .. } => key.as_bytes(),
        ExternalPlace::DelayQueue(keys) => keys.pending.as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_no_id_has_one_of_its_own_in_each_key() {
        let id_in = |key: &str, again| {
            let place = ExternalPlace::Members { key: key.into(), unit: 1 };
            entry(&place, Bytes::from_static(b"a payload"), again).id
        };
        assert_eq!(id_in("k", None), digest(&[b"k", b"a payload"]));
        assert_eq!(id_in("k", Some(7)), digest(&[b"k", b"a payload", &7_u64.to_be_bytes()]));
        assert_ne!(id_in("k", None), id_in("other", None));
    }

    #[test]
    fn an_original_id_is_kept_and_a_payload_is_not_repeated() {
        let members = ExternalPlace::Members { key: "k".into(), unit: 1 };
        let hashes = ExternalPlace::Hashes { key: "k".into(), unit: 1, prefix: "task".into() };
        let named = entry(&hashes, Bytes::from_static(b"task:1"), None);
        assert_eq!((named.id.as_str(), named.metadata.origin), ("task:1", None));
        let odd = entry(&hashes, Bytes::from_static(b"task 1"), None);
        assert!(odd.id.as_str().starts_with('~'));
        assert_eq!(odd.metadata.shown_id(&odd.id), "task 1");
        let again = entry(&hashes, Bytes::from_static(b"task:1"), Some(7));
        assert_ne!(again.id.as_str(), "task:1");
        assert_eq!(again.metadata.shown_id(&again.id), again.id.as_str());
        assert_ne!(again.id, entry(&hashes, Bytes::from_static(b"task:1"), Some(8)).id);
        let payload = entry(&members, Bytes::from_static(b"{\"a\":1}"), None);
        assert_eq!(payload.metadata, Metadata::default());
        assert_eq!(payload.id, entry(&members, Bytes::from_static(b"{\"a\":1}"), None).id);
    }
}
