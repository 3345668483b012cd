//! Slots move between primaries, also to one that is added and removed again.

use std::{ops::RangeInclusive, time::Duration};

use redis::{Cmd, RedisResult, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep};

use super::{ClusterRedis, PRIMARIES, Seen, node::Node};
use crate::support::RedisServer;

/// Maximum time of one MIGRATE, in milliseconds.
const MIGRATION: u32 = 5000;
/// Keys in one MIGRATE. A partition has about ten: they move together.
const KEYS: u32 = 100;

/// The ways to the primaries while slots move to one of them.
struct Move<'a> {
    to: &'a Node,
    link: MultiplexedConnection,
    others: Vec<(&'a Node, MultiplexedConnection)>,
}

impl ClusterRedis {
    /// Moves slots with their keys to the primary at `to`, in sequence, as `redis-cli --cluster reshard` does it.
    pub async fn move_slots(&self, slots: RangeInclusive<u16>, to: usize) {
        let to = &self.nodes[to];
        let seen = to.nodes().await.expect("it runs");
        let mut others = Vec::new();
        for node in self.running().filter(|node| node.id != to.id) {
            if seen.iter().any(|one| one.id == node.id && one.is_primary) {
                others.push((node, node.server.connection().await));
            }
        }
        let mut way = Move { to, link: to.server.connection().await, others };
        for slot in slots {
            let from = seen.iter().find(|one| one.has(slot)).expect("a slot of a primary");
            if from.id != to.id {
                let moved = way.move_slot(&slot.to_string(), from).await;
                moved.unwrap_or_else(|error| panic!("slot {slot}: {error}"));
            }
        }
        self.primaries().await;
    }

    /// Adds a primary without slots, and a replica of it; returns the place of the primary.
    pub async fn add_primary(&mut self) -> usize {
        let (primary, replica) = tokio::join!(Node::start(None, &[], &[]), Node::start(None, &[], &[]));
        self.nodes.extend([primary, replica]);
        let [old @ .., primary, replica] = &self.nodes[..] else { unreachable!("two were added") };
        for new in [primary, replica] {
            for node in old.iter().filter(|node| node.answers()).chain([primary]).filter(|node| node.id != new.id) {
                new.meet(node).await.expect("it runs");
            }
        }
        self.all_known().await;
        self.follow(replica, primary).await;
        self.is_well().await;
        2 * PRIMARIES
    }

    /// Removes the added primary, which no longer has slots, and its replica. The other nodes forget both, and both
    /// forget the others. Both run until they are dropped.
    pub async fn remove_added(&mut self) -> Vec<RedisServer> {
        let removed = self.nodes.split_off(2 * PRIMARIES);
        for gone in &removed {
            for node in self.running() {
                node.ask::<()>(&["FORGET", &gone.id]).await.expect("it runs, and does not follow that one");
            }
        }
        for gone in &removed {
            gone.ask::<()>(&["RESET", "SOFT"]).await.expect("a node without keys");
        }
        self.all_known().await;
        removed.into_iter().map(|node| node.server).collect()
    }
}

impl Move<'_> {
    async fn move_slot(&mut self, slot: &str, from: &Seen) -> RedisResult<()> {
        let set = |words: &[&str]| {
            let mut command = redis::cmd("CLUSTER");
            command.arg("SETSLOT").arg(slot).arg(words);
            command
        };
        let (_, source) = self.others.iter_mut().find(|(node, _)| node.id == from.id).expect("it runs");
        tell(&set(&["IMPORTING", &from.id]), &mut self.link).await?;
        tell(&set(&["MIGRATING", &self.to.id]), source).await?;
        loop {
            let mut listing = redis::cmd("CLUSTER");
            let keys: Vec<Vec<u8>> = listing.arg("GETKEYSINSLOT").arg(slot).arg(KEYS).query_async(source).await?;
            if keys.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(self.to.server.port()).arg("").arg(0).arg(MIGRATION).arg("KEYS").arg(keys);
            migrate.exec_async(source).await?;
        }
        // The new owner comes first; in the other order the slot has no node for a moment.
        let owner = set(&["NODE", &self.to.id]);
        tell(&owner, &mut self.link).await?;
        match tell(&owner, source).await {
            // It had no other slot, and has seen already that it has none: it follows the new primary.
            // Valkey 8 may see it while the command waits for its replicas.
            Err(error) if error.detail().is_some_and(|detail| detail.contains("only with masters")) => {}
            Err(error) if error.code() == Some("UNBLOCKED") => {}
            told => told?,
        }
        for (_, other) in self.others.iter_mut().filter(|(node, _)| node.id != from.id) {
            tell(&owner, other).await?;
        }
        Ok(())
    }
}

/// Valkey refuses it while no replica of the server is in step.
async fn tell(command: &Cmd, link: &mut MultiplexedConnection) -> RedisResult<()> {
    let deadline = Instant::now() + Duration::from_millis(MIGRATION.into());
    loop {
        match command.exec_async(link).await {
            Err(error) if error.code() == Some("NOREPLICAS") && Instant::now() < deadline => {
                sleep(Duration::from_millis(20)).await;
            }
            told => return told,
        }
    }
}
