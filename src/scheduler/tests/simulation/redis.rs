//! The Redis store over an in-process model of Redis: the real scripts on the paused clock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use punctual_model::{Counts, Keyspace, LinkFaults, Links, Server, SortedSet};
use tokio::{task::JoinHandle, time::Instant};

use super::{super::sink::StoreClock, changes::group_of};
use crate::store::{
    Partition, WakeSignal,
    redis::{
        RedisStore, RouteSettings, WakeListener,
        connection::{Connection, Topology, Upstream},
    },
};

const PREFIX: &str = "s";

/// The time of the model when a run begins: microseconds since the epoch.
const EPOCH: u64 = 1_700_000_000_000_000;

/// The timeout of a command: below the lease.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A server, and the links of several processes to it.
pub struct SimulatedRedis {
    server: Arc<Server>,
    routes: Vec<RouteSettings>,
    links: Mutex<Vec<Arc<Links>>>,
    faults: Mutex<LinkFaults>,
    /// The latest time that the server's clock has shown.
    latest: AtomicU64,
    /// Ids of accepted messages that a fail-over lost.
    pub lost: Mutex<BTreeSet<String>>,
}

/// The parts of one process: a store, and a subscription to wake-ups.
pub struct Process {
    pub store: Arc<RedisStore>,
    pub listener: Arc<WakeListener>,
    listening: JoinHandle<()>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl StoreClock for SimulatedRedis {
    /// A message is due if it was due at any earlier time of the server's clock.
    fn now(&self) -> u64 {
        let now = self.server.now();
        self.latest.fetch_max(now, Ordering::SeqCst).max(now)
    }
}

impl SimulatedRedis {
    /// Registers the routes.
    pub async fn new(seed: u64, routes: Vec<RouteSettings>) -> Arc<Self> {
        let started = Instant::now();
        let clock = move || EPOCH + u64::try_from(started.elapsed().as_micros()).expect("less than 500,000 years");
        let redis = Arc::new(Self {
            server: Server::new(clock),
            routes,
            links: Mutex::default(),
            faults: Mutex::default(),
            latest: AtomicU64::new(0),
            lost: Mutex::default(),
        });
        redis.process(seed).store.register().await.expect("the routes are registered");
        redis.server.keep_journal();
        redis
    }

    /// Connects another process.
    pub fn process(&self, seed: u64) -> Process {
        let links = Links::new(&self.server, seed);
        links.set_faults(*self.faults.lock());
        self.links.lock().push(links.clone());
        let upstream = Arc::new(Upstream::from(links));
        let connection = Arc::new(Connection::to(upstream.clone(), TIMEOUT));
        let store = Arc::new(RedisStore::new(connection, PREFIX, self.routes.clone()));
        let listener = Arc::new(WakeListener::new(Topology::Single(upstream)));
        let listening = tokio::spawn({
            let listener = listener.clone();
            async move { listener.run().await }
        });
        Process { store, listener, listening }
    }

    pub fn set_faults(&self, faults: LinkFaults) {
        *self.faults.lock() = faults;
        self.links.lock().iter().for_each(|links| links.set_faults(faults));
    }

    pub fn lose_messages(&self, lost: bool) {
        self.server.lose_messages(lost);
    }

    pub fn step_clock(&self, micros: i64) {
        self.now();
        self.server.step_clock(micros);
    }

    /// A replica that misses the last `count` writes becomes the master.
    pub fn fail_over(&self, count: usize) {
        self.links.lock().iter().for_each(|links| links.end_all());
        let (live_before, listed_before) = (self.live(), self.listed());
        self.server.fail_over(count);
        let (live, listed) = (self.live(), self.listed());
        let before = live_before.union(&listed_before);
        self.lost.lock().extend(before.filter(|id| !live.contains(*id) && !listed.contains(*id)).cloned());
    }

    pub fn counts(&self) -> Counts {
        self.server.counts()
    }

    fn live(&self) -> BTreeSet<String> {
        self.server.keys(|keys| {
            let names: Vec<_> =
                keys.names().filter(|name| SETS.iter().any(|set| name.ends_with(set.as_bytes()))).collect();
            let members =
                names.into_iter().flat_map(|name| set(keys, name).iter().map(|(id, _)| text(id)).collect::<Vec<_>>());
            members.collect()
        })
    }

