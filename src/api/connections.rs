//! Bounds on connections, in total and per address; selects the connection to close when a bound is reached.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum number of connections of the main listener, if the process can open enough files: some 16 KiB each while
/// idle.
const MAX_CONNECTIONS: usize = 4096;
/// Further connections for /livez and /readyz alone. Each serves one request, so 64 are enough for many orchestrators.
const RESERVED: usize = 64;
/// Maximum number of connections of a listener for probes.
const MAX_PROBES: usize = 128;
/// Divisor of file counts: reserved connections get this part of half of the files that the process can open, a
/// listener for probes this part of all.
const RESERVED_SHARE: usize = 16;
/// Idle connections that are compared to find the longest idle one. An approximation is enough: comparing all of them
/// for each new connection would cost too much.
const COMPARED: usize = 64;
/// After a connection is closed for another one, replies end their connections for this time. It is longer than the
/// client of the closed connection needs to reconnect.
const SCARCE: Duration = Duration::from_secs(1);
/// The limit of open files if the system sets none: the usual default.
const USUAL_OPEN_FILES: usize = 1024;

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    pub connections: usize,
    /// Maximum for one IPv4 address, or one IPv6 network of 64 bits.
    pub per_address: usize,
    /// Connections for probes alone, in addition to `connections`.
    pub reserved: usize,
}

impl ConnectionLimits {
    /// The bounds take half of the files that this process can open, including reserved and closing connections. The
    /// other half is for Redis and the sinks. Without `per_address`, one address is allowed half of the connections.
    pub fn of_process(per_address: Option<usize>) -> Self {
        Self::of(open_files(), per_address)
    }

    fn of(open_files: usize, per_address: Option<usize>) -> Self {
        let half = open_files / 2;
        let reserved = (half / RESERVED_SHARE).clamp(1, RESERVED);
        let connections = half.saturating_sub(2 * reserved).clamp(1, MAX_CONNECTIONS);
        Self { connections, per_address: per_address.unwrap_or(connections.div_ceil(2)), reserved }
    }

    /// The bounds of a listener for probes alone.
    pub fn of_probes() -> Self {
        let connections = (open_files() / RESERVED_SHARE).clamp(2, MAX_PROBES);
        Self { connections, per_address: connections / 2, reserved: 0 }
    }
}

/// The address of the caller; a request extension, which is missing with a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// Number of files that this process can open.
fn open_files() -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
    limit.unwrap_or(USUAL_OPEN_FILES)
}

/// The connection slots of one listener.
pub struct Slots {
    limits: ConnectionLimits,
    taken: Mutex<UsedSlots>,
    /// Counts completed requests, to order connections by their last use.
    uses: Arc<AtomicU64>,
}

#[derive(Default)]
struct UsedSlots {
    next: u64,
    holders: BTreeMap<u64, Holder>,
    /// Slots that are neither reserved nor closing, in total and by peer.
    usual: usize,
    by_peer: HashMap<IpAddr, usize>,
    /// Reserved slots that are not closing.
    reserved: usize,
    /// The latest time at which an idle connection was closed for another one.
    latest_eviction: Option<Instant>,
}

struct Holder {
    peer: Option<IpAddr>,
    reserved: bool,
    activity: Arc<Activity>,
    evicted: CancellationToken,
}

/// The activity of a connection.
#[derive(Default)]
pub struct Activity {
    /// Requests in progress, their replies included.
    requests: AtomicUsize,
    last_use: AtomicU64,
    uses: Arc<AtomicU64>,
}

