//! A Redis Cluster with nodes that fail, change their roles, come and go.

mod apart;
mod node;
mod slots;

use std::time::Duration;

use futures::future::{join_all, try_join_all};
use redis::RedisResult;
use tokio::time::{Instant, sleep};

use self::{
    apart::Apart,
    node::{Node, Seen},
};
use super::{Authority, RedisServer};

const SLOTS: usize = 16_384;
const PRIMARIES: usize = 3;
/// Maximum time until the nodes know each other, name another primary, or are in step.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Three primaries, each with a replica. All are killed on drop.
///
/// A node has a place: a primary of the beginning at 0 to 2, its replica three behind it, and an added primary and its
/// replica at 6 and 7.
pub struct ClusterRedis {
    nodes: Vec<Node>,
    /// Address of all servers, without the port.
    address: &'static str,
    /// If servers can be cut off.
    apart: Option<Apart>,
}

/// How an operator has a replica take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailOver {
    /// The primary stops, and hands over what it has.
    Agreed,
    /// The primary is not asked.
    Forced,
}

impl ClusterRedis {
    pub async fn start() -> Self {
        Self::start_with(None, &[], &[]).await
    }

    /// The servers can be cut off. They have these settings, as on their command line, and environment variables.
    pub async fn start_apart(settings: &[&str], environment: &[(String, String)]) -> Self {
        let apart = Apart::start();
        let environment = apart.environment(environment);
        Self { apart: Some(apart), ..Self::start_with(None, settings, &environment).await }
    }

    /// The servers take TLS alone, with certificates of `authority`, and are named by their host to clients.
    pub async fn start_encrypted(authority: &Authority) -> Self {
        Self::start_with(Some(authority), &[], &[]).await
    }

    async fn start_with(authority: Option<&Authority>, settings: &[&str], environment: &[(String, String)]) -> Self {
        let nodes = join_all((0..2 * PRIMARIES).map(|_| Node::start(authority, settings, environment))).await;
        let address = if authority.is_some() { "rediss://localhost" } else { "redis://127.0.0.1" };
        let cluster = Self { nodes, address, apart: None };
        cluster.form().await.expect("a new node does as it is asked");
        for (place, replica) in cluster.nodes.iter().enumerate().skip(PRIMARIES) {
            cluster.follow(replica, &cluster.nodes[place - PRIMARIES]).await;
        }
        cluster.is_well().await;
        cluster
    }

