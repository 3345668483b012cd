//! Scheduling, rescheduling, cancelling.

use redis::Value;

use super::{DATA_VERSION, MAX_CALL_BYTES, RedisStore, UNREGISTERED, reply::Reply, script};
use crate::{
    codec,
    message::{MessageId, NewMessage, OnConflict, State},
    port::{Partition, StoreError},
    queue::{Cancelled, Rescheduled, Scheduled, Status},
    time::Due,
};

impl RedisStore {
    /// One answer per message, in order. At most `MAX_BATCH` messages and `MAX_CALL_BYTES`, all of `partition`.
    ///
    /// `Unavailable` of kind `UNREGISTERED` while Redis does not know the partition as it is here: nothing was written.
    /// Where live messages stand in the way whose bodies are too large for one script together, it goes on in halves.
    pub async fn schedule(&self, partition: &Partition, batch: &[NewMessage]) -> Result<Vec<Scheduled>, StoreError> {
        let mut answers = Vec::with_capacity(batch.len());
        // The next one last.
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            match self.schedule_at_once(partition, part).await {
                Err(StoreError::Refused { slug, .. }) if slug == "split" && part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(StoreError::Refused { slug, text }) if slug == UNREGISTERED => {
                    return Err(StoreError::Unavailable { kind: UNREGISTERED, text });
                }
                result => answers.extend(result?),
            }
        }
        Ok(answers)
    }

    async fn schedule_at_once(
        &self,
        partition: &Partition,
        batch: &[NewMessage],
    ) -> Result<Vec<Scheduled>, StoreError> {
        let keys = self.keys(partition)?;
        let mut call = script::SCHEDULE
            .keys(&[&keys.pending, &keys.unack, &keys.messages, &keys.attempts, &keys.errors, &keys.dead, &keys.route])
            .arg(&keys.wake)
            .arg(MAX_CALL_BYTES)
            .arg(format!("{DATA_VERSION} {} {} ", self.route(&partition.route)?.keys.len(), partition.number));
        for message in batch {
            let conflict = match message.on_conflict {
                OnConflict::Keep => "keep",
                OnConflict::Replace => "replace",
            };
            let tail = codec::tail(&message.metadata, &message.payload);
            call = call.arg(message.id.as_str()).arg(due_argument(message.due)).arg(conflict).arg(&tail[..]);
        }
        let reply: Vec<Value> = call.run(&self.connection).await?;
        let mut reply = Reply::from(reply);
        batch
            .iter()
            .map(|message| {
                let status = match reply.text()?.as_str() {
                    "scheduled" => Status::Scheduled,
                    "replaced" => Status::Replaced,
                    "revived" => Status::Revived,
                    "in_flight" => Status::InFlight,
                    "unack" => Status::Exists(State::Unack),
                    "dead" => Status::Exists(State::Dead),
                    _ => Status::Exists(State::Pending),
                };
                Ok(Scheduled { id: message.id.clone(), due: reply.millis()?, status })
            })
            .collect()
    }

    pub async fn reschedule(&self, partition: &Partition, id: &MessageId, due: Due) -> Result<Rescheduled, StoreError> {
        let keys = self.keys(partition)?;
        let reply: Vec<Value> = script::RESCHEDULE
            .keys(&[&keys.pending, &keys.unack, &keys.messages, &keys.dead])
            .arg(&keys.wake)
            .arg(id.as_str())
            .arg(due_argument(due))
            .run(&self.connection)
            .await?;
        let mut reply = Reply::from(reply);
        Ok(match reply.text()?.as_str() {
            "done" => Rescheduled::Done(reply.millis()?),
            "in_flight" => Rescheduled::InFlight,
            "dead" => Rescheduled::Dead,
            _ => Rescheduled::NotFound,
        })
    }

    pub async fn cancel(&self, partition: &Partition, id: &MessageId) -> Result<Cancelled, StoreError> {
        let keys = self.keys(partition)?;
        let reply: String = script::CANCEL
            .keys(&[&keys.pending, &keys.unack, &keys.messages, &keys.attempts, &keys.errors, &keys.dead])
            .arg(id.as_str())
            .run(&self.connection)
            .await?;
        Ok(match reply.as_str() {
            "cancelled" => Cancelled::Cancelled,
            "purged" => Cancelled::Purged,
            "in_flight" => Cancelled::InFlight,
            _ => Cancelled::NotFound,
        })
    }
}

fn due_argument(due: Due) -> String {
    match due {
        Due::After(millis) => format!("+{millis}"),
        Due::At(at) => at.get().to_string(),
    }
}