impl Activity {
    /// Registers a request, until the guard is dropped.
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

/// A request in progress.
pub struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection's slot; freed on drop.
pub struct Slot {
    slots: Arc<Slots>,
    number: u64,
    /// `None` for a Unix socket.
    pub peer: Option<IpAddr>,
    /// For probes alone.
    pub reserved: bool,
    pub activity: Arc<Activity>,
    /// Notified when the connection must close for another one.
    pub evicted: CancellationToken,
}

impl Slots {
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default(), uses: Arc::default() })
    }

    /// Maximum number of open connections, including closing ones. A closing connection ends shortly.
    pub fn most(&self) -> usize {
        self.limits.connections + 2 * self.limits.reserved.max(1)
    }

    /// Whether more than three quarters are taken.
    pub fn is_crowded(&self) -> bool {
        self.taken().usual > self.limits.connections - self.limits.connections / 4
    }

    /// Takes a slot. `peer`: `None` for a Unix socket. When this peer has no free slot, its longest idle connection is
    /// closed. When no slot is free in total, the longest idle connection of the address with the most connections is
    /// closed. When all are busy, a reserved slot is taken, and the oldest reserved connection is closed if all
    /// reserved slots are taken.
    ///
    /// `None` when no slot is available.
    pub fn enter(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<Slot> {
        let address = peer;
        let peer = peer.map(network);
        let mut taken = self.taken();
        let own = peer.and_then(|peer| taken.by_peer.get(&peer)).copied().unwrap_or(0);
        let has_place = if peer.is_some() && own >= self.limits.per_address {
            taken.evict_idle(|holder| holder.peer == peer)
        } else {
            taken.usual < self.limits.connections || taken.evict_of_largest_crowd()
        };
        if !has_place && self.limits.reserved == 0 {
            return None;
        }
        Some(self.occupy(taken, address, !has_place))
    }

    /// Takes a reserved slot; closes the oldest reserved connection if all are taken.
    pub fn enter_reserved(self: &Arc<Self>, peer: Option<IpAddr>) -> Slot {
        self.occupy(self.taken(), peer, true)
    }

    fn occupy(self: &Arc<Self>, mut taken: MutexGuard<'_, UsedSlots>, address: Option<IpAddr>, reserved: bool) -> Slot {
        if reserved && taken.reserved >= self.limits.reserved.max(1) {
            let oldest = taken.holders.iter().find(|(_, holder)| holder.reserved).map(|(number, _)| *number);
            taken.evict(oldest);
        }
        let peer = address.map(network);
        let (activity, evicted) =
            (Activity { uses: self.uses.clone(), ..Activity::default() }, CancellationToken::new());
        activity.touch();
        let activity = Arc::new(activity);
        let number = taken.next;
        taken.next += 1;
        let holder = Holder { peer, reserved, activity: activity.clone(), evicted: evicted.clone() };
        taken.count(&holder, 1);
        taken.holders.insert(number, holder);
        Slot { slots: self.clone(), number, peer: address, reserved, activity, evicted }
    }

    fn taken(&self) -> MutexGuard<'_, UsedSlots> {
        self.taken.lock()
    }
}

impl UsedSlots {
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

    /// Closes an idle connection of the address with the most connections, or any idle one if that address has none.
    /// Returns whether a connection was closed.
    fn evict_of_largest_crowd(&mut self) -> bool {
        let largest = self.by_peer.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
        largest.is_some_and(|_| self.evict_idle(|holder| holder.peer == largest)) || self.evict_idle(|_| true)
    }

    /// Closes the longest idle of the first `COMPARED` idle connections. Returns whether a connection was closed.
    fn evict_idle(&mut self, among: impl Fn(&Holder) -> bool) -> bool {
        let idle =
            self.holders.iter().filter(|(_, holder)| !holder.reserved && !holder.activity.is_busy() && among(holder));
        let first = idle.take(COMPARED).min_by_key(|(_, holder)| holder.activity.last_use.load(Ordering::Relaxed));
        let number = first.map(|(number, _)| *number);
        let is_found = self.evict(number);
        if is_found {
            self.latest_eviction = Some(Instant::now());
        }
        is_found
    }

    fn evict(&mut self, number: Option<u64>) -> bool {
        let evicted = number.and_then(|number| self.remove(number));
        evicted.inspect(|holder| holder.evicted.cancel()).is_some()
    }

    /// Frees a slot. `None` when an eviction freed it before.
    fn remove(&mut self, number: u64) -> Option<Holder> {
        let holder = self.holders.remove(&number)?;
        self.count(&holder, -1);
        Some(holder)
    }
}

impl Slot {
    /// Whether the connection closes after a reply with `Connection: close`. While idle connections are closed for
    /// others, an idle one might be closed just after its next request was sent. The client would not know whether that
    /// request was handled.
    pub fn ends_with_reply(&self) -> bool {
        let is_scarce = || self.slots.taken().latest_eviction.is_some_and(|at| at.elapsed() < SCARCE);
        self.reserved || self.evicted.is_cancelled() || is_scarce()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.taken().remove(self.number);
    }
}

