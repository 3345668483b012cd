//! Scheduling, rescheduling, cancelling.

use std::iter;

use redis::Value;

use super::{
    MAX_CALL_BYTES, RedisStore,
    connection::OnLink,
    reply::{Reply, unexpected},
    script::{self, Call},
    unless_closed,
};
use crate::{
    message::{Cancellation, Ending, Limit, LogRecord, MessageId, NewMessage, OnConflict, State, codec},
    store::{Cancelled, NewDue, Partition, Rescheduled, ScheduleStatus, Scheduled, StoreError},
    time::{Due, MAX_DELAY_MILLIS, UnixMillis},
};

impl RedisStore {
    /// One answer per message, in order. At most `MAX_BATCH` messages and `MAX_CALL_BYTES`, all of `partition`.
    ///
    /// `Unavailable` of kind `UNREGISTERED` if the partition is not open in Redis with the layout of this instance:
    /// nothing was written. If live messages have the same ids, and their bodies are too large for one script call, the
    /// batch is sent in halves.
    pub async fn schedule(&self, partition: &Partition, batch: &[NewMessage]) -> Result<Vec<Scheduled>, StoreError> {
        let in_flight = self.pull(partition, batch.iter().map(|message| &message.id)).await?;
        if in_flight.is_empty() {
            return self.schedule_here(partition, batch).await;
        }
        let here: Vec<_> = batch.iter().filter(|message| !in_flight.contains_key(&message.id)).cloned().collect();
        let answers = if here.is_empty() { Vec::new() } else { self.schedule_here(partition, &here).await? };
        let mut answers = answers.into_iter();
        let answer = |message: &NewMessage| match in_flight.get(&message.id) {
            Some(due) => {
                let status = match message.on_conflict {
                    OnConflict::Keep => ScheduleStatus::Exists(State::Unack),
                    OnConflict::Replace => ScheduleStatus::InFlight,
                };
                Some(Scheduled { id: message.id.clone(), due: *due, status })
            }
            None => answers.next(),
        };
        Ok(batch.iter().filter_map(answer).collect())
    }

