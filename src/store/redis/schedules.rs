//! Recurring schedules: set, deleted, paused, read.

use std::iter;

use bytes::{BufMut, Bytes, BytesMut};
use redis::Value;

use super::{
    RedisStore,
    reply::{Reply, unexpected},
    script, unless_closed,
};
use crate::{
    message::{MessageId, codec},
    store::{
        NEVER, NextOccurrence, Partition, ScheduleChange, ScheduleDefinition, ScheduleOwner, ScheduleState, StoreError,
        schedule::RunResult,
    },
    time::UnixMillis,
};

/// COUNT for the scan of schedules.
const SCANNED: usize = 100;

impl RedisStore {
    /// Stores a definition that replaces the one of revision `replaces`.
    pub async fn set_schedule(
        &self,
        partition: &Partition,
        definition: &ScheduleDefinition,
        replaces: Option<&str>,
        next: NextOccurrence,
    ) -> Result<ScheduleChange, StoreError> {
        let route = self.route(&partition.route)?;
        let metadata = route.settings.with_flow(&definition.metadata);
        let tail = codec::tail(&metadata, &definition.payload);
        let revision = metadata.recurring.as_ref().map_or("", |recurring| &recurring.revision);
        let (occurrence, at) = match next {
            NextOccurrence::Kept => ("keep".to_owned(), String::new()),
            NextOccurrence::At { occurrence, at } => (occurrence.get().to_string(), at.get().to_string()),
        };
        let flow = metadata.flow.as_deref().unwrap_or_default();
        let arguments = [
            &b"set"[..],
            revision.as_bytes(),
            replaces.unwrap_or_default().as_bytes(),
            occurrence.as_bytes(),
            at.as_bytes(),
            flow.as_bytes(),
            &tail,
        ];
        self.define(partition, &definition.id, definition.owner, &arguments).await
    }

    /// Deletes a schedule. Its occurrence in flight ends as it is.
    pub async fn delete_schedule(
        &self,
        partition: &Partition,
        id: &MessageId,
        owner: ScheduleOwner,
    ) -> Result<ScheduleChange, StoreError> {
        self.define(partition, id, owner, &[b"delete"]).await
    }

    pub async fn pause_schedule(
        &self,
        partition: &Partition,
        id: &MessageId,
        pause: bool,
    ) -> Result<ScheduleChange, StoreError> {
        let what: &[u8] = if pause { b"pause" } else { b"resume" };
        self.define(partition, id, ScheduleOwner::Api, &[what]).await
    }

    async fn define(
        &self,
        partition: &Partition,
        id: &MessageId,
        owner: ScheduleOwner,
        arguments: &[&[u8]],
    ) -> Result<ScheduleChange, StoreError> {
        if !self.pull(partition, iter::once(id)).await?.is_empty() {
            return Ok(ScheduleChange::Moving);
        }
        let keys = self.keys(partition)?;
        let route = self.route(&partition.route)?;
        let all =
            route.with_flow(keys.of_messages(&[&keys.schedules, &keys.bytes, &keys.route, &keys.remembered]), keys);
        let (owner, file) = match owner {
            ScheduleOwner::File { revision } => ("file", revision),
            ScheduleOwner::Api => ("api", 0),
        };
        let call = script::DEFINE.keys(&all).arg(&keys.wake).arg(self.layout(partition)?).arg(id.as_str());
        let call = arguments.iter().fold(call.arg(owner).arg(file), |call, argument| call.arg(*argument));
        let (reply, link): (Vec<Value>, _) = self.writes.run(call).await.map_err(unless_closed)?;
        let change = match Reply::from(reply).text()?.as_str() {
            "created" => ScheduleChange::Created,
            "changed" => ScheduleChange::Changed,
            "unchanged" => ScheduleChange::Unchanged,
            "deleted" => ScheduleChange::Deleted,
            "absent" => ScheduleChange::Absent,
            "managed" => ScheduleChange::Managed,
            "older" => ScheduleChange::Older,
            "conflict" => ScheduleChange::Conflict,
            _ => return Err(unexpected("a change of a schedule", None)),
        };
        let did_write = matches!(change, ScheduleChange::Created | ScheduleChange::Changed | ScheduleChange::Deleted);
        self.confirm(partition, link, did_write).await?;
        Ok(change)
    }

