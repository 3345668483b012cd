//! Looking without touching: one message, a listing, the numbers.

use bytes::Bytes;
use redis::Value;

use super::{MAX_BODIES_BYTES, RedisStore, engine::message_keys, keys::PartitionKeys, reply::Reply, script};
use crate::{
    message::{Ended, Ending, MessageId, State, codec},
    store::{Found, Partition, Snapshot, StoreError},
    time::UnixMillis,
};

/// The numbers of one partition.
#[derive(Clone, Copy, Debug)]
pub struct PartitionStats {
    /// Redis' clock, microseconds.
    pub now: u64,
    pub paused: bool,
    pub pending: u64,
    pub due: u64,
    pub unack: u64,
    pub dead: u64,
    pub next_due: Option<UnixMillis>,
    /// Of the bodies in pending and unack.
    pub bytes: u64,
}

/// A message with its place in a listing.
pub struct Listed {
    pub score: u64,
    /// Of its stored body.
    pub bytes: usize,
    pub snapshot: Snapshot,
}

impl RedisStore {
    pub async fn get(&self, partition: &Partition, id: &MessageId) -> Result<Option<Found>, StoreError> {
        let keys = self.keys(partition)?;
        let reply: Option<Vec<Value>> = script::GET
            .keys(&message_keys(keys, &[&keys.remembered]))
            .arg(id.as_str())
            .arg(self.route(&partition.route)?.settings.keep_millis())
            .run(&self.listings)
            .await?;
        let Some(reply) = reply else { return Ok(None) };
        let mut reply = Reply::from(reply);
        let text = reply.text()?;
        let state = match text.as_str() {
            "pending" => State::Pending,
            "unack" => State::Unack,
            other => match Ending::parse(other) {
                Some(ending) => return Ok(Some(Found::Ended(Ended { ending, at: reply.millis()? }))),
                None => State::Dead,
            },
        };
        let score = reply.integer()?;
        let (attempts, error, body) = (reply.count()?, reply.text()?, reply.bytes()?);
        Ok(Some(Found::Live(snapshot(id.clone(), state, score, attempts, error, &body))))
    }

    /// Up to `limit` (1 to 1000) messages behind `after`, fewer when they take more than `max_bytes` (at most
    /// `MAX_BODIES_BYTES`) together, but at least one; and whether more follow.
    pub async fn list(
        &self,
        partition: &Partition,
        state: State,
        limit: usize,
        max_bytes: u64,
        after: Option<&(u64, MessageId)>,
    ) -> Result<(Vec<Listed>, bool), StoreError> {
        let keys = self.keys(partition)?;
        let set = match state {
            State::Pending => &keys.pending,
            State::Unack => &keys.unack,
            State::Dead => &keys.dead,
        };
        let mut call = script::LIST
            .keys(&[set, &keys.messages, &keys.attempts, &keys.errors])
            .arg(limit)
            .arg(max_bytes.min(MAX_BODIES_BYTES));
        if let Some((score, id)) = after {
            call = call.arg(*score).arg(id.as_str());
        }
        let reply: Vec<Value> = call.run(&self.listings).await?;
        let mut reply = Reply::from(reply);
        let more = reply.flag()?;
        let mut listed = Vec::new();
        while !reply.is_done() {
            let (id, score) = (reply.id()?, reply.integer()?);
            let (attempts, error, body) = (reply.count()?, reply.text()?, reply.bytes()?);
            listed.push(Listed {
                score,
                bytes: body.len(),
                snapshot: snapshot(id, state, score, attempts, error, &body),
            });
        }
        Ok((listed, more))
    }

    /// Of any partition, configured or not.
    pub async fn stats(&self, partition: &Partition) -> Result<PartitionStats, StoreError> {
        let keys = PartitionKeys::new(&self.prefix, &partition.route, partition.number);
        let reply: Vec<Value> = script::STATS
            .keys(&[&keys.pending, &keys.unack, &keys.dead, &keys.paused, &keys.bytes])
            .run(&self.connection)
            .await?;
        let mut reply = Reply::from(reply);
        Ok(PartitionStats {
            now: reply.integer()?,
            paused: reply.flag()?,
            pending: reply.integer()?,
            due: reply.integer()?,
            unack: reply.integer()?,
            dead: reply.integer()?,
            next_due: reply.optional()?.and_then(UnixMillis::new),
            bytes: reply.integer()?,
        })
    }
}

fn snapshot(id: MessageId, state: State, score: u64, attempts: u32, error: String, body: &Bytes) -> Snapshot {
    let message = codec::decode(body);
    let deliver_at = match (&message, state) {
        (Ok(message), State::Unack | State::Dead) => message.due,
        _ => UnixMillis::new(score).unwrap_or_default(),
    };
    Snapshot {
        id,
        state,
        deliver_at,
        attempts,
        last_error: (!error.is_empty()).then_some(error),
        message: message.map_err(|error| error.to_string()),
    }
}
