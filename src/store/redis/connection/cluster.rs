//! The primaries of a cluster, as its servers name them. All known servers are asked at once, and the map that most of
//! them return is used: a server that is cut off keeps returning its old map.
//!
//! The map can be outdated: a server answers a call for a slot of another server with the address of that server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use parking_lot::Mutex;
use redis::{ConnectionInfo, Value};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{
    ANSWER_TIMEOUT, Connection, NO_LINK, RedisEndpoint, ServerAddress, Upstream, classify, client, slots::SlotMap,
};
use crate::store::StoreError;

/// Minimum time between two rounds of questions to the servers.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two rounds without a sign of a change; a round is one command to each known server.
const REVIEW_INTERVAL: Duration = Duration::from_secs(30);

/// Shared by all connections to the same cluster.
pub struct Cluster {
    /// At least one.
    seeds: Vec<ServerAddress>,
    /// Credentials and TLS of all servers; the address is replaced.
    any: ConnectionInfo,
    map: watch::Sender<Arc<SlotMap>>,
    members: Mutex<BTreeMap<ServerAddress, Member>>,
    last: AsyncMutex<LastAnswers>,
    /// Notified when the map may be wrong.
    suspected: Notify,
}

/// The last answers of the servers.
#[derive(Default)]
struct LastAnswers {
    /// When the servers were asked, and the result.
    asked: Option<(Instant, Result<(), StoreError>)>,
    /// The primaries that the servers named. A redirection can be newer.
    primaries: BTreeSet<Arc<ServerAddress>>,
}

#[derive(Clone)]
struct Member {
    upstream: Arc<Upstream>,
    /// For questions about the cluster.
    questions: Arc<Connection>,
}

impl Cluster {
    /// `servers`: some servers of the cluster, all with the same credentials and TLS files.
    ///
    /// # Errors
    /// If there is no server, or a URL or a TLS file cannot be used.
    pub fn new(servers: &[RedisEndpoint]) -> Result<Self, String> {
        let mut infos = Vec::new();
        for server in servers {
            infos.push(client(server)?.get_connection_info().clone());
        }
        let seeds: Vec<_> = infos.iter().filter_map(ServerAddress::of).collect();
        let any =
            infos.into_iter().next().filter(|_| seeds.len() == servers.len()).ok_or("cluster: no url of a server")?;
        Ok(Self {
            seeds,
            any,
            map: watch::Sender::default(),
            members: Mutex::default(),
            last: AsyncMutex::default(),
            suspected: Notify::new(),
        })
    }

    /// The map that was found last, and each later one.
    pub fn maps(&self) -> watch::Receiver<Arc<SlotMap>> {
        self.map.subscribe()
    }

    pub fn map(&self) -> Arc<SlotMap> {
        self.map.borrow().clone()
    }

    /// The primary of a slot. Asks the servers if it is unknown.
    ///
    /// # Errors
    /// `Unavailable`: no server answers, or the slot has no primary.
    pub async fn owner(&self, slot: u16) -> Result<Arc<ServerAddress>, StoreError> {
        if let Some(owner) = self.map().owner(slot) {
            return Ok(owner.clone());
        }
        self.refresh(Instant::now()).await?;
        let none = || StoreError::Unavailable { kind: "clusterdown", text: format!("no server has hash slot {slot}") };
        self.map().owner(slot).cloned().ok_or_else(none)
    }

    /// The upstream of a server; each call returns the same one.
    ///
    /// # Errors
    /// `Unavailable`: the address cannot be used.
    pub fn upstream(&self, address: &ServerAddress) -> Result<Arc<Upstream>, StoreError> {
        Ok(self.member(address)?.upstream)
    }

    fn member(&self, address: &ServerAddress) -> Result<Member, StoreError> {
        let mut members = self.members.lock();
        if let Some(member) = members.get(address) {
            return Ok(member.clone());
        }
        let client = address.client(&self.any).map_err(|error| classify(&error))?;
        let upstream = Arc::new(Upstream::of_member(client));
        let questions = Arc::new(Connection::to(upstream.clone(), ANSWER_TIMEOUT));
        let member = Member { upstream, questions };
        members.insert(address.clone(), member.clone());
        Ok(member)
    }

