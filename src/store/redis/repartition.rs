//! Moves the messages of a route to another number of partitions, while instances deliver and schedule.
//!
//! Each number of partitions has its own keys. The first instance with a newer number (`generations`) closes the former
//! partitions for scheduling and opens its own. From then on, each id belongs to one of the new partitions. A call for
//! an id first moves the data of this id from the former partition (`pull`), in one script. So an id is live in one
//! place only. A task moves the other ids, earliest due first. Messages in flight are settled where they were claimed.
//!
//! A script moves messages between partitions, which is not possible on a Redis cluster.

use std::collections::BTreeMap;

use futures::FutureExt;
use redis::Value;

use super::{
    DATA_VERSION, MAX_CALL_BYTES, RedisStore, StoreRoute, UNREGISTERED,
    generations::Generations,
    keys::{PartitionKeys, routes_key},
    reply::{Reply, unexpected},
    route::{KnownRoute, RouteSettings},
    script, unless_closed,
};
use crate::{
    message::MessageId,
    store::{Partition, StoreError},
    time::UnixMillis,
};

/// Number of ids that one script call moves: it blocks Redis for 3 ms.
const MOVED_AT_ONCE: usize = 250;

/// Ids in flight in a former partition, with the due times of their messages.
pub(super) type InFlight = BTreeMap<MessageId, UnixMillis>;

/// The result of moving an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    Moved,
    /// The id is not in the former partition.
    Absent,
    /// Not moved, because the bodies before it filled the call.
    Left,
    /// Not moved before its claim is settled. The value is the due time of the message.
    InFlight(UnixMillis),
    /// The id is live in both partitions.
    Conflict,
}

/// The result of one step of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Ids moved: of messages, of dead letters, and remembered ones.
    pub count: u64,
    /// Ids that are live in a former and in a new partition. Only another program can cause that.
    pub conflicts: u64,
    /// Whether the move is over: the route has no former partitions.
    pub is_done: bool,
}

impl RedisStore {
    /// The partitions from which messages of `route` are moved; empty without a move.
    pub fn former_partitions(&self, route: &str) -> Vec<Partition> {
        let former = self.routes.get_key_value(route).and_then(|(name, route)| Some((name, route.former()?)));
        former.map_or_else(Vec::new, |(name, former)| Partition::all(name, former).collect())
    }

    /// Begins the move of `route` from the partitions of `known`, which is stored as `stored`. If the partitions are
    /// empty, only their number is changed. Does nothing if the stored route has changed.
    pub(super) async fn begin_move(
        &self,
        route: &StoreRoute,
        known: &KnownRoute,
        stored: &str,
        generations: &Generations,
    ) -> Result<(), StoreError> {
        let (settings, from) = (&route.settings, known.settings.partitions);
        let during = settings.to_json(Some(from), generations);
        let after = settings.to_json(None, generations);
        let done = self.change_partitions(settings, from, [stored, &during, &after]).await?;
        let partitions = settings.partitions;
        match done.as_str() {
            "moving" => {
                tracing::warn!(
                    route = %settings.name, from, to = partitions,
                    "its messages are moved to another number of partitions"
                );
            }
            "moved" => {
                tracing::warn!(route = %settings.name, partitions, "the number of partitions of an empty route was changed");
            }
            _ => {}
        }
        Ok(())
    }

    async fn change_partitions(
        &self,
        settings: &RouteSettings,
        former: u16,
        [stored, during, after]: [&str; 3],
    ) -> Result<String, StoreError> {
        let routes_key = routes_key(&self.prefix);
        let keys_of =
            |count| Partition::all(&settings.name, count).map(|partition| PartitionKeys::new(&self.prefix, &partition));
        let former_ones: Vec<_> = keys_of(former).collect();
        let new_ones: Vec<_> = keys_of(settings.partitions).collect();
        let mut all = vec![routes_key.as_str()];
        for keys in &former_ones {
            all.extend([&*keys.pending, &keys.unack, &keys.dead, &keys.remembered, &keys.route, &keys.paused]);
            all.extend([&*keys.messages, &keys.attempts, &keys.errors, &keys.records, &keys.claims, &keys.bytes]);
            all.extend(keys.of_groups());
            all.extend([&*keys.history, &keys.ended]);
            all.extend(keys.flow.all());
        }
        all.extend(new_ones.iter().flat_map(|keys| [&*keys.route, &keys.paused]));
        let mut call =
            script::REPARTITION.keys(&all).arg(&*settings.name).arg(stored).arg(during).arg(after).arg(former);
        for index in 0..former {
            call = call.arg(format!("{DATA_VERSION} {} {index} 0 0", settings.partitions));
        }
        if !during.is_empty() {
            for index in 0..settings.partitions {
                call = call.arg(format!("{DATA_VERSION}m {} {index} {}", settings.partitions, settings.to_text()));
            }
        }
        call.run(&self.servers).await
    }

    /// Moves some ids from the former partitions of a route, and ends the move when none remain.
    pub async fn move_some(&self, name: &str) -> Result<Moved, StoreError> {
        let route = self.route(name)?;
        let mut moved = Moved::default();
        for partition in self.former_partitions(name) {
            let ids = self.ids_of(&partition).await?;
            let carried = match self.carry(&partition, &ids).await {
                // Another instance has ended the move, which changes `route` of each new partition.
                Err(StoreError::Unavailable { kind: UNREGISTERED, .. }) => {
                    moved.is_done = self.end_move(route).await?;
                    return Ok(moved);
                }
                carried => carried?,
            };
            for carried in carried.into_values() {
                moved.count += u64::from(carried == Carried::Moved);
                moved.conflicts += u64::from(carried == Carried::Conflict);
            }
        }
        if moved.count == 0 && moved.conflicts == 0 {
            moved.is_done = self.end_move(route).await?;
        }
        Ok(moved)
    }