    pub async fn schedule_state(
        &self,
        partition: &Partition,
        id: &MessageId,
    ) -> Result<Option<ScheduleState>, StoreError> {
        let is_moving = !self.pull(partition, iter::once(id)).await?.is_empty();
        let all = if is_moving { self.former_partitions(&partition.route) } else { Vec::new() };
        let former = all.iter().find(|one| one.among(one.count, id) == **one);
        let (states, _) = self.read_schedules(former.unwrap_or(partition), &["one", id.as_str()]).await?;
        Ok(states.into_iter().next())
    }

    /// Whether a partition, perhaps of a route that is not configured, has this schedule.
    pub async fn has_schedule(&self, partition: &Partition, id: &MessageId) -> Result<bool, StoreError> {
        let (states, _) = self.read_schedules(partition, &["one", id.as_str()]).await?;
        Ok(!states.is_empty())
    }

    /// All schedules of a partition.
    pub async fn schedules(&self, partition: &Partition) -> Result<Vec<ScheduleState>, StoreError> {
        let (mut all, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let (some, next) = self.read_schedules(partition, &["page", &cursor, &SCANNED.to_string()]).await?;
            all.extend(some);
            if next == "0" {
                return Ok(all);
            }
            cursor = next;
        }
    }

    async fn read_schedules(
        &self,
        partition: &Partition,
        arguments: &[&str],
    ) -> Result<(Vec<ScheduleState>, String), StoreError> {
        let keys = self.any_keys(partition);
        let call =
            script::SCHEDULES.keys(&[&keys.pending, &keys.unack, &keys.messages, &keys.schedules]).arg(arguments);
        let reply: Vec<Value> = call.run(&self.listings).await?;
        let mut reply = Reply::from(reply);
        let now = reply.millis()?.get();
        let cursor = reply.text()?;
        let mut states = Vec::new();
        while !reply.is_done() {
            states.extend(state(&mut reply, now)?);
        }
        Ok((states, cursor))
    }
}

/// `None`: not written by this release.
fn state(reply: &mut Reply, now: u64) -> Result<Option<ScheduleState>, StoreError> {
    let (id, head) = (reply.id()?, reply.text()?);
    let (occurrence, planned) = (reply.integer()?, reply.integer()?);
    let (score, in_flight, tail) = (reply.text()?, reply.flag()?, reply.bytes()?);
    let Some((message, (is_paused, owner, runs))) = decoded(&tail).zip(parts(&head)) else { return Ok(None) };
    let mut metadata = message.metadata;
    let Some(recurring) = metadata.recurring.take() else { return Ok(None) };
    let next = match (occurrence, planned) {
        (0, _) => None,
        // It is over, and the next claim plans what follows.
        (done, 0) => recurring.rule.timetable().ok().and_then(|timetable| timetable.plan(done, now).occurrence),
        (next, _) => Some(next).filter(|next| *next < NEVER),
    };
    Ok(Some(ScheduleState {
        id,
        owner,
        is_paused,
        recurring: *recurring,
        metadata,
        payload: message.payload,
        runs: RunResult::parse_all(runs),
        next: next.and_then(UnixMillis::new),
        in_flight,
        is_lost: score.is_empty() && !in_flight,
    }))
}

/// The values in front of a definition (lua/include/recurring.lua).
fn parts(head: &str) -> Option<(bool, ScheduleOwner, &str)> {
    let parts: Vec<&str> = head.split(' ').collect();
    let [_, paused, owner, file, _, _, runs] = parts[..] else { return None };
    let owner = if owner == "file" { ScheduleOwner::File { revision: file.parse().ok()? } } else { ScheduleOwner::Api };
    Some((paused == "1", owner, runs))
}

fn decoded(tail: &Bytes) -> Option<crate::message::StoredMessage> {
    let mut body = BytesMut::with_capacity(17 + tail.len());
    body.put_u8(codec::VERSION);
    body.put_bytes(0, 16);
    body.extend_from_slice(tail);
    codec::decode(&body.freeze()).ok()
}
