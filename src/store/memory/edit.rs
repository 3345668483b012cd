//! Edits dead letters (lua/edit.lua).

use super::partition::{MemoryPartition, PartitionSettings};
use crate::{
    message::{MessageId, State, codec},
    store::{Edit, Edited, revision},
};

impl MemoryPartition {
    pub fn edit(&mut self, id: &MessageId, edit: &Edit, settings: PartitionSettings) -> Edited {
        let id = id.as_str();
        match self.state(id) {
            None => return Edited::NotFound,
            Some(State::Pending) => return Edited::Pending,
            Some(State::Unack) => return Edited::InFlight,
            Some(State::Dead) => {}
        }
        let (new, changes) = match codec::decode(&self.bodies[id]).map(|message| edit.apply(&message)) {
            Ok(Ok((message, changes))) => (codec::encode(&message), changes),
            Ok(Err(mistakes)) => return Edited::Invalid(mistakes),
            Err(error) => return Edited::Unreadable(error.to_string()),
        };
        if settings.forwards && self.outbox.contains(id) {
            return Edited::Forwarding;
        }
        let revision = revision(self.dead[id], &new);
        self.bodies.insert(id.to_owned(), new);
        Edited::Done { changes, revision }
    }
}
