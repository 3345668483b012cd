//! Who has a connection: so many in all, so many of one address, and who has to leave when there are more.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

/// Connections of the main listener at once, where the process may open files enough: some 16 KiB each while idle.
const MAX_CONNECTIONS: usize = 4096;
/// Further ones for /livez and /readyz alone: each is for one request, so probes of any number of orchestrators pass.
const RESERVED: usize = 64;
/// Connections of a listener for probes.
const MAX_PROBES: usize = 128;
/// Idle connections that are compared to find the one that is idle longest: in a crowd one more or less matters little,
/// and a look at all of them for each that comes would be a load.
const COMPARED: usize = 64;
/// Files that a process may open when its limit cannot be read: the usual one.
const USUAL_OPEN_FILES: usize = 1024;

/// Connections at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
    /// Of one IPv4 address, or one IPv6 network of 64 bits.
    pub per_address: usize,
    /// Beyond these two, for probes alone.
    pub reserved: usize,
}

impl Limits {
    /// Half of the files that this process may open: the other half is for Redis, the sinks and their surprises.
    /// Without `per_address`, one address has half of the connections.
    pub fn of_process(per_address: Option<usize>) -> Self {
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let connections = (open_files(&limits).unwrap_or(USUAL_OPEN_FILES) / 2).clamp(1, MAX_CONNECTIONS);
        Self { connections, per_address: per_address.unwrap_or(connections.div_ceil(2)), reserved: RESERVED }
    }

    /// Of a listener for probes alone.
    pub fn of_probes() -> Self {
        Self { connections: MAX_PROBES, per_address: MAX_PROBES / 2, reserved: 0 }
    }
}

/// The soft limit in the text of `/proc/self/limits`; `unlimited` reads as unknown.
fn open_files(limits: &str) -> Option<usize> {
    limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok())
}

/// The places of one listener.
pub struct Places {
    limits: Limits,
    taken: Mutex<Taken>,
    /// Counts the ends of requests: which connection was used last.
    uses: Arc<AtomicU64>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    holders: BTreeMap<u64, Holder>,
    /// Holders that are neither reserved nor leaving, in all and by peer.
    usual: usize,
    by_peer: HashMap<IpAddr, usize>,
    /// Reserved ones that are not leaving.
    reserved: usize,
}

struct Holder {
    peer: Option<IpAddr>,
    reserved: bool,
    leaving: bool,
    activity: Arc<Activity>,
    evicted: CancellationToken,
}

/// What a connection is doing.
#[derive(Default)]
pub struct Activity {
    /// Requests under way, their answers included.
    requests: AtomicUsize,
    last_use: AtomicU64,
    uses: Arc<AtomicU64>,
}

