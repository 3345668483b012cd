//! Recurring schedules, as the store keeps them.

use bytes::Bytes;

use crate::{
    message::{MessageId, Metadata, Recurring},
    time::UnixMillis,
};

/// Who owns a definition. One of a file cannot be changed by the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleOwner {
    /// `revision`: the `schedules_revision` of the file.
    File {
        revision: u64,
    },
    Api,
}

/// A definition to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleDefinition {
    /// `MessageId::of_schedule`.
    pub id: MessageId,
    pub owner: ScheduleOwner,
    /// With `recurring`.
    pub metadata: Metadata,
    pub payload: Bytes,
}

/// When the next occurrence of a stored definition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextOccurrence {
    /// As planned: the rule did not change.
    Kept,
    /// The occurrence, and when it is sent.
    At { occurrence: UnixMillis, at: UnixMillis },
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleChange {
    Created,
    Changed,
    Unchanged,
    Deleted,
    Absent,
    /// The file owns the definition.
    Managed,
    /// The definition is of a file with a higher revision.
    Older,
    /// Its occurrence is in flight in a former partition, from which messages are moved: nothing changed.
    Moving,
    /// It has another revision than the one that was to be replaced.
    Conflict,
}

/// How an occurrence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunResult {
    Delivered { occurrence: UnixMillis, late: u64 },
    Dead { occurrence: UnixMillis, late: u64 },
    Missed { at: UnixMillis, count: u64 },
}

impl RunResult {
    /// Parses one of the runs (lua/include/recurring.lua).
    fn parse(text: &str) -> Option<Self> {
        let (time, number) = text.get(1..)?.split_once('+')?;
        let (time, number) = (UnixMillis::new(time.parse().ok()?)?, number.parse().ok()?);
        match text.as_bytes().first()? {
            b'd' => Some(Self::Delivered { occurrence: time, late: number }),
            b'x' => Some(Self::Dead { occurrence: time, late: number }),
            b'm' => Some(Self::Missed { at: time, count: number }),
            _ => None,
        }
    }

    pub(super) fn parse_all(text: &str) -> Vec<Self> {
        text.split(',').filter_map(Self::parse).collect()
    }
}

/// A schedule and what it does at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleState {
    pub id: MessageId,
    pub owner: ScheduleOwner,
    pub is_paused: bool,
    pub recurring: Recurring,
    /// Without `recurring`.
    pub metadata: Metadata,
    pub payload: Bytes,
    /// The latest first.
    pub runs: Vec<RunResult>,
    /// The occurrence that is waited for, or in flight; `None`: the schedule has ended, or its message is lost.
    pub next: Option<UnixMillis>,
    pub in_flight: bool,
    /// Whether its message is lost.
    pub is_lost: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_and_others_are_passed_over() {
        let at = |millis| UnixMillis::new(millis).unwrap();
        assert_eq!(
            RunResult::parse_all("d1000+35,x2000+7,m3000+12,,d,z1+1"),
            [
                RunResult::Delivered { occurrence: at(1000), late: 35 },
                RunResult::Dead { occurrence: at(2000), late: 7 },
                RunResult::Missed { at: at(3000), count: 12 },
            ]
        );
    }
}