    /// A server answered that `owner` has the slot.
    pub fn moved(&self, slot: u16, owner: ServerAddress) {
        self.map.send_if_modified(|map| {
            let is_known = map.owner(slot).is_some_and(|known| **known == owner);
            let changed = if is_known { None } else { map.with(slot, owner) };
            let is_changed = changed.is_some();
            if let Some(changed) = changed {
                *map = Arc::new(changed);
            }
            is_changed
        });
        self.suspect();
    }

    /// Reports that the map may be wrong: `follow` asks for it soon.
    pub fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Whether it was reported since the last call. The report is taken.
    #[cfg(test)]
    pub fn is_suspected(&self) -> bool {
        futures::FutureExt::now_or_never(self.suspected.notified()).is_some()
    }

    /// Asks for the map, unless that was done after `seen`.
    ///
    /// # Errors
    /// `Unavailable`: no server answers.
    pub async fn refresh(&self, seen: Instant) -> Result<(), StoreError> {
        let mut last = self.last.lock().await;
        if let Some((begun, result)) = &last.asked {
            if *begun >= seen {
                return result.clone();
            }
            sleep_until(*begun + MIN_INTERVAL).await;
        }
        let begun = Instant::now();
        let result = self.ask().await.map(|map| self.note(map, &mut last.primaries));
        last.asked = Some((begun, result.clone()));
        result
    }

    /// Asks for the map when it may be wrong, and every `REVIEW_INTERVAL`. Never returns.
    pub async fn follow(&self) {
        loop {
            let _ = timeout(REVIEW_INTERVAL, self.suspected.notified()).await;
            // The next call gets an error too.
            let _ = self.refresh(Instant::now()).await;
        }
    }

    /// The answers of the configured servers, in their order.
    pub async fn answers(&self) -> Vec<Result<SlotMap, StoreError>> {
        join_all(self.seeds.iter().map(|seed| self.ask_one(seed))).await
    }

    /// The map that most servers return: as soon as more than half of the asked servers agree, or when all have
    /// answered.
    async fn ask(&self) -> Result<SlotMap, StoreError> {
        let known = self.map().primaries();
        let mut asked: Vec<&ServerAddress> = known.iter().map(|one| &**one).collect();
        asked.extend(self.seeds.iter().filter(|seed| !known.iter().any(|one| **one == **seed)));
        let mut answers: FuturesUnordered<_> = asked.iter().map(|one| self.ask_one(one)).collect();
        let mut votes: Vec<(SlotMap, usize)> = Vec::new();
        let mut failure = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(map) => match votes.iter_mut().find(|(voted, _)| *voted == map) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((map, 1)),
                },
                Err(error) => failure = Some(error),
            }
            if let Some(place) = votes.iter().position(|(_, count)| *count > asked.len() / 2) {
                return Ok(votes.swap_remove(place).0);
            }
        }
        let none = || StoreError::Unavailable { kind: NO_LINK, text: "no server of the cluster is known".into() };
        votes
            .into_iter()
            .max_by_key(|(_, count)| *count)
            .map(|(map, _)| map)
            .ok_or_else(|| failure.unwrap_or_else(none))
    }

    async fn ask_one(&self, address: &ServerAddress) -> Result<SlotMap, StoreError> {
        let question = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let answer: Value = self.member(address)?.questions.run(&question).await?;
        SlotMap::parse(&answer, &address.host)
    }

    /// Stores the map, and ends calls to servers that are not primaries any more. `named`: the primaries in the
    /// previous answers.
    fn note(&self, map: SlotMap, named: &mut BTreeSet<Arc<ServerAddress>>) {
        let primaries = map.primaries();
        for new in primaries.difference(named) {
            tracing::info!(server = %new, "it is a primary of the redis cluster");
        }
        // The map is stored first, because a call that is ended is repeated at once.
        self.map.send_if_modified(|known| {
            let is_changed = **known != map;
            if is_changed {
                *known = Arc::new(map);
            }
            is_changed
        });
        for gone in named.difference(&primaries) {
            tracing::warn!(server = %gone, "it is no primary of the redis cluster any more");
            if let Ok(upstream) = self.upstream(gone) {
                upstream.depose(Instant::now());
            }
        }
        *named = primaries;
    }
}