    /// Some ids of a partition, earliest due first.
    async fn ids_of(&self, partition: &Partition) -> Result<Vec<MessageId>, StoreError> {
        let keys = self.any_keys(partition);
        for set in [&keys.pending, &keys.dead, &keys.remembered] {
            let mut command = redis::cmd("ZRANGE");
            command.arg(set).arg(0).arg(MOVED_AT_ONCE - 1);
            let found: Vec<String> = self.servers.run(set, &command).await?;
            if !found.is_empty() {
                let parsed = found.iter().map(|text| MessageId::stored(text));
                return parsed.collect::<Result<_, _>>().map_err(|text| StoreError::WrongType { text });
            }
        }
        Ok(Vec::new())
    }

    /// Ends the move if nothing remains. Returns whether `route` has no former partitions.
    async fn end_move(&self, route: &StoreRoute) -> Result<bool, StoreError> {
        let name = &route.settings.name;
        let mut command = redis::cmd("HGET");
        let routes_key = routes_key(&self.prefix);
        command.arg(&routes_key).arg(&**name);
        let stored: Option<String> = self.servers.run(&routes_key, &command).await?;
        let known = stored.as_ref().and_then(|stored| RouteSettings::from_json(name, stored));
        let (Some(stored), Some(KnownRoute { settings, former: Some(former), generations })) = (&stored, &known) else {
            // Another instance ended the move, or the route is lost, which the keeper detects.
            route.set_former(None);
            return Ok(true);
        };
        let after = settings.to_json(None, generations);
        let done = self.change_partitions(settings, *former, [stored, "", &after]).await?;
        if done == "moved" {
            route.set_former(None);
            tracing::info!(route = %name, partitions = settings.partitions, "all its messages are moved");
        }
        Ok(done == "moved")
    }

    /// Moves `ids`, which belong to `partition`, from the former partitions. Ids that are in flight there stay, and are
    /// returned.
    pub(super) async fn pull<'a>(
        &self,
        partition: &Partition,
        ids: impl Iterator<Item = &'a MessageId>,
    ) -> Result<InFlight, StoreError> {
        let Some(former) = self.route(&partition.route)?.former() else { return Ok(InFlight::new()) };
        let mut by_former: BTreeMap<Partition, Vec<MessageId>> = BTreeMap::new();
        for id in ids {
            by_former.entry(partition.among(former, id)).or_default().push(id.clone());
        }
        self.pull_from(by_former).boxed().await
    }

    pub(super) async fn pull_from(
        &self,
        by_former: BTreeMap<Partition, Vec<MessageId>>,
    ) -> Result<InFlight, StoreError> {
        let mut in_flight = InFlight::new();
        for (former, ids) in by_former {
            for some in ids.chunks(MOVED_AT_ONCE) {
                let mut left = some.to_vec();
                while !left.is_empty() {
                    let carried = self.carry(&former, &left).await?;
                    left.clear();
                    for (id, carried) in carried {
                        match carried {
                            Carried::InFlight(due) => drop(in_flight.insert(id, due)),
                            Carried::Left => left.push(id),
                            Carried::Moved | Carried::Absent | Carried::Conflict => {}
                        }
                    }
                }
            }
        }
        Ok(in_flight)
    }

    /// Moves `ids` from a former partition to the new ones that they belong to.
    pub async fn carry(
        &self,
        former: &Partition,
        ids: &[MessageId],
    ) -> Result<BTreeMap<MessageId, Carried>, StoreError> {
        let from = self.any_keys(former);
        let partitions = self.route(&former.route)?.settings.partitions;
        let mut by_new: BTreeMap<Partition, Vec<&MessageId>> = BTreeMap::new();
        for id in ids {
            by_new.entry(former.among(partitions, id)).or_default().push(id);
        }
        let mut all_carried = BTreeMap::new();
        for (partition, ids) in by_new {
            let to = self.keys(&partition)?;
            let mut all = vec![to.route.as_str()];
            for keys in [&from, to] {
                all.extend(keys.of_messages(&[&keys.remembered, &keys.records, &keys.bytes, &keys.schedules]));
                all.extend(keys.of_groups());
            }
            if self.route(&former.route)?.settings.forwards {
                all.extend([&*from.outbox, &to.outbox]);
            }
            let mut call = script::MOVE.keys(&all).arg(&to.wake).arg(self.layout(&partition)?).arg(MAX_CALL_BYTES);
            for id in &ids {
                call = call.arg(id.as_str());
            }
            let reply: Vec<Value> = call.run(&self.servers).await.map_err(unless_closed)?;
            let mut reply = Reply::from(reply);
            for id in ids {
                let (status, due) = (reply.text()?, reply.millis()?);
                let carried = match status.as_str() {
                    "moved" => Carried::Moved,
                    "absent" => Carried::Absent,
                    "left" => Carried::Left,
                    "in_flight" => Carried::InFlight(due),
                    "conflict" => Carried::Conflict,
                    _ => return Err(unexpected("a status that is known", None)),
                };
                all_carried.insert(id.clone(), carried);
            }
        }
        Ok(all_carried)
    }
}
