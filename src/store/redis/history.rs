//! The history of a route: what became of its messages.

use redis::Value;

use super::{RedisStore, reply::Reply, script};
use crate::{
    message::{EndedMessage, MessageId, parse_block, parse_end},
    store::{Partition, StoreError},
    time::UnixMillis,
};

/// Ends of a block, as lua/include/history.lua writes them.
const BLOCK: usize = 16;

/// Maximum number of blocks in a reply: some 2 KiB each, at most 24 KiB.
const MAX_BLOCKS: usize = 70;

/// Where a list of ends begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndPlace {
    Latest,
    /// Before the end with this number.
    Before(u64),
    /// With the ends up to this time.
    UpTo(UnixMillis),
}

/// Ends of messages of one partition with their numbers, the latest first.
#[derive(Clone, Debug, Default)]
pub struct EndsPage {
    pub ends: Vec<(u64, EndedMessage)>,
    /// Whether more follow.
    pub more: bool,
}

impl RedisStore {
    /// Whether the route keeps what became of its messages.
    pub fn keeps_history(&self, route: &str) -> bool {
        self.routes.get(route).is_some_and(|route| route.settings.history.is_some())
    }

    /// Up to `limit` ends of `partition`, the latest first; none of a route without a history.
    pub async fn ends(&self, partition: &Partition, mut place: EndPlace, limit: usize) -> Result<EndsPage, StoreError> {
        let keys = self.keys(partition)?;
        let mut page = EndsPage::default();
        let Some((age, _)) = self.route(&partition.route)?.settings.history_shares() else { return Ok(page) };
        loop {
            let text = match place {
                EndPlace::Latest => String::new(),
                EndPlace::Before(number) => number.to_string(),
                EndPlace::UpTo(at) => format!("@{}", at.get()),
            };
            let blocks = ((limit - page.ends.len()) / BLOCK + 2).min(MAX_BLOCKS);
            let call = script::ENDED.keys(&[&keys.history, &keys.ended]).arg(text).arg(blocks);
            let reply: Vec<Value> = call.run(&self.listings).await?;
            let mut reply = Reply::from(reply);
            let (now, first, _) = (reply.integer()?, reply.integer()?, reply.integer()?);
            let mut reached = None;
            while !reply.is_done() {
                let (number, block) = (reply.integer()?, reply.bytes()?);
                reached = Some(number);
                for (number, end) in (number..).zip(parse_block(block)).collect::<Vec<_>>().into_iter().rev() {
                    let is_behind = match place {
                        EndPlace::Latest => false,
                        EndPlace::Before(before) => number >= before,
                        EndPlace::UpTo(at) => end.ended > at,
                    };
                    if is_behind {
                        continue;
                    }
                    if end.ended.get().saturating_add(age) < now {
                        return Ok(page);
                    }
                    if page.ends.len() == limit {
                        page.more = true;
                        return Ok(page);
                    }
                    page.ends.push((number, end));
                }
            }
            match reached {
                Some(number) if number > first => place = EndPlace::Before(number),
                _ => return Ok(page),
            }
        }
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
