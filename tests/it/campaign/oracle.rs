//! The obligations for an id, by the calls that were answered.
//!
//! A definite answer makes an obligation. A call without one permits both: it counts as executed or not, at any time
//! after it was made.

use std::{collections::HashMap, sync::Mutex};

use super::history::{Answer, Call, Operation};

/// An answer may be under way to the client for this time while a sink already gets what it allows, in milliseconds. It also
/// covers the time between an arrival and its record.
pub const MARGIN: u64 = 500;

/// All calls of a round, by id.
#[derive(Default)]
pub struct Oracle {
    lives: Mutex<HashMap<String, Life>>,
}

/// The calls for one id.
#[derive(Clone, Debug)]
pub struct Life {
    pub route: &'static str,
    /// The endpoint rejects it: it becomes a dead letter.
    pub is_rejected: bool,
    /// On a route with flows.
    pub flow: Option<String>,
    /// A producer gave it to a source.
    pub is_from_source: bool,
    pub calls: Vec<Call>,
}

/// The end that an id must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    Delivery,
    /// Delivered or not, both are fine.
    Either,
    /// It was cancelled, or never accepted.
    Never,
}

impl Oracle {
    pub fn begin(&self, id: &str, life: Life) {
        let former = self.lives.lock().expect("no panic under this lock").insert(id.to_owned(), life);
        assert!(former.is_none(), "an id is used once");
    }

    pub fn record(&self, id: &str, call: Call) {
        self.lives.lock().expect("no panic under this lock").get_mut(id).expect("it began").calls.push(call);
    }

    /// Messages that sources owe.
    pub fn owed_by_sources(&self) -> Vec<String> {
        let lives = self.lives.lock().expect("no panic under this lock");
        let owed = lives.iter().filter(|(_, life)| life.is_from_source && life.owed() == Owed::Delivery);
        owed.map(|(id, _)| id.clone()).collect()
    }

    pub fn take(&self) -> HashMap<String, Life> {
        std::mem::take(&mut self.lives.lock().expect("no panic under this lock"))
    }
}

impl Life {
    /// A message of the route that nothing was asked of yet.
    pub fn of(route: &'static str) -> Self {
        Self { route, is_rejected: false, flow: None, is_from_source: false, calls: Vec::new() }
    }

    pub fn owed(&self) -> Owed {
        let unknown = |operation| self.unknown(|call| call.operation == operation);
        let last = self.calls.iter().rfind(|call| matches!(call.answer, Answer::Done { .. }));
        match last {
            Some(call) if call.operation == Operation::Cancel => Owed::Never,
            Some(_) if unknown(Operation::Cancel) => Owed::Either,
            Some(_) => Owed::Delivery,
            None if unknown(Operation::Schedule) => Owed::Either,
            None => Owed::Never,
        }
    }

    /// The versions that a sink may get at `at`.
    pub fn versions(&self, at: u64) -> Vec<u32> {
        self.permitted(at, Operation::writes).map(|call| call.version).collect()
    }

    /// The earliest due time that is in force at `at`; `None`: the message is cancelled, or was never accepted.
    pub fn earliest(&self, at: u64) -> Option<u64> {
        let due = |call: &Call| match call.answer {
            Answer::Done { due } => due,
            _ => call.not_before,
        };
        self.permitted(at, |operation| operation != Operation::Cancel).map(due).min()
    }

    /// When the call was answered that forbids a delivery at `at`, if it is one of these operations.
    pub fn forbidden_since(&self, at: u64) -> Option<u64> {
        self.calls.iter().filter(|call| call.is_done_by(at)).map(|call| call.answered).max()
    }

    /// Versions that can be the content in the end.
    pub fn last_versions(&self) -> Vec<u32> {
        self.versions(u64::MAX)
    }

    /// Calls of some operations that can be in force at `at`: made until this time, and not replaced by a later one that was answered
    /// before.
    fn permitted(&self, at: u64, of: impl Fn(Operation) -> bool) -> impl Iterator<Item = &Call> {
        let counts = move |call: &Call| of(call.operation);
        // A cancellation replaces all.
        let replaces = self
            .calls
            .iter()
            .enumerate()
            .filter(|(_, call)| (counts(call) || call.operation == Operation::Cancel) && call.is_done_by(at));
        let last = replaces.map(|(index, _)| index).max().unwrap_or(0);
        let is_final =
            self.calls.get(last).is_some_and(|call| call.operation == Operation::Cancel && call.is_done_by(at));
        self.calls
            .iter()
            .enumerate()
            .filter(move |(index, call)| {
                let in_force = match call.answer {
                    Answer::Done { .. } => *index >= last,
                    // The route remembers what was cancelled: no earlier call revives it.
                    Answer::Unknown(_) => !is_final,
                    Answer::Nothing(_) => false,
                };
                in_force && counts(call) && call.called <= at
            })
            .map(|(_, call)| call)
    }

    /// When its redrive was answered.
    pub fn redriven(&self) -> Option<u64> {
        let is_done = |call: &&Call| call.operation == Operation::Redrive && matches!(call.answer, Answer::Done { .. });
        self.calls.iter().find(is_done).map(|call| call.answered)
    }

    fn unknown(&self, of: impl Fn(&Call) -> bool) -> bool {
        self.calls.iter().any(|call| matches!(call.answer, Answer::Unknown(_)) && of(call))
    }
}

impl Call {
    /// Whether it was answered as executed, long enough before `at`.
    fn is_done_by(&self, at: u64) -> bool {
        matches!(self.answer, Answer::Done { .. }) && self.answered.saturating_add(MARGIN) <= at
    }
}
