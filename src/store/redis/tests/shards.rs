//! Wake-ups on a cluster: one subscription on each primary, for its slots.

use futures::FutureExt;

use super::{
    super::{
        connection::{
            Cluster, ServerAddress, Topology,
            peers::{Members, Peer, map, until},
            slot_of,
        },
        keys::PartitionKeys,
    },
    *,
};
use crate::{log_lines::LogLines, store::WakeReason};

/// Three partitions, one on each server.
struct Shards {
    members: Members,
    cluster: Arc<Cluster>,
    listener: Arc<WakeListener>,
    signals: Vec<Arc<WakeSignal>>,
    running: tokio::task::JoinHandle<()>,
}

const PREFIX: &str = "p";

fn partition_at(index: u16) -> Partition {
    Partition { route: "r".into(), index, count: 3 }
}

/// The sharded channel of a partition.
fn channel(index: u16) -> String {
    PartitionKeys::on_cluster(PREFIX, &partition_at(index)).wake
}

/// The reason of the next notification.
async fn reason(signal: &WakeSignal) -> WakeReason {
    tokio::time::timeout(Duration::from_secs(10), signal.notified()).await.expect("a notification")
}

/// Whether there is no notification at present.
async fn is_quiet(signal: &WakeSignal) -> bool {
    tokio::time::timeout(Duration::from_millis(100), signal.notified()).await.is_err()
}

/// Returns how many connections got the message.
fn publish(peer: &Peer, command: &str, channel: &str) -> i64 {
    let command = [command, channel, "zadd"].map(|word| word.as_bytes().to_vec());
    let Reply::Int(count) = peer.server.execute(&command) else { panic!("a count") };
    count
}

impl Shards {
    /// `prepare` is called before the listener runs.
    async fn start(prepare: impl FnOnce(&Members)) -> Self {
        let members = Members::start::<3>().await;
        prepare(&members);
        let cluster = members.cluster();
        cluster.refresh(tokio::time::Instant::now()).await.unwrap();
        let listener = Arc::new(WakeListener::new(Topology::Cluster(cluster.clone())));
        let signals = (0..3).map(|index| listener.signal(PREFIX, &partition_at(index))).collect();
        let running = listener.clone();
        let running = tokio::spawn(async move { running.run().await });
        let shards = Self { members, cluster, listener, signals, running };
        for index in 1..3 {
            shards.move_to(index, usize::from(index));
        }
        shards
    }

    fn move_to(&self, index: u16, place: usize) {
        let owner: &ServerAddress = self.members.address(place);
        self.cluster.moved(slot_of(channel(index).as_bytes()), owner.clone());
    }

    fn peer(&self, place: usize) -> &Peer {
        &self.members.peers[place]
    }

    fn listens(&self, index: u16, place: usize) -> bool {
        self.signals[usize::from(index)].is_listening() && publish(self.peer(place), "SPUBLISH", &channel(index)) == 1
    }

    async fn listening(&self) {
        until("all listen", || (0..3).all(|index| self.listens(index, usize::from(index)))).await;
        for signal in &self.signals {
            while !is_quiet(signal).await {}
        }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        self.running.abort();
    }
}

#[tokio::test]
async fn a_signal_hears_of_its_partition_on_the_server_of_its_slot_by_both_channels() {
    let shards = Shards::start(|_| ()).await;
    shards.listening().await;
    for index in 0..3 {
        let (peer, signals) = (shards.peer(usize::from(index)), &shards.signals);
        for (command, channel) in [
            ("SPUBLISH", channel(index)),
            // Programs that call produce.lua publish there.
            ("PUBLISH", PartitionKeys::new(PREFIX, &partition_at(index)).wake),
        ] {
            assert_eq!(publish(peer, command, &channel), 1, "{channel}");
            assert_eq!(reason(&signals[usize::from(index)]).await, WakeReason::HeadEarlier, "{channel}");
        }
    }
    for signal in &shards.signals {
        assert!(is_quiet(signal).await);
    }
}

#[tokio::test]
async fn a_moved_slot_is_subscribed_to_on_its_new_server_and_others_stay() {
    let shards = Shards::start(|_| ()).await;
    shards.listening().await;
    let mut subscriptions = shards.listener.subscriptions();
    let before = *subscriptions.borrow_and_update();
    let of_third = shards.peer(2).count("SSUBSCRIBE");
    shards.move_to(0, 1);
    until("it listens there", || shards.listens(0, 1) && shards.listens(1, 1)).await;
    until("it is left", || publish(shards.peer(0), "SPUBLISH", &channel(0)) == 0).await;
    assert!(shards.listens(2, 2));
    assert_eq!((*subscriptions.borrow(), shards.peer(2).count("SSUBSCRIBE")), (before + 1, of_third));
    assert_eq!(reason(&shards.signals[0]).await, WakeReason::Subscription);

    // Another instance of the same partition.
    reason(&shards.signals[2]).await;
    let other = Arc::<WakeSignal>::default();
    shards.listener.also_notify(PREFIX, &partition_at(2), &other);
    until("both listen", || other.is_listening() && shards.listens(2, 2)).await;
    for signal in [&other, &shards.signals[2]] {
        reason(signal).await;
    }
    publish(shards.peer(2), "SPUBLISH", &channel(2));
    for signal in [&other, &shards.signals[2]] {
        assert_eq!(reason(signal).await, WakeReason::HeadEarlier);
    }
    shards.listener.forget(&[other, shards.signals[2].clone()]);
    until("it is left", || publish(shards.peer(2), "SPUBLISH", &channel(2)) == 0).await;
}