/// An IPv6 peer as its /64 network, because one host usually controls a whole /64.
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

    const LIMITS: ConnectionLimits = ConnectionLimits { connections: 4, per_address: 3, reserved: 2 };

    fn enter(slots: &Arc<Slots>, peer: &str) -> Slot {
        slots.enter(Some(peer.parse().unwrap())).unwrap()
    }

    #[test]
    fn one_address_has_its_share_and_its_longest_idle_connection_leaves_first() {
        let slots = Slots::new(LIMITS);
        let held: Vec<Slot> = (0..3).map(|_| enter(&slots, "10.0.0.1")).collect();
        drop(held[0].activity.begin());
        let fourth = enter(&slots, "10.0.0.1");
        assert!(!fourth.reserved);
        assert_eq!(held.iter().map(|place| place.evicted.is_cancelled()).collect::<Vec<_>>(), [false, true, false]);
        assert!(!enter(&slots, "10.0.0.2").reserved, "another has what is left");
    }

    #[test]
    fn who_is_busy_stays_and_probes_have_the_reserved_places() {
        let slots = Slots::new(LIMITS);
        let held: Vec<Slot> = (0..3).map(|_| enter(&slots, "10.0.0.1")).collect();
        let busy: Vec<Busy> = held.iter().map(|place| place.activity.begin()).collect();
        let reserved: Vec<Slot> = (0..3).map(|_| enter(&slots, "10.0.0.1")).collect();
        assert!(reserved.iter().all(|place| place.reserved));
        assert!(reserved[0].evicted.is_cancelled() && !reserved[1].evicted.is_cancelled(), "the latest stay");
        assert!(held.iter().all(|place| !place.evicted.is_cancelled()));
        drop(busy);
        assert!(!enter(&slots, "10.0.0.1").reserved, "one is idle again");
    }

    #[test]
    fn where_all_places_are_taken_the_largest_crowd_makes_room() {
        let slots = Slots::new(LIMITS);
        let quiet = enter(&slots, "10.0.0.1");
        let crowd: Vec<Slot> = (0..3).map(|_| enter(&slots, "10.0.0.2")).collect();
        let new = enter(&slots, "10.0.0.3");
        assert!(!new.reserved && !quiet.evicted.is_cancelled() && crowd[0].evicted.is_cancelled());
        drop((quiet, crowd, new));
        let taken = slots.taken();
        assert_eq!((taken.usual, taken.reserved, taken.by_peer.len(), taken.holders.len()), (0, 0, 0, 0));
    }

    #[test]
    fn one_network_of_ipv6_is_one_address_and_sockets_without_one_have_no_share() {
        assert_eq!(network("2001:db8::1".parse().unwrap()), network("2001:db8::ffff:1".parse().unwrap()));
        assert_ne!(network("2001:db8::1".parse().unwrap()), network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), "10.0.0.1".parse::<IpAddr>().unwrap());
        let slots = Slots::new(LIMITS);
        let local: Vec<Slot> = (0..4).map(|_| slots.enter(None).unwrap()).collect();
        assert!(local.iter().all(|place| !place.reserved && !place.evicted.is_cancelled()));
    }

    #[test]
    fn the_limit_of_open_files_is_the_soft_one() {
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let soft: usize = line.split_whitespace().next().unwrap().parse().unwrap();
        let expected = soft / 2 - 2 * (soft / 2 / RESERVED_SHARE).min(RESERVED);
        assert_eq!(ConnectionLimits::of_process(None).connections, expected.min(MAX_CONNECTIONS));
    }

    #[test]
    fn connections_have_half_of_the_files_at_most_reserved_and_closing_ones_included() {
        for files in [70, 256, 1024, 4096, 65_536, 1_048_576] {
            let limits = ConnectionLimits::of(files, None);
            assert!(Slots::new(limits).most() <= files / 2, "{files}: {limits:?}");
            assert!(limits.reserved >= 2 && limits.connections >= files.min(8192) / 4, "{files}: {limits:?}");
        }
    }
}
