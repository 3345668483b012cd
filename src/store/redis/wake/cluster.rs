//! Wake-ups on a cluster: one connection to each primary subscribes to the channels of its slots.
//!
//! A subscription ends with its connection. If a slot is moved, the server ends the subscription to its channel with a
//! message. An idle connection repeats the subscription to one channel at a time. This checks that the connection is
//! alive and that the server still has the slot.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    iter,
    sync::Arc,
};

use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{
    super::connection::{Cluster, ServerAddress, Upstream, classify, is_denied, is_of_cluster, slot_of},
    signals::{
        ANSWER_TIMEOUT, PING_INTERVAL, RESUBSCRIBE_INTERVAL, SignalTable, Signals, are_same, notify, set_listening,
    },
};

/// The subscriptions on all primaries.
pub struct ShardListeners<'a> {
    cluster: Arc<Cluster>,
    signals: &'a SignalTable,
    /// Counts the subscriptions made so far.
    subscriptions: watch::Sender<u64>,
}

/// The subscription on one primary.
struct ShardListener {
    cluster: Arc<Cluster>,
    address: Arc<ServerAddress>,
    signals: Signals,
    subscriptions: watch::Sender<u64>,
}

impl<'a> ShardListeners<'a> {
    pub fn new(cluster: Arc<Cluster>, signals: &'a SignalTable, subscriptions: watch::Sender<u64>) -> Self {
        Self { cluster, signals, subscriptions }
    }

    /// Never returns; drop the future to end the subscriptions.
    pub async fn run(self) {
        let (mut maps, mut changed) = (self.cluster.maps(), self.signals.changed());
        let mut tasks = JoinSet::new();
        let mut running: BTreeMap<Arc<ServerAddress>, (Signals, AbortHandle)> = BTreeMap::new();
        loop {
            let mut wanted: BTreeMap<Arc<ServerAddress>, Signals> = BTreeMap::new();
            let map = maps.borrow_and_update().clone();
            changed.mark_unchanged();
            let current = self.signals.current().own;
            for (channel, signals) in &current {
                match map.owner(slot_of(channel.as_bytes())) {
                    Some(owner) => {
                        wanted.entry(owner.clone()).or_default().insert(channel.clone(), signals.clone());
                    }
                    None => set_listening(iter::once(signals), false),
                }
            }
            running.retain(|address, (subscribed, task)| {
                let stays = wanted.get(address).is_some_and(|signals| are_same(signals, subscribed));
                if !stays {
                    task.abort();
                }
                stays
            });
            for (address, signals) in wanted {
                let Entry::Vacant(place) = running.entry(address) else { continue };
                // Until the subscription is active, wake-ups are lost.
                set_listening(signals.values(), false);
                let subscribed = signals.clone();
                let (cluster, subscriptions) = (self.cluster.clone(), self.subscriptions.clone());
                let listener = ShardListener { cluster, address: place.key().clone(), signals, subscriptions };
                place.insert((subscribed, tasks.spawn(listener.run())));
            }
            // Removes aborted tasks; the others never end.
            while tasks.try_join_next().is_some() {}
            // Cannot fail: the cluster and the listener hold the senders.
            tokio::select! {
                _ = maps.changed() => {}
                _ = changed.changed() => {}
            }
        }
    }
}

impl ShardListener {
    async fn run(self) {
        let mut logged = false;
        loop {
            let end = match self.cluster.upstream(&self.address) {
                Ok(upstream) => self.listen(&upstream, &mut logged).await,
                Err(error) => ShardEnd::Lost(error.to_string()),
            };
            if let ShardEnd::Lost(error) = end
                && !logged
            {
                tracing::warn!(server = %self.address, error, "wake-ups do not arrive: queues there are polled every second");
                logged = true;
            }
            set_listening(self.signals.values(), false);
            self.cluster.suspect();
            sleep(RESUBSCRIBE_INTERVAL).await;
        }
    }