#[tokio::test]
async fn a_server_without_sharded_channels_is_subscribed_to_by_ordinary_ones() {
    let shards = Shards::start(|members| {
        for (place, error) in [(0, "ERR unknown command 'SSUBSCRIBE'"), (1, "MOVED 1 127.0.0.1:1")] {
            let named = members.named[place].clone();
            members.peers[place].replies(move |command| {
                if command.starts_with("SSUBSCRIBE") { Some(Reply::error(error)) } else { map(&named, command) }
            });
        }
    })
    .await;
    until("it listens", || shards.signals[0].is_listening()).await;
    until("the refusal came", || shards.peer(1).count("SSUBSCRIBE") > 0).await;
    reason(&shards.signals[0]).await;
    assert_eq!(publish(shards.peer(0), "PUBLISH", &channel(0)), 1);
    assert_eq!(reason(&shards.signals[0]).await, WakeReason::HeadEarlier);
    // The other server has them, and not this slot.
    assert!(!shards.signals[1].is_listening());
    assert_eq!(publish(shards.peer(1), "PUBLISH", &channel(1)), 0);
}

#[tokio::test]
async fn a_lost_subscription_of_one_server_is_known_and_made_again() {
    let shards = Shards::start(|_| ()).await;
    shards.listening().await;
    let of_others = || [0, 2].map(|place| shards.peer(place).count("SSUBSCRIBE"));
    let before = of_others();
    let (log, _collecting) = LogLines::collect();
    shards.peer(1).links.end_all();
    until("it is lost", || !shards.signals[1].is_listening()).await;
    let lines = log.take();
    assert!(matches!(&lines[..], [line] if line.contains("wake-ups do not arrive")), "{lines:?}");
    assert!(shards.signals[0].is_listening() && shards.signals[2].is_listening());
    assert_eq!(reason(&shards.signals[1]).await, WakeReason::Subscription);
    until("it is made again", || shards.listens(1, 1)).await;
    assert_eq!(of_others(), before);
}

/// Pauses the clock, which moves by `advance` only until this is dropped: tokio does not advance it while a blocking task
/// runs.
fn pause_clock() -> std::sync::mpsc::Sender<()> {
    let (running, ended) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || ended.recv().is_err());
    tokio::time::pause();
    running
}

/// Waits until it holds, on a paused clock.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    const MAX_TICKS: u32 = 5000;
    let mut ticks = 0;
    while !holds() {
        ticks += 1;
        assert!(ticks < MAX_TICKS, "not yet: {what}");
        tick().await;
    }
}

impl Shards {
    /// Waits until the first subscription has read all answers so far, on a paused clock: a message comes behind them.
    async fn has_read(&self) {
        let is_notified = || self.signals[0].notified().now_or_never().is_some();
        while is_notified() {}
        assert_eq!(publish(self.peer(0), "PUBLISH", &PartitionKeys::new(PREFIX, &partition_at(0)).wake), 1);
        eventually("a message", is_notified).await;
    }
}

/// Lets bytes pass through sockets. Servers of the model execute a command, and answer it, at the next millisecond.
async fn tick() {
    tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(2))).await.unwrap();
    advance(Duration::from_millis(1)).await;
}

#[tokio::test]
async fn an_idle_subscription_is_repeated_and_the_answer_tells_whether_the_server_has_the_slot() {
    let shards = Shards::start(|_| ()).await;
    shards.listening().await;
    let (peer, signal) = (shards.peer(0), &shards.signals[0]);
    let answer_with = |error: Option<&'static str>| {
        let named = shards.members.named[0].clone();
        peer.replies(move |command| match error {
            Some(error) if command.starts_with("SSUBSCRIBE") => Some(Reply::error(error)),
            _ => map(&named, command),
        });
    };
    let (log, _collecting) = LogLines::collect();
    let _paused = pause_clock();
    let idle = async || {
        let before = peer.count("SSUBSCRIBE");
        advance(Duration::from_secs(9)).await;
        eventually("it is repeated", || peer.count("SSUBSCRIBE") > before).await;
    };
    // Twice, because a subscription that ended would be made again instead.
    for _ in 0..2 {
        idle().await;
        shards.has_read().await;
    }
    assert!(signal.is_listening());
    // Before Redis 7 there are ordinary channels only.
    answer_with(Some("ERR unknown command 'SSUBSCRIBE'"));
    for pings in 1..3 {
        idle().await;
        eventually("the connection is checked", || peer.count("PING") == pings).await;
        shards.has_read().await;
    }
    assert!(signal.is_listening());
    assert_eq!(log.take(), [""; 0]);

    for (error, is_logged) in [("MOVED 1 127.0.0.1:1", false), ("ERR internal", true)] {
        answer_with(Some(error));
        idle().await;
        eventually("it has ended", || !signal.is_listening()).await;
        let lines = log.take();
        assert_eq!(lines.len(), usize::from(is_logged), "{error}: {lines:?}");
        answer_with(None);
        advance(Duration::from_secs(1)).await;
        eventually("it is made again", || signal.is_listening()).await;
    }
}
