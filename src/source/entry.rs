//! The entries that a source passes to the intake, and the replacement of earlier entries by later ones.

use std::collections::HashMap;

use crate::message::{Cancellation, LogRecord, MessageId, NewMessage, OnConflict};

#[derive(Clone, Debug)]
pub enum SourceEntry {
    Schedule(NewMessage),
    /// A message that becomes a dead letter, and the reason. The due time is ignored.
    Invalid(NewMessage, String),
    Cancel(Cancellation),
}

impl SourceEntry {
    /// The id and the log record of the entry, if it replaces earlier entries of its id.
    fn replaces(&mut self) -> Option<(&MessageId, &mut Option<LogRecord>)> {
        match self {
            Self::Schedule(message) if message.on_conflict == OnConflict::Replace => {
                Some((&message.id, &mut message.record))
            }
            Self::Cancel(cancellation) => Some((&cancellation.id, &mut cancellation.record)),
            Self::Schedule(_) | Self::Invalid(..) => None,
        }
    }

    /// Replaces `earlier`, which has the same id and is not applied.
    fn replace(&mut self, mut earlier: Self) {
        if let Self::Cancel(cancellation) = self {
            cancellation.unseen |= match &earlier {
                Self::Cancel(earlier) => earlier.unseen,
                Self::Schedule(_) | Self::Invalid(..) => true,
            };
        }
        if let (Some((_, record)), Some((_, Some(earlier)))) = (self.replaces(), earlier.replaces()) {
            *record = record.take().map(|record| record.after(earlier));
        }
    }
}

/// Places of entries in the batch of a source: that of an entry, and those of the entries that it replaces.
pub type Places = Vec<usize>;

/// Keeps only the last of the entries that replace or cancel one id, with the places of all. Earlier ones never take
/// effect.
pub fn without_replaced(entries: impl IntoIterator<Item = SourceEntry>) -> Vec<(SourceEntry, Places)> {
    let mut indices: HashMap<MessageId, usize> = HashMap::new();
    let mut kept: Vec<Option<(SourceEntry, Places)>> = Vec::new();
    for (place, mut entry) in entries.into_iter().enumerate() {
        let mut places = vec![place];
        if let Some((id, _)) = entry.replaces()
            && let Some(index) = indices.insert(id.clone(), kept.len())
            && let Some((earlier, replaced)) = kept[index].take()
        {
            entry.replace(earlier);
            places.extend(replaced);
        }
        kept.push(Some((entry, places)));
    }
    kept.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{message::Metadata, time::Due};

    fn record((offset, timestamp): (u64, u64)) -> LogRecord {
        LogRecord { place: "t:0".into(), offset, timestamp }
    }

    fn schedule(id: &str, on_conflict: OnConflict, record: Option<(u64, u64)>) -> SourceEntry {
        let (id, metadata) = (MessageId::parse(id).unwrap(), Metadata::default());
        SourceEntry::Schedule(NewMessage {
            id,
            due: Due::NOW,
            payload: "".into(),
            metadata,
            on_conflict,
            debounce: None,
            record: record.map(self::record),
        })
    }

    fn cancel(id: &str, record: Option<(u64, u64)>) -> SourceEntry {
        SourceEntry::Cancel(Cancellation { record: record.map(self::record), ..MessageId::parse(id).unwrap().into() })
    }

    fn shown(entry: SourceEntry) -> (&'static str, String, Option<String>) {
        let text = |record: Option<LogRecord>| record.map(|record| record.to_string());
        match entry {
            SourceEntry::Schedule(message) => ("schedule", message.id.to_string(), text(message.record)),
            SourceEntry::Invalid(message, _) => ("invalid", message.id.to_string(), text(message.record)),
            SourceEntry::Cancel(Cancellation { id, record, unseen, .. }) => {
                (if unseen { "cancel unseen" } else { "cancel" }, id.to_string(), text(record))
            }
        }
    }

    #[test]
    fn the_last_entry_of_an_id_is_kept_with_the_latest_time_and_the_places_of_all() {
        let (keep, replace) = (OnConflict::Keep, OnConflict::Replace);
        let entries = [
            schedule("a", replace, Some((1, 70))),
            schedule("kept", keep, None),
            schedule("b", replace, Some((2, 20))),
            cancel("a", Some((3, 30))),
            schedule("kept", keep, None),
            cancel("c", None),
            schedule("c", replace, Some((4, 40))),
            schedule("b", replace, Some((5, 50))),
            schedule("b", replace, Some((6, 10))),
            cancel("d", Some((7, 10))),
            cancel("d", Some((8, 10))),
            cancel("a", Some((9, 10))),
        ];
        let (kept, places): (Vec<_>, Vec<_>) = without_replaced(entries).into_iter().unzip();
        assert_eq!(places, [vec![1], vec![4], vec![6, 5], vec![8, 7, 2], vec![10, 9], vec![11, 3, 0]]);
        let kept: Vec<_> = kept.into_iter().map(shown).collect();
        let expected = [
            ("schedule", "kept", None),
            ("schedule", "kept", None),
            ("schedule", "c", Some("4 40 t:0")),
            ("schedule", "b", Some("6 50 t:0")),
            ("cancel", "d", Some("8 10 t:0")),
            ("cancel unseen", "a", Some("9 70 t:0")),
        ];
        let expected = expected.map(|(what, id, record)| (what, id.to_owned(), record.map(str::to_owned)));
        assert_eq!(kept, expected);
    }
}
