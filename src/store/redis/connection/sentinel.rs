//! The master that sentinels name. For each new link, the sentinels are asked in turn, and the server that they name
//! must report the role master: a sentinel that was restarted, or cut off from the others, can name an old one.
//!
//! Sentinels also publish changes of the master. Such a message only triggers the next question, which a lost message
//! delays.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::{StreamExt, future::join_all};
use parking_lot::Mutex;
use redis::{Client, ConnectionInfo, Value, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep, timeout};

use super::{
    ANSWER_TIMEOUT, NO_LINK, RedisEndpoint, ServerAddress, classify, client, link::open, mastership::Mastership,
};
use crate::store::StoreError;

/// Time between two questions to a sentinel without a message of a change, because messages can get lost.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);
/// Pause before the next try to subscribe to a sentinel.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The channels of changes: of sentinels that follow a fail-over, and of the sentinel that leads it. The leader
/// publishes when a replica has become the master, before the other replicas follow that master.
const CHANGES: [&str; 2] = ["+switch-master", "+promoted-slave"];

/// The sentinels of one master.
pub struct Sentinels {
    /// At least one, each with its address for error texts.
    all: Vec<(String, Client)>,
    /// The master's name, as in `sentinel monitor`.
    name: String,
    /// Credentials and TLS of the master; its address is replaced.
    master: ConnectionInfo,
    /// Index of the sentinel that is asked first.
    next: AtomicUsize,
    found: Mutex<Option<ServerAddress>>,
}

impl Sentinels {
    /// `master`: its credentials and TLS; the address in it is not used. `name` as in `sentinel monitor`.
    ///
    /// # Errors
    /// If there is no sentinel, or a URL or a TLS file cannot be used.
    pub fn new(sentinels: &[RedisEndpoint], name: &str, master: &RedisEndpoint) -> Result<Self, String> {
        let all = sentinels
            .iter()
            .map(|one| Ok((one.url.to_string(), client(one).map_err(|error| format!("sentinel: {error}"))?)))
            .collect::<Result<Vec<_>, String>>()?;
        if all.is_empty() {
            return Err("sentinel: no url".into());
        }
        let master = client(master)?.get_connection_info().clone();
        Ok(Self { all, name: name.to_owned(), master, next: AtomicUsize::new(0), found: Mutex::default() })
    }

    /// The master that was found last.
    pub fn found(&self) -> Option<ServerAddress> {
        self.found.lock().clone()
    }

    /// The answers of the sentinels, in their order.
    pub async fn answers(&self) -> Vec<Result<ServerAddress, StoreError>> {
        join_all(self.all.iter().map(|(shown, client)| self.ask(shown, client))).await
    }

    /// The first server that a sentinel names and that is a master. An attempt takes at most `ANSWER_TIMEOUT` for each
    /// sentinel, and for its server at most `longest` or `ANSWER_TIMEOUT`, whichever is shorter.
    ///
    /// # Errors
    /// The last error of a named server; without one, the last error of a sentinel.
    pub async fn master(
        &self,
        mastership: &Mastership,
        longest: Duration,
    ) -> Result<(Client, MultiplexedConnection), StoreError> {
        let mut refused: Vec<(ServerAddress, StoreError)> = Vec::new();
        let mut failure = None;
        for _ in &self.all {
            // Advanced before the answer: if this caller gives up, the next one asks another sentinel.
            let place = self.next.fetch_add(1, Ordering::Relaxed) % self.all.len();
            let (shown, client) = &self.all[place];
            let address = match self.ask(shown, client).await {
                Ok(address) => address,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            // Several sentinels can name the same server.
            if refused.iter().any(|(other, _)| *other == address) {
                continue;
            }
            match self.open_master(&address, longest.min(ANSWER_TIMEOUT)).await {
                Ok(opened) => {
                    self.next.store(place, Ordering::Relaxed);
                    self.note(address, mastership);
                    return Ok(opened);
                }
                Err(error) => refused.push((address, error)),
            }
        }
        let of_refused = |(address, error): &(ServerAddress, StoreError)| unreachable(format!("{address}: {error}"));
        let none = || unreachable("no sentinel".into());
        Err(refused.last().map(of_refused).or(failure).unwrap_or_else(none))
    }

    /// Asks for the master when a sentinel publishes a change, and every `REVIEW_INTERVAL`. Never returns.
    pub async fn follow(&self, mastership: &Mastership) {
        // All sentinels are followed: the leader of a fail-over publishes its end, other sentinels learn of the new
        // master a second earlier.
        let places = 0..self.all.len();
        join_all(places.map(async |place| {
            loop {
                self.follow_one(place, mastership).await;
                sleep(RETRY_INTERVAL).await;
            }
        }))
        .await;
    }

    /// Follows a sentinel until it does not answer.
    async fn follow_one(&self, place: usize, mastership: &Mastership) {
        let (shown, client) = &self.all[place];
        let subscribe = async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe(&CHANGES).await?;
            Ok::<_, redis::RedisError>(subscription.into_on_message())
        };
        let mut messages = timeout(ANSWER_TIMEOUT, subscribe).await.ok().and_then(Result::ok);
        loop {
            let Ok(named) = self.ask(shown, client).await else { return };
            if let Some(found) = self.found()
                && found != named
                && self.is_outvoted(&found, &named).await
            {
                self.next.store(place, Ordering::Relaxed);
                // The next command gets an error too.
                let _ = self.master(mastership, ANSWER_TIMEOUT).await;
            }
            let Some(messages) = &mut messages else {
                // The subscription failed: the sentinel is only asked.
                return sleep(REVIEW_INTERVAL).await;
            };
            if let Ok(None) = timeout(REVIEW_INTERVAL, messages.next()).await {
                return;
            }
        }
    }