    /// Slots for the first ones, and all know each other.
    async fn form(&self) -> RedisResult<()> {
        let alone = self.nodes.iter().enumerate().map(|(place, node)| async move {
            if place < PRIMARIES {
                let (first, end) = (place * SLOTS / PRIMARIES, (place + 1) * SLOTS / PRIMARIES);
                node.ask::<()>(&["ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()]).await?;
            }
            // With equal epochs the nodes would first have to agree on one for each.
            node.ask::<()>(&["SET-CONFIG-EPOCH", &(place + 1).to_string()]).await
        });
        try_join_all(alone).await?;
        for (place, node) in self.nodes.iter().enumerate() {
            try_join_all(self.nodes[..place].iter().map(|other| node.meet(other))).await?;
        }
        self.all_known().await;
        Ok(())
    }

    /// The setting `redis.cluster`: a primary, and the replica of another one.
    pub fn setting(&self) -> String {
        let urls = [0, PRIMARIES + 1].map(|place| format!("'{}:{}'", self.address, self.nodes[place].server.port()));
        format!("cluster: {{ urls: [{}] }}", urls.join(", "))
    }

    /// All that there are, replicas too.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub fn server(&self, place: usize) -> &RedisServer {
        &self.nodes[place].server
    }

    /// The slot of a key, or of a hash tag with its braces.
    pub async fn slot(&self, key: &str) -> u16 {
        self.running().next().expect("one runs").ask(&["KEYSLOT", key]).await.expect("a slot")
    }

    /// The place of a slot's primary, once all running nodes name the same one.
    pub async fn primary_of(&self, slot: u16) -> usize {
        self.until("they name the same primary", async || self.named(slot).await).await
    }

    /// Waits until all running nodes name another primary of the slot than that at `before`, and returns its place.
    pub async fn switched(&self, slot: u16, before: usize) -> usize {
        let other = async || self.named(slot).await.filter(|place| *place != before);
        self.until("they name another primary", other).await
    }

    /// The places of the primaries that have slots, once all running nodes name the same ones.
    pub async fn primaries(&self) -> Vec<usize> {
        let places = |seen: &[Seen]| {
            let mut places: Vec<_> =
                seen.iter().filter(|one| !one.slots.is_empty()).filter_map(|one| self.place(one.port)).collect();
            places.sort_unstable();
            places
        };
        self.until("they name the same primaries", async || self.agreed(places).await).await
    }

    /// The place of a replica of the primary at `place`.
    pub async fn replica_of(&self, place: usize) -> usize {
        let id = &self.nodes[place].id;
        let replica = |seen: &[Seen]| seen.iter().find(|one| one.follows == *id).and_then(|one| self.place(one.port));
        self.until("it has a replica", async || self.agreed(replica).await.flatten()).await
    }

    /// Subscribers to the wake-ups of the partition with this hash tag, on all running nodes.
    pub async fn subscribers(&self, tag: &str) -> usize {
        let counts = self.running().map(|node| async move {
            let counted = redis::pipe()
                .cmd("PUBSUB")
                .arg(&["SHARDNUMSUB", &format!("{tag}:swake")])
                .cmd("PUBSUB")
                .arg(&["NUMSUB", &format!("{tag}:wake")])
                .query_async::<((String, usize), (String, usize))>(&mut node.server.connection().await)
                .await;
            let ((_, of_slot), (_, of_all)) = counted.expect("it runs");
            of_slot + of_all
        });
        join_all(counts).await.iter().sum()
    }

    /// As `kill -9` does it.
    pub fn kill(&mut self, place: usize) {
        self.nodes[place].server.kill();
        self.nodes[place].is_frozen = false;
    }

    /// On the same ports and data.
    pub async fn restart(&mut self, place: usize) {
        self.nodes[place].server.restart().await;
    }

    /// SIGSTOP.
    pub fn freeze(&mut self, place: usize) {
        self.nodes[place].server.freeze();
        self.nodes[place].is_frozen = true;
    }

    pub fn resume(&mut self, place: usize) {
        self.nodes[place].server.resume();
        self.nodes[place].is_frozen = false;
    }

    /// It loses its connections to the other servers, and clients reach it.
    pub fn cut_off(&mut self, place: usize) {
        self.apart.as_ref().expect("of `start_apart`").set(self.nodes[place].ports());
        self.nodes[place].is_cut_off = true;
    }

    /// Ends what `cut_off` began.
    pub fn rejoin(&mut self, place: usize) {
        self.apart.as_ref().expect("of `start_apart`").set([0; 2]);
        self.nodes[place].is_cut_off = false;
    }

    /// `CLUSTER FAILOVER` on the replica at `place`.
    pub async fn fail_over(&self, place: usize, how: FailOver) {
        assert!(self.try_fail_over(place, how).await, "a fail-over begins");
    }

    /// `false`: the replica refuses, because its primary is down on a busy machine.
    pub async fn try_fail_over(&self, place: usize, how: FailOver) -> bool {
        let words: &[&str] = match how {
            FailOver::Agreed => &["FAILOVER"],
            FailOver::Forced => &["FAILOVER", "FORCE"],
        };
        self.nodes[place].ask::<()>(words).await.is_ok()
    }

    /// Waits until the replica at `place` is promoted. Returns the number of unsettled messages that it has at that
    /// time, of the partitions with these hash tags.
    pub async fn promoted_has(&self, place: usize, tags: &[String]) -> usize {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            if let Some(count) = self.nodes[place].server.unsettled(tags).await {
                return count;
            }
            assert!(Instant::now() < deadline, "it is not promoted");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until all running nodes know each other's roles, serve all slots, and all running replicas are in step.
    pub async fn is_well(&self) {
        let roles = |seen: &[Seen]| {
            let mut roles: Vec<_> = self
                .running()
                .map(|node| seen.iter().find(|one| one.id == node.id).map(|one| (one.is_primary, one.follows.clone())))
                .collect();
            roles.extend(seen.iter().filter(|one| !one.slots.is_empty()).map(|_| None));
            roles
        };
        self.until("all slots are served, and replicas are in step", async || {
            self.agreed(roles).await?;
            let seen = self.running().next().expect("one runs").nodes().await?;
            let is_running = |one: &&Seen| self.place(one.port).is_some_and(|place| self.nodes[place].answers());
            for node in self.running() {
                let replicas = seen.iter().filter(is_running).filter(|one| one.follows == node.id).count();
                if !node.serves(replicas).await {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.answers())
    }

    fn place(&self, port: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.server.port() == port)
    }

    async fn named(&self, slot: u16) -> Option<usize> {
        let primary = |seen: &[Seen]| seen.iter().find(|one| one.has(slot)).and_then(|one| self.place(one.port));
        self.agreed(primary).await.flatten()
    }

    /// The value that `look` finds in the view of each running node. `None`: they differ, or a node does not answer.
    async fn agreed<T: PartialEq>(&self, look: impl Fn(&[Seen]) -> T) -> Option<T> {
        let views = join_all(self.running().map(Node::nodes)).await;
        let mut found = None;
        for view in views {
            let looked = look(&view?);
            if found.as_ref().is_some_and(|found| *found != looked) {
                return None;
            }
            found = Some(looked);
        }
        found
    }

    /// Waits until each node knows all others.
    async fn all_known(&self) {
        let count = async || self.agreed(<[Seen]>::len).await.filter(|count| *count == self.nodes.len());
        self.until("they know each other", count).await;
    }

    async fn follow(&self, replica: &Node, primary: &Node) {
        let asked = replica.ask::<()>(&["REPLICATE", &primary.id]).await;
        asked.expect("an empty node follows");
    }

    async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            if Instant::now() >= deadline {
                let views = join_all(self.running().map(Node::nodes)).await;
                let views = views.iter().map(|view| format!("{view:?}")).collect::<Vec<_>>().join("\n");
                panic!("nodes, not within {MAX_WAIT:?}: {what}:\n{views}");
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}