    async fn schedule_here(&self, partition: &Partition, batch: &[NewMessage]) -> Result<Vec<Scheduled>, StoreError> {
        let mut answers = Vec::with_capacity(batch.len());
        // A stack: the next part is the last.
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            match self.schedule_at_once(partition, part).await {
                Err(StoreError::Refused { slug, .. }) if slug == "split" && part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                result => answers.extend(result.map_err(unless_closed)?),
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
        let route = self.route(&partition.route)?;
        let others = [&*keys.route, &keys.remembered, &keys.records, &keys.bytes, &keys.groups, &keys.grouped];
        let all = keys.of_messages(&others);
        let script = if route.has_features() { &script::SCHEDULE } else { &script::PLAIN_SCHEDULE };
        let mut call = script
            .keys(&route.with_history(all, keys))
            .arg(&keys.wake)
            .arg(MAX_CALL_BYTES)
            .arg(self.layout(partition)?)
            .arg(route.settings.keep_millis())
            .arg(route.history_settings());
        let columns = |one: &NewMessage| u8::from(one.record.is_some()) + 2 * u8::from(one.metadata.group.is_some());
        let alike = |a: &NewMessage, b: &NewMessage| a.on_conflict == b.on_conflict && columns(a) == columns(b);
        for run in batch.chunk_by(alike) {
            let conflict = match run[0].on_conflict {
                OnConflict::Keep => "keep",
                OnConflict::Replace => "replace",
            };
            call = call.arg(conflict).arg(run.len()).arg(columns(&run[0]));
            for message in run {
                let metadata = route.settings.with_flow(&message.metadata);
                let tail = codec::tail(&metadata, &message.payload);
                call = call.arg(message.id.as_str()).arg(debounced_due(message)).arg(&tail[..]);
                if let Some(record) = &message.record {
                    call = call.arg(record.to_string());
                }
                if let Some(group) = &metadata.group {
                    call = call.arg(group);
                }
                if route.settings.flow.is_some() {
                    call = call.arg(metadata.flow.as_deref().unwrap_or_default());
                }
            }
        }
        let (reply, link): (Vec<Value>, _) = self.writes.run(call).await?;
        let mut reply = Reply::from(reply);
        let answers = batch.iter().map(|message| {
            let status = status(&reply.text()?)?;
            Ok(Scheduled { id: message.id.clone(), due: reply.millis()?, status })
        });
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        let is_write =
            |status| matches!(status, ScheduleStatus::Scheduled | ScheduleStatus::Replaced | ScheduleStatus::Revived);
        let did_write = answers.iter().any(|one| is_write(one.status));
        self.confirm(partition, link, did_write).await?;
        Ok(answers)
    }

    /// Waits for replicas, if durability requires it. `did_write`: whether this call wrote; otherwise an earlier call
    /// may have.
    pub(super) async fn confirm(&self, partition: &Partition, link: OnLink, did_write: bool) -> Result<(), StoreError> {
        if self.writes.durability().is_none() {
            return Ok(());
        }
        let fence = if did_write { None } else { Some(script::FENCE.keys(&[&self.any_keys(partition).route])) };
        self.writes.confirm(link, fence).await
    }

    /// Makes a change that can be repeated. It acts at once, also while other calls wait for replicas. If durability requires it,
    /// it is then repeated over their connection, and waits for replicas. A fence alone would not do: a fail-over between the two
    /// may have lost the change. Returns whether that changed anything.
    pub(super) async fn run_at_once(&self, partition: &Partition, call: Call) -> Result<bool, StoreError> {
        let is_changed: bool = call.run(&self.servers).await.map_err(unless_closed)?;
        if self.writes.durability().is_none() {
            return Ok(is_changed);
        }
        let (is_anew, link) = self.writes.run(call).await.map_err(unless_closed)?;
        self.confirm(partition, link, is_anew).await?;
        Ok(is_changed || is_anew)
    }

    /// Checks whether a write can be confirmed now; changes nothing.
    ///
    /// # Errors
    /// Those of `schedule`.
    pub async fn fence(&self, partition: &Partition) -> Result<(), StoreError> {
        let (_, link): (bool, _) = self.writes.run(script::FENCE.keys(&[&self.keys(partition)?.route])).await?;
        self.confirm(partition, link, true).await
    }

    /// Without `due` the message is due now, and the rate of its flow does not apply to it.
    pub async fn reschedule(
        &self,
        partition: &Partition,
        id: &MessageId,
        due: Option<Due>,
    ) -> Result<Rescheduled, StoreError> {
        self.reschedule_if(partition, id, due.map_or(NewDue::Now, NewDue::from), None).await
    }

    /// `only`: the group that the message must have, and the time before which it must have been accepted or moved last. It
    /// counts as moved at that time or later, so that a repeated call leaves it.
    pub async fn reschedule_if(
        &self,
        partition: &Partition,
        id: &MessageId,
        due: NewDue,
        only: Option<(&str, UnixMillis)>,
    ) -> Result<Rescheduled, StoreError> {
        if !self.pull(partition, iter::once(id)).await?.is_empty() {
            return Ok(Rescheduled::InFlight);
        }
        let (group, before) = only.map_or(("", String::new()), |(group, at)| (group, at.get().to_string()));
        let keys = self.keys(partition)?;
        let route = self.route(&partition.route)?;
        let all = vec![keys.pending.as_str(), &keys.unack, &keys.messages, &keys.dead, &keys.route, &keys.groups];
        let all = route.with_flow(all, keys);
        let call = script::RESCHEDULE
            .keys(&all)
            .arg(&keys.wake)
            .arg(self.layout(partition)?)
            .arg(id.as_str())
            .arg(match due {
                NewDue::Now => "now".to_owned(),
                NewDue::At(due) => due_argument(due),
                NewDue::By(millis) => format!("by {millis} {MAX_DELAY_MILLIS}"),
            })
            .arg(u8::from(route.has_order()))
            .arg(group)
            .arg(before);
        let (reply, link): (Vec<Value>, _) = self.writes.run(call).await.map_err(unless_closed)?;
        let mut reply = Reply::from(reply);
        let answer = reply.text()?;
        self.confirm(partition, link, answer == "done").await?;
        Ok(match answer.as_str() {
            "done" => Rescheduled::Done(reply.millis()?),
            "in_flight" => Rescheduled::InFlight,
            "dead" => Rescheduled::Dead,
            "held" => Rescheduled::Held(reply.id()?),
            "limit_delay" => Rescheduled::Over(Limit::Delay),
            "expires" => Rescheduled::Expires(reply.millis()?),
            "later" => Rescheduled::Later,
            _ => Rescheduled::NotFound,
        })
    }

    pub async fn cancel(&self, partition: &Partition, cancellation: &Cancellation) -> Result<Cancelled, StoreError> {
        let Cancellation { id, record, unseen, keep_dead, by } = cancellation;
        if !self.pull(partition, iter::once(id)).await?.is_empty() {
            return Ok(Cancelled::InFlight);
        }
        let keys = self.keys(partition)?;
        let route = self.route(&partition.route)?;
        let others = [&*keys.remembered, &keys.records, &keys.bytes, &keys.route, &keys.groups, &keys.grouped];
        let all = route.with_history(keys.of_messages(&others), keys);
        let call = script::CANCEL
            .keys(&all)
            .arg(&keys.wake)
            .arg(self.layout(partition)?)
            .arg(id.as_str())
            .arg(route.settings.keep_millis())
            .arg(route.settings.kept_by_partition())
            .arg(record_argument(record.as_ref()))
            .arg(u8::from(*unseen))
            .arg(u8::from(*keep_dead))
            .arg(route.history_settings())
            .arg(by.as_deref().unwrap_or_default());
        let (reply, link): (String, _) = self.writes.run(call).await.map_err(unless_closed)?;
        self.confirm(partition, link, matches!(reply.as_str(), "cancelled" | "purged")).await?;
        Ok(match reply.as_str() {
            "cancelled" => Cancelled::Cancelled,
            "purged" => Cancelled::Purged,
            "dead" => Cancelled::Dead,
            "in_flight" => Cancelled::InFlight,
            "known" => Cancelled::Known,
            _ => Cancelled::NotFound,
        })
    }
}

/// Parses a status of lua/schedule.lua. An unknown one, of another release's script for example, is an error.
fn status(text: &str) -> Result<ScheduleStatus, StoreError> {
    Ok(match text {
        "scheduled" => ScheduleStatus::Scheduled,
        "replaced" => ScheduleStatus::Replaced,
        "revived" => ScheduleStatus::Revived,
        "in_flight" => ScheduleStatus::InFlight,
        "known" => ScheduleStatus::Known,
        "pending" => ScheduleStatus::Exists(State::Pending),
        "unack" => ScheduleStatus::Exists(State::Unack),
        "dead" => ScheduleStatus::Exists(State::Dead),
        other => {
            let over = Limit::ALL.into_iter().find(|limit| limit.status() == other).map(ScheduleStatus::Over);
            let ended = || Ending::parse(other).map(ScheduleStatus::Ended);
            over.or_else(ended).ok_or_else(|| unexpected("a status that is known", None))?
        }
    })
}

fn record_argument(record: Option<&LogRecord>) -> String {
    record.map_or_else(String::new, LogRecord::to_string)
}

fn debounced_due(message: &NewMessage) -> String {
    let due = due_argument(message.due);
    message.debounce.map_or_else(|| due.clone(), |max| format!("/{max}/{due}"))
}

fn due_argument(due: Due) -> String {
    match due {
        Due::After(millis) => format!("+{millis}"),
        Due::At(at) => at.get().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_is_not_known_is_no_success() {
        assert_eq!(status("pending"), Ok(ScheduleStatus::Exists(State::Pending)));
        assert_eq!(status("delivered"), Ok(ScheduleStatus::Ended(Ending::Delivered)));
        assert_eq!(status("limit_bytes"), Ok(ScheduleStatus::Over(Limit::Bytes)));
        for unknown in ["", "Scheduled", "postponed"] {
            let error = status(unknown).expect_err("not known");
            assert!(matches!(error, StoreError::Unavailable { kind: "reply", .. }), "{error}");
        }
    }
}