    /// Runs until the subscription ends, and returns why. `logged`: whether the last end was logged, and no
    /// subscription was active since.
    async fn listen(&self, upstream: &Upstream, logged: &mut bool) -> ShardEnd {
        let begun = Instant::now();
        let (mut link, mut pushes) = match timeout(ANSWER_TIMEOUT, self.subscribe(upstream)).await {
            Ok(Ok(parts)) => parts,
            Ok(Err(error)) => return ShardEnd::Lost(error),
            Err(_) => return no_answer(),
        };
        *logged = false;
        set_listening(self.signals.values(), true);
        self.subscriptions.send_modify(|count| *count += 1);
        let mut again = self.signals.keys().cycle();
        loop {
            let push = tokio::select! {
                push = timeout(PING_INTERVAL, pushes.recv()) => push,
                () = upstream.outdated(begun) => return ShardEnd::Moved,
            };
            match push {
                Ok(Some(PushInfo { kind: PushKind::SMessage | PushKind::Message, data })) => {
                    if let [Value::BulkString(channel), Value::BulkString(text)] = &data[..] {
                        let channel = String::from_utf8_lossy(channel);
                        // Programs that call produce.lua publish to the channel name of a single server.
                        let signals = self.signals.get(&*channel).or_else(|| self.signals.get(&*of_slot(&channel)));
                        notify(signals.into_iter(), text);
                    }
                }
                Ok(Some(PushInfo { kind: PushKind::SUnsubscribe, .. })) => return ShardEnd::Moved,
                Ok(Some(PushInfo { kind: PushKind::Disconnection, .. }) | None) => {
                    return ShardEnd::Lost("the connection was lost".into());
                }
                Ok(Some(_)) => {}
                Err(_) => {
                    let Some(channel) = again.next() else { return ShardEnd::Moved };
                    let mut command = redis::cmd("SSUBSCRIBE");
                    let answer = timeout(ANSWER_TIMEOUT, command.arg(channel).query_async::<Value>(&mut link)).await;
                    match answer {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) if is_denied(&classify(&error)) => {
                            if !matches!(timeout(ANSWER_TIMEOUT, ping(&mut link)).await, Ok(Ok(()))) {
                                return ShardEnd::Lost("the connection was lost".into());
                            }
                        }
                        Ok(Err(error)) if is_of_cluster(&classify(&error)) => return ShardEnd::Moved,
                        Ok(Err(error)) => return ShardEnd::Lost(classify(&error).to_string()),
                        Err(_) => return no_answer(),
                    }
                }
            }
        }
    }

    async fn subscribe(
        &self,
        upstream: &Upstream,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), String> {
        let client = upstream.client(ANSWER_TIMEOUT).await.map_err(|error| error.to_string())?;
        let info = client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client =
            redis::Client::open(info.clone().set_redis_settings(settings)).map_err(|error| error.to_string())?;
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_push_sender(sender)
            .set_response_timeout(None)
            .set_connection_timeout(Some(ANSWER_TIMEOUT));
        let text = |error: redis::RedisError| classify(&error).to_string();
        let mut link = client.get_multiplexed_async_connection_with_config(&config).await.map_err(text)?;
        let mut all = redis::pipe();
        for channel in self.signals.keys() {
            // Programs that call produce.lua publish to these ordinary channels.
            all.cmd("SUBSCRIBE").arg(of_server(channel));
        }
        all.query_async::<Value>(&mut link).await.map_err(text)?;
        let command = |name: &str| {
            let mut all = redis::pipe();
            for channel in self.signals.keys() {
                all.cmd(name).arg(channel);
            }
            all
        };
        match command("SSUBSCRIBE").query_async::<Value>(&mut link).await {
            Err(error) if is_denied(&classify(&error)) => {
                // Redis before 7 has ordinary channels only.
                command("SUBSCRIBE").query_async::<Value>(&mut link).await.map_err(text)?;
            }
            result => drop(result.map_err(text)?),
        }
        Ok((link, pushes))
    }
}

/// Why a subscription ended or failed.
enum ShardEnd {
    /// A slot is on another server, or may be. Not logged here: the keeper logs a lost primary.
    Moved,
    Lost(String),
}

fn no_answer() -> ShardEnd {
    ShardEnd::Lost(format!("no answer in {ANSWER_TIMEOUT:?}"))
}

async fn ping(link: &mut MultiplexedConnection) -> redis::RedisResult<()> {
    redis::cmd("PING").exec_async(link).await
}

/// The channel name of a single server, for a sharded channel.
fn of_server(channel: &str) -> String {
    format!("{}:wake", channel.trim_end_matches(":swake"))
}

/// The sharded channel, for the channel name of a single server.
fn of_slot(channel: &str) -> String {
    format!("{}:swake", channel.trim_end_matches(":wake"))
}
