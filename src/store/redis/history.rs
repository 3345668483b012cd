//! The history of a route: what became of its messages.

use redis::Value;

use super::{RedisStore, reply::Reply, script};
use crate::{
    message::{EndedMessage, MessageId, parse_block, parse_end},
    store::{Order, Partition, StoreError},
    time::UnixMillis,
};

/// Ends of a block, as lua/include/history.lua writes them.
const BLOCK: usize = 16;

/// Maximum number of blocks in a reply: some 2 KiB each, at most 24 KiB.
const MAX_BLOCKS: usize = 70;

/// Where a list of ends begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndPlace {
    /// The first end in the order of the list.
    Start,
    /// Behind the end with this number.
    Behind(u64),
    /// At the first end with this time, or with one that comes later in the list.
    At(UnixMillis),
}

/// A part of the ends of one partition, in the order of the list.
#[derive(Clone, Debug, Default)]
pub struct EndsPart {
    /// With their numbers.
    pub ends: Vec<(u64, EndedMessage)>,
    /// Time and number of the last end that was read, if others follow it.
    pub reached: Option<(UnixMillis, u64)>,
}

impl RedisStore {
    /// Whether the route keeps what became of its messages.
    pub fn keeps_history(&self, route: &str) -> bool {
        self.routes.get(route).is_some_and(|route| route.settings.history.is_some())
    }

    /// Ends of `partition` from `place` on, some more than `count`; none of a route without a history.
    pub async fn ends(
        &self,
        partition: &Partition,
        order: Order,
        place: EndPlace,
        count: usize,
    ) -> Result<EndsPart, StoreError> {
        let keys = self.keys(partition)?;
        let mut part = EndsPart::default();
        let Some((age, _)) = self.route(&partition.route)?.settings.history_shares() else { return Ok(part) };
        let text = match place {
            EndPlace::Start => String::new(),
            EndPlace::Behind(number) => number.to_string(),
            EndPlace::At(at) => format!("@{}", at.get()),
        };
        let blocks = (count / BLOCK + 2).min(MAX_BLOCKS);
        let direction = match order {
            Order::Ascending => "asc",
            Order::Descending => "desc",
        };
        let call = script::ENDED.keys(&[&keys.history]).arg(direction).arg(text).arg(blocks);
        let reply: Vec<Value> = call.run(&self.listings).await?;
        let mut reply = Reply::from(reply);
        let (now, more) = (reply.integer()?, reply.flag()?);
        while !reply.is_done() {
            let (number, block) = (reply.integer()?, reply.bytes()?);
            let mut ends: Vec<_> = (number..).zip(parse_block(block)).collect();
            if order == Order::Descending {
                ends.reverse();
            }
            for (number, end) in ends {
                let is_before = match (place, order) {
                    (EndPlace::Start, _) => false,
                    (EndPlace::Behind(last), Order::Descending) => number >= last,
                    (EndPlace::Behind(last), Order::Ascending) => number <= last,
                    (EndPlace::At(at), Order::Descending) => end.ended > at,
                    (EndPlace::At(at), Order::Ascending) => end.ended < at,
                };
                part.reached = Some((end.ended, number)).filter(|_| more);
                let is_old = end.ended.get().saturating_add(age) < now;
                if is_old && order == Order::Descending {
                    part.reached = None;
                    return Ok(part);
                }
                if !is_before && !is_old {
                    part.ends.push((number, end));
                }
            }
        }
        Ok(part)
    }

    /// Deletes ends that are too many or too old; all of them if the route has no history. Returns the number that is
    /// kept, and whether more are to be deleted.
    pub async fn trim_history(&self, partition: &Partition) -> Result<(u64, bool), StoreError> {
        let (keys, settings) = (self.keys(partition)?, self.route(&partition.route)?.history_settings());
        let reply: Vec<Value> =
            script::TRIM.keys(&[&keys.history, &keys.ended]).arg(settings).run(&self.servers).await?;
        let mut reply = Reply::from(reply);
        Ok((reply.integer()?, reply.flag()?))
    }
}

/// The ends of an id at the front of a reply of `get`, and the time of the reply. Ends of other ids, and those before
/// `age`, are left out.
pub(super) fn ends_of(
    reply: &mut Reply,
    id: &MessageId,
    age: Option<u64>,
) -> Result<(Vec<EndedMessage>, UnixMillis), StoreError> {
    let (count, now) = (reply.count()?, reply.millis()?);
    let mut ends = Vec::new();
    for _ in 0..count {
        let end = parse_end(reply.bytes()?).filter(|end| end.id == *id);
        ends.extend(end.filter(|end| end.ended.get().saturating_add(age.unwrap_or(0)) >= now.get()));
    }
    Ok((ends, now))
}