    /// The values of all lists.
    fn listed(&self) -> BTreeSet<String> {
        self.routes.iter().flat_map(|route| self.list(&route.name).into_keys()).collect()
    }

    /// Numbers of (pending, unack, dead).
    pub fn count(&self, partition: &Partition) -> (usize, usize, usize) {
        let len =
            |keys: &Keyspace, key: &[u8]| keys.read::<SortedSet>(key).expect("a sorted set").map_or(0, SortedSet::len);
        let [pending, unack, dead] = self.server.keys(|keys| SETS.map(|name| len(keys, &key(partition, name))));
        (pending, unack, dead)
    }

    pub fn dead(&self, partition: &Partition) -> Vec<String> {
        self.server.keys(|keys| set(keys, &key(partition, ":dead")).iter().map(|(id, _)| text(id)).collect())
    }

    /// How often each value is in a list.
    pub fn list(&self, name: &str) -> BTreeMap<String, u32> {
        let values = self
            .server
            .keys(|keys| keys.read::<VecDeque<Vec<u8>>>(name.as_bytes()).expect("a list").cloned().unwrap_or_default());
        let mut times = BTreeMap::new();
        for value in &values {
            *times.entry(text(value)).or_default() += 1;
        }
        times
    }

    /// Checks that nothing is left of flows without live messages.
    pub fn check_ended_flows(&self, partition: &Partition) {
        self.server.keys(|keys| {
            for name in [":waiting", ":flights", ":gates"] {
                let left: Vec<_> = set(keys, &key(partition, name)).iter().map(|(member, _)| text(member)).collect();
                assert!(left.is_empty(), "{name} of {partition}: {left:?}");
            }
        });
    }

    /// Checks that each live id of a partition is in one set and has a body, and that the values of other keys are about live
    /// ids.
    pub fn check(&self, partition: &Partition) {
        self.server.keys(|keys| {
            let mut places = BTreeMap::new();
            for name in SETS {
                for (id, _) in set(keys, &key(partition, name)).iter() {
                    let other = places.insert(id.clone(), name);
                    assert!(other.is_none(), "{} is in {name} and {other:?} of {partition}", text(id));
                }
            }
            let hash = |name: &str| {
                let key = key(partition, name);
                keys.read::<BTreeMap<Vec<u8>, Vec<u8>>>(&key).expect("a hash").cloned().unwrap_or_default()
            };
            let bodies = hash(":messages");
            assert!(bodies.keys().eq(places.keys()), "bodies and places of {partition}");
            let groups: BTreeMap<_, _> =
                places.keys().filter_map(|id| Some((id.clone(), group_of(&text(id))?.as_bytes().to_vec()))).collect();
            assert_eq!(hash(":groups"), groups, "groups of {partition}");
            let members: BTreeSet<_> =
                set(keys, &key(partition, ":grouped")).iter().map(|(member, _)| text(member)).collect();
            let expected = groups.iter().map(|(id, group)| format!("{}\0{}", text(group), text(id))).collect();
            assert_eq!(members, expected, "members of groups of {partition}");
            for name in [":attempts", ":errors"] {
                assert!(hash(name).keys().all(|id| places.contains_key(id)), "{name} of {partition}");
            }
            let held =
                bodies.iter().filter(|(id, _)| places[*id] != ":dead").map(|(_, body)| body.len()).sum::<usize>();
            let counted =
                keys.read::<Vec<u8>>(&key(partition, ":bytes")).expect("a string").map_or("0".into(), |one| text(one));
            assert_eq!(counted, held.to_string(), "bytes of {partition}");
        });
    }
}

/// The sets in which a live message is.
const SETS: [&str; 3] = [":pending", ":unack", ":dead"];

fn key(partition: &Partition, name: &str) -> Vec<u8> {
    format!("{{{PREFIX}:{partition}}}{name}").into_bytes()
}

fn set(keys: &Keyspace, key: &[u8]) -> SortedSet {
    keys.read::<SortedSet>(key).expect("a sorted set").cloned().unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The signals of the partitions of a route.
pub fn signals(process: &Process, partitions: impl Iterator<Item = Partition>) -> Vec<(Partition, Arc<WakeSignal>)> {
    partitions.map(|partition| (partition.clone(), process.listener.signal(PREFIX, &partition))).collect()
}
