//! What a source has taken, and what remains of it when a part of it takes the place of another.

use std::collections::HashMap;

use crate::message::{Cancellation, LogRecord, MessageId, NewMessage, OnConflict};

#[derive(Clone, Debug)]
pub enum Entry {
    Schedule(NewMessage),
    /// It cannot be understood; why. Its due time does not matter.
    Invalid(NewMessage, String),
    /// No longer wanted.
    Cancel(Cancellation),
}

impl Entry {
    /// The id of which it makes everything before void, and what it was read from.
    fn replaces(&mut self) -> Option<(&MessageId, &mut Option<LogRecord>)> {
        match self {
            Self::Schedule(message) if message.on_conflict == OnConflict::Replace => {
                Some((&message.id, &mut message.record))
            }
            Self::Cancel(cancellation) => Some((&cancellation.id, &mut cancellation.record)),
            Self::Schedule(_) | Self::Invalid(..) => None,
        }
    }

    /// Takes the place of `earlier`, of the same id, which nobody is to see.
    fn cover(&mut self, mut earlier: Self) {
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

/// Of the entries that replace or cancel an id only the last one: no other may be seen, not for a moment.
pub fn folded(entries: impl IntoIterator<Item = Entry>) -> Vec<Entry> {
    let mut places: HashMap<MessageId, usize> = HashMap::new();
    let mut folded: Vec<Option<Entry>> = Vec::new();
    for mut entry in entries {
        if let Some((id, _)) = entry.replaces()
            && let Some(place) = places.insert(id.clone(), folded.len())
            && let Some(earlier) = folded[place].take()
        {
            entry.cover(earlier);
        }
        folded.push(Some(entry));
    }
    folded.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{message::Metadata, time::Due};

    fn record((offset, timestamp): (u64, u64)) -> LogRecord {
        LogRecord { place: "t:0".into(), offset, timestamp }
    }

    fn schedule(id: &str, on_conflict: OnConflict, record: Option<(u64, u64)>) -> Entry {
        let (id, metadata) = (MessageId::parse(id).unwrap(), Metadata::default());
        Entry::Schedule(NewMessage {
            id,
            due: Due::NOW,
            payload: "".into(),
            metadata,
            on_conflict,
            record: record.map(self::record),
        })
    }

    fn cancel(id: &str, record: Option<(u64, u64)>) -> Entry {
        Entry::Cancel(Cancellation { record: record.map(self::record), ..MessageId::parse(id).unwrap().into() })
    }

    fn shown(entry: Entry) -> (&'static str, String, Option<String>) {
        let text = |record: Option<LogRecord>| record.map(|record| record.to_string());
        match entry {
            Entry::Schedule(message) => ("schedule", message.id.to_string(), text(message.record)),
            Entry::Invalid(message, _) => ("invalid", message.id.to_string(), text(message.record)),
            Entry::Cancel(Cancellation { id, record, unseen: true }) => ("cancel unseen", id.to_string(), text(record)),
            Entry::Cancel(Cancellation { id, record, .. }) => ("cancel", id.to_string(), text(record)),
        }
    }

    #[test]
    fn the_last_word_about_an_id_counts_and_knows_the_latest_time_of_all() {
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
        let folded: Vec<_> = folded(entries).into_iter().map(shown).collect();
        let expected = [
            ("schedule", "kept", None),
            ("schedule", "kept", None),
            ("schedule", "c", Some("4 40 t:0")),
            ("schedule", "b", Some("6 50 t:0")),
            ("cancel", "d", Some("8 10 t:0")),
            ("cancel unseen", "a", Some("9 70 t:0")),
        ];
        let expected = expected.map(|(what, id, record)| (what, id.to_owned(), record.map(str::to_owned)));
        assert_eq!(folded, expected);
    }
}
