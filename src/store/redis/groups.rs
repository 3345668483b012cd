//! Groups: messages of a route that are listed, cancelled and moved together.

use std::collections::BTreeMap;

use redis::Value;

use super::{MAX_BATCH, RedisStore, queries::snapshot, reply::Reply, script, unless_closed};
use crate::{
    message::{MessageId, State, codec},
    store::{Partition, Snapshot, StoreError},
    time::UnixMillis,
};

/// The result of one call that cancels messages of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelledGroup {
    pub count: u64,
    /// Messages in flight, which stay.
    pub in_flight: Vec<MessageId>,
    /// The last id that was looked at, if more can follow.
    pub reached: Option<MessageId>,
}

/// A message of a group, with its score in the set of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    pub id: MessageId,
    pub state: State,
    pub score: u64,
}

/// Messages of a group in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMembers {
    pub members: Vec<GroupMember>,
    /// Whether more can follow.
    pub more: bool,
}

impl RedisStore {
    /// Cancels the pending messages among the first `most` (1 to `MAX_BATCH`) of a group after an id. Its messages must
    /// be in `partition`: see `gather`. `by`: the name of the token that cancels. Waits for replicas, if durability requires
    /// it.
    pub async fn cancel_group(
        &self,
        partition: &Partition,
        group: &str,
        after: Option<&MessageId>,
        most: usize,
        by: Option<&str>,
    ) -> Result<CancelledGroup, StoreError> {
        let call = self.purge_call(partition, most as u64, false, by)?;
        let call = call.arg("group").arg(group).arg(after.map_or("", MessageId::as_str));
        let (reply, link): (Vec<Value>, _) = self.writes.run(call).await?;
        let mut reply = Reply::from(reply);
        let (count, reached) = (reply.integer()?, reply.optional_id()?);
        let mut in_flight = Vec::new();
        while !reply.is_done() {
            in_flight.push(reply.id()?);
        }
        self.confirm(partition, link, count > 0).await?;
        Ok(CancelledGroup { count, in_flight, reached })
    }

    /// The first `most` (1 to `MAX_BATCH`) messages of a group after an id, in order of their ids, of any partition.
    pub async fn members_of_group(
        &self,
        partition: &Partition,
        group: &str,
        after: Option<&MessageId>,
        most: usize,
    ) -> Result<GroupMembers, StoreError> {
        let mut reply = self.group_call(partition, group, after, most, "ids").await?;
        let more = reply.flag()?;
        let mut members = Vec::new();
        while !reply.is_done() {
            members.push(GroupMember { id: reply.id()?, state: state(&mut reply)?, score: reply.integer()? });
        }
        Ok(GroupMembers { members, more })
    }

    /// The first `most` (1 to `MAX_BATCH`) messages of a group after an id, in order of their ids; fewer, but at least
    /// one, if they take more than `max_bytes`. Also returns the bytes of their bodies, and whether more can follow.
    pub async fn messages_of_group(
        &self,
        partition: &Partition,
        group: &str,
        after: Option<&MessageId>,
        most: usize,
        max_bytes: u64,
    ) -> Result<(Vec<Snapshot>, u64, bool), StoreError> {
        let mut reply = self.group_call(partition, group, after, most, max_bytes).await?;
        let (more, mut messages, mut bytes) = (reply.flag()?, Vec::new(), 0);
        while !reply.is_done() {
            let (id, state) = (reply.id()?, state(&mut reply)?);
            let (score, failure, body) = (reply.integer()?, reply.failure()?, reply.bytes()?);
            bytes += codec::weight(&body) as u64;
            messages.push(snapshot(id, state, score, failure, &body));
        }
        Ok((messages, bytes, more))
    }

    async fn group_call(
        &self,
        partition: &Partition,
        group: &str,
        after: Option<&MessageId>,
        most: usize,
        max_bytes: impl redis::ToRedisArgs,
    ) -> Result<Reply, StoreError> {
        let keys = self.any_keys(partition);
        let all = [&keys.pending, &keys.unack, &keys.dead, &keys.messages, &keys.errors, &keys.groups, &keys.grouped];
        let call = script::GROUP.keys(&all.map(String::as_str)).arg(group).arg(after.map_or("", MessageId::as_str));
        let reply: Vec<Value> = call.arg(most).arg(max_bytes).run(&self.listings).await.map_err(unless_closed)?;
        Ok(Reply::from(reply))
    }

    /// While messages move to another number of partitions: moves those of a group. Returns those in flight in a former
    /// partition, which stay there, with their due times.
    pub async fn gather(&self, route: &str, group: &str) -> Result<BTreeMap<MessageId, UnixMillis>, StoreError> {
        let mut in_flight = BTreeMap::new();
        for partition in self.former_partitions(route) {
            let mut after = None;
            loop {
                let GroupMembers { members, more } =
                    self.members_of_group(&partition, group, after.as_ref(), MAX_BATCH).await?;
                let ids: Vec<_> = members.into_iter().map(|one| one.id).collect();
                after = ids.last().cloned();
                in_flight.extend(self.pull_from([(partition.clone(), ids)].into()).await?);
                if !more {
                    break;
                }
            }
        }
        Ok(in_flight)
    }
}

fn state(reply: &mut Reply) -> Result<State, StoreError> {
    Ok(match reply.text()?.as_str() {
        "unack" => State::Unack,
        "dead" => State::Dead,
        _ => State::Pending,
    })
}