impl Activity {
    /// A request has begun; it ends when this is dropped.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.requests.fetch_add(1, Ordering::SeqCst);
        Busy(self.clone())
    }

    pub fn is_busy(&self) -> bool {
        self.requests.load(Ordering::SeqCst) > 0
    }

    fn touch(&self) {
        self.last_use.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A request under way.
pub struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection's place; free again when it is dropped.
pub struct Place {
    places: Arc<Places>,
    number: u64,
    /// For probes alone.
    pub reserved: bool,
    pub activity: Arc<Activity>,
    /// When it is to end because another needs the place.
    pub evicted: CancellationToken,
}

impl Places {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default(), uses: Arc::default() })
    }

    /// Connections that may be open at once, those included that are leaving: each of these is gone in a moment.
    pub fn most(&self) -> usize {
        self.limits.connections + 2 * self.limits.reserved.max(1)
    }

    /// Whether three quarters are taken.
    pub fn is_crowded(&self) -> bool {
        self.taken().usual > self.limits.connections - self.limits.connections / 4
    }

    /// `peer`: `None` where peers have no address. Where no place is left, in all or for this peer, the connection that
    /// waits longest for a request has to leave, of the address with the most. Where all are busy, there are the
    /// reserved places, and of these the latest stay.
    ///
    /// `None` when there is none at all.
    pub fn enter(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<Place> {
        let peer = peer.map(network);
        let mut taken = self.taken();
        let own = peer.and_then(|peer| taken.by_peer.get(&peer)).copied().unwrap_or(0);
        let has_place = if peer.is_some() && own >= self.limits.per_address {
            taken.evict_idle(|holder| holder.peer == peer)
        } else {
            taken.usual < self.limits.connections || taken.evict_of_largest_crowd()
        };
        if !has_place {
            if self.limits.reserved == 0 {
                return None;
            }
            if taken.reserved >= self.limits.reserved {
                taken.evict_reserved();
            }
        }
        let (activity, evicted) =
            (Activity { uses: self.uses.clone(), ..Activity::default() }, CancellationToken::new());
        activity.touch();
        let activity = Arc::new(activity);
        let number = taken.next;
        taken.next += 1;
        let holder =
            Holder { peer, reserved: !has_place, leaving: false, activity: activity.clone(), evicted: evicted.clone() };
        taken.count(&holder, 1);
        taken.holders.insert(number, holder);
        Some(Place { places: self.clone(), number, reserved: !has_place, activity, evicted })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn count(&mut self, holder: &Holder, change: isize) {
        let add = |count: &mut usize| *count = count.checked_add_signed(change).expect("as many leave as came");
        if holder.reserved {
            add(&mut self.reserved);
            return;
        }
        add(&mut self.usual);
        if let Some(peer) = holder.peer {
            let count = self.by_peer.entry(peer).or_default();
            add(count);
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }

    /// Of the address with the most connections, if it has an idle one, else any. Whether there was one.
    fn evict_of_largest_crowd(&mut self) -> bool {
        let largest = self.by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
        largest.is_some_and(|_| self.evict_idle(|holder| holder.peer == largest)) || self.evict_idle(|_| true)
    }

    /// The longest idle of the oldest few. Whether there was one.
    fn evict_idle(&mut self, among: impl Fn(&Holder) -> bool) -> bool {
        let idle = self
            .holders
            .iter()
            .filter(|(_, holder)| !holder.leaving && !holder.reserved && !holder.activity.is_busy() && among(holder));
        let first = idle.take(COMPARED).min_by_key(|(_, holder)| holder.activity.last_use.load(Ordering::Relaxed));
        let Some(number) = first.map(|(number, _)| *number) else { return false };
        self.evict(number);
        true
    }

    fn evict_reserved(&mut self) {
        let first = self.holders.iter().find(|(_, holder)| holder.reserved && !holder.leaving);
        if let Some(number) = first.map(|(number, _)| *number) {
            self.evict(number);
        }
    }

    fn evict(&mut self, number: u64) {
        let Some(mut holder) = self.holders.remove(&number) else { return };
        self.count(&holder, -1);
        holder.leaving = true;
        holder.evicted.cancel();
        self.holders.insert(number, holder);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(holder) = taken.holders.remove(&self.number)
            && !holder.leaving
        {
            taken.count(&holder, -1);
        }
    }
}

/// A host has a whole network of IPv6 addresses to itself.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { connections: 4, per_address: 3, reserved: 2 };

    fn enter(places: &Arc<Places>, peer: &str) -> Place {
        places.enter(Some(peer.parse().unwrap())).unwrap()
    }

    #[test]
    fn one_address_has_its_share_and_its_longest_idle_connection_leaves_first() {
        let places = Places::new(LIMITS);
        let held: Vec<Place> = (0..3).map(|_| enter(&places, "10.0.0.1")).collect();
        drop(held[0].activity.begin());
        let fourth = enter(&places, "10.0.0.1");
        assert!(!fourth.reserved);
        assert_eq!(held.iter().map(|place| place.evicted.is_cancelled()).collect::<Vec<_>>(), [false, true, false]);
        assert!(!enter(&places, "10.0.0.2").reserved, "another has what is left");
    }

    #[test]
    fn who_is_busy_stays_and_probes_have_the_reserved_places() {
        let places = Places::new(LIMITS);
        let held: Vec<Place> = (0..3).map(|_| enter(&places, "10.0.0.1")).collect();
        let busy: Vec<Busy> = held.iter().map(|place| place.activity.begin()).collect();
        let reserved: Vec<Place> = (0..3).map(|_| enter(&places, "10.0.0.1")).collect();
        assert!(reserved.iter().all(|place| place.reserved));
        assert!(reserved[0].evicted.is_cancelled() && !reserved[1].evicted.is_cancelled(), "the latest stay");
        assert!(held.iter().all(|place| !place.evicted.is_cancelled()));
        drop(busy);
        assert!(!enter(&places, "10.0.0.1").reserved, "one is idle again");
    }

    #[test]
    fn where_all_places_are_taken_the_largest_crowd_makes_room() {
        let places = Places::new(LIMITS);
        let quiet = enter(&places, "10.0.0.1");
        let crowd: Vec<Place> = (0..3).map(|_| enter(&places, "10.0.0.2")).collect();
        let new = enter(&places, "10.0.0.3");
        assert!(!new.reserved && !quiet.evicted.is_cancelled() && crowd[0].evicted.is_cancelled());
        drop((quiet, crowd, new));
        let taken = places.taken();
        assert_eq!((taken.usual, taken.reserved, taken.by_peer.len(), taken.holders.len()), (0, 0, 0, 0));
    }

    #[test]
    fn one_network_of_ipv6_is_one_address_and_sockets_without_one_have_no_share() {
        assert_eq!(network("2001:db8::1".parse().unwrap()), network("2001:db8::ffff:1".parse().unwrap()));
        assert_ne!(network("2001:db8::1".parse().unwrap()), network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), "10.0.0.1".parse::<IpAddr>().unwrap());
        let places = Places::new(LIMITS);
        let local: Vec<Place> = (0..4).map(|_| places.enter(None).unwrap()).collect();
        assert!(local.iter().all(|place| !place.reserved && !place.evicted.is_cancelled()));
    }

    #[test]
    fn the_limit_of_open_files_is_the_soft_one() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             15000                15000                processes\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(open_files(limits), Some(1024));
        assert_eq!(open_files(""), None);
        assert!(open_files(&std::fs::read_to_string("/proc/self/limits").unwrap()).is_some());
    }
}