    /// Whether more sentinels name `other` than `found`: a sentinel that is cut off with the old master keeps naming
    /// it.
    async fn is_outvoted(&self, found: &ServerAddress, other: &ServerAddress) -> bool {
        let answers = self.answers().await;
        let count = |one: &ServerAddress| answers.iter().flatten().filter(|named| *named == one).count();
        count(other) > count(found)
    }

    async fn ask(&self, shown: &str, client: &Client) -> Result<ServerAddress, StoreError> {
        let ask = async {
            let mut link = open(client, ANSWER_TIMEOUT).await.map_err(|error| error.to_string())?;
            let mut question = redis::cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
            let answer: Option<(String, u16)> =
                question.query_async(&mut link).await.map_err(|error| classify(&error).to_string())?;
            let (host, port) = answer.ok_or_else(|| format!("it knows no primary `{}`", self.name.escape_debug()))?;
            Ok(ServerAddress { host, port })
        };
        let answer = timeout(ANSWER_TIMEOUT, ask).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer in {ANSWER_TIMEOUT:?}")));
        answer.map_err(|text: String| unreachable(format!("sentinel {shown}: {text}")))
    }

    /// Opens a link to the server at `address`, which must report the role master.
    async fn open_master(
        &self,
        address: &ServerAddress,
        longest: Duration,
    ) -> Result<(Client, MultiplexedConnection), StoreError> {
        let client = address.client(&self.master).map_err(|error| classify(&error))?;
        let open_and_ask = async {
            let mut link = open(&client, longest).await?;
            let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut link).await.map_err(|error| classify(&error))?;
            match role.into_iter().next().map(redis::from_redis_value::<String>) {
                Some(Ok(role)) if role == "master" => Ok(link),
                Some(Ok(role)) => Err(unreachable(format!("the sentinels name it, but its role is {role}"))),
                _ => Err(StoreError::Unavailable { kind: "reply", text: "a role that is none".into() }),
            }
        };
        let opened = timeout(longest, open_and_ask).await;
        let link = opened.unwrap_or_else(|_| Err(unreachable(format!("no answer in {longest:?}"))))?;
        Ok((client, link))
    }

    /// Stores the address of the master, and ends links to another one.
    fn note(&self, address: ServerAddress, mastership: &Mastership) {
        let mut found = self.found.lock();
        match &*found {
            Some(known) if *known == address => return,
            Some(known) => {
                tracing::warn!(primary = %address, before = %known, "the sentinels name another redis primary");
                mastership.moved(Instant::now());
            }
            None => tracing::info!(primary = %address, "the sentinels name the redis primary"),
        }
        *found = Some(address);
    }
}

fn unreachable(text: String) -> StoreError {
    StoreError::Unavailable { kind: NO_LINK, text }
}
