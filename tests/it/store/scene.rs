//! One call of each script on a state where it has something to do, and something to pass by.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use punctual::{
    codec,
    message::{MessageId, Metadata, NewMessage, OnConflict, State, StoredMessage},
    outcome::DeadReason,
    port::{Burial, ClaimMode, ClaimRequest, Lease, Partition, Release, Retry, Store, StoreError, Token, Transfer},
    store::redis::RegistrationError,
    time::{Due, UnixMillis},
};

use super::{
    bench::{Bench, MAX_PAYLOAD, id},
    operation::FAR,
    rows::{PREFIX, Rows, key},
};

pub const ROUTE: &str = "one";
/// Where transfers go, in turn.
pub const LISTS: [&str; 2] = ["list", "list-2"];
/// No lease of the scenes ends before it, in microseconds: the year 2242.
const HELD_UNTIL: u64 = 1 << 53;
/// Dead and pending since then, in milliseconds: long ago.
const LONG_AGO: u64 = 1000;

/// Scene, and the script that it is about.
pub const SCENES: [(&str, &str); 28] = [
    ("ack", "ack"),
    ("bury", "bury"),
    ("cancel pending", "cancel"),
    ("cancel dead", "cancel"),
    ("claim", "claim"),
    ("probe", "claim"),
    ("claim a suspect", "claim"),
    ("get", "get"),
    ("list", "list"),
    ("pause", "pause"),
    ("resume", "pause"),
    ("produce", "produce"),
    ("produce in place of a pending one", "produce"),
    ("produce in place of a dead one", "produce"),
    ("purge all", "purge"),
    ("purge some", "purge"),
    ("recover", "recover"),
    ("redrive all", "redrive"),
    ("redrive some", "redrive"),
    ("register", "register"),
    ("release", "release"),
    ("repartition", "repartition"),
    ("reschedule", "reschedule"),
    ("retry", "retry"),
    ("schedule", "schedule"),
    ("stats", "stats"),
    ("transfer", "transfer"),
    ("transfer to a new list", "transfer"),
];

pub fn partition() -> Partition {
    Partition { route: ROUTE.into(), number: 0 }
}

/// The rows that every scene begins with; ids without a body are orphans.
pub fn rows() -> Rows {
    let mut rows = Rows::default();
    let mut put = |id: &str, counts: Option<(u32, u32)>| {
        let metadata = Metadata { key: Some(id.to_owned()), ..Metadata::default() };
        let at = UnixMillis::new(LONG_AGO).expect("small");
        let body = StoredMessage { due: at, accepted: at, metadata, payload: Bytes::copy_from_slice(id.as_bytes()) };
        rows.bodies.insert(id.to_owned(), codec::encode(&body));
        if let Some((failures, crashes)) = counts {
            rows.attempts.insert(id.to_owned(), (failures, crashes));
            rows.errors.insert(id.to_owned(), format!("what happened to {id}"));
        }
    };
    for (id, counts) in [
        ("due", None),
        ("failed", Some((2, 0))),
        ("suspect", Some((0, 2))),
        ("later", None),
        ("held", None),
        ("held-failed", Some((3, 1))),
        ("held-crashed", Some((0, 1))),
        ("expired", None),
        ("expired-often", Some((1, 4))),
        ("dead", Some((1, 0))),
        ("dead-crashed", Some((0, 5))),
    ] {
        put(id, counts);
    }
    let set = |members: &[(&str, u64)]| members.iter().map(|(id, score)| ((*id).to_owned(), *score)).collect();
    rows.pending = set(&[
        ("due", LONG_AGO),
        ("failed", LONG_AGO + 1),
        ("suspect", LONG_AGO + 2),
        ("orphan", LONG_AGO + 3),
        ("later", HELD_UNTIL / 2),
    ]);
    let held = HELD_UNTIL - 1;
    rows.unack = set(&[
        ("held", held),
        ("held-failed", held),
        ("held-crashed", held),
        ("expired", 2_000_000),
        ("expired-often", 3_000_000),
    ]);
    rows.dead = set(&[("dead", LONG_AGO), ("dead-crashed", LONG_AGO + 1), ("dead-lost", LONG_AGO + 2)]);
    rows
}

impl Bench {
    /// Only the state that `scene` begins with.
    pub async fn set(&mut self, scene: &str) {
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHALL");
        let routes = format!("{PREFIX}:routes");
        for (route, partitions) in super::operation::ROUTES {
            let text = format!(r#"{{"version":1,"partitions":{partitions},"max_payload":{MAX_PAYLOAD}}}"#);
            pipe.hset(&routes, route, text);
            for number in 0..partitions {
                pipe.set(key(route, number, "route"), format!("1 {partitions} {number} {MAX_PAYLOAD}"));
            }
        }
        if scene != "transfer to a new list" {
            pipe.rpush(LISTS[0], &["old", "older"]);
        }
        pipe.exec_async(&mut self.raw).await.expect("the server answers");
        let mut rows = rows();
        rows.paused = scene == "resume";
        rows.write(&mut self.raw, ROUTE, 0).await;
    }

    /// Acts `scene` out.
    pub async fn act(&mut self, scene: &str) -> Result<(), StoreError> {
        let (store, partition) = (self.store.clone(), partition());
        match scene {
            "ack" => drop(store.ack(&partition, &leases()).await?),
            "bury" => {
                let burial = |lease| Burial { lease, reason: DeadReason::Expired, error: "too late".into() };
                store.bury(&partition, &leases().into_iter().map(burial).collect::<Vec<_>>()).await?;
            }
            "release" => {
                let release = |lease| Release { lease, not_before: UnixMillis::default() };
                store.release(&partition, &leases().into_iter().map(release).collect::<Vec<_>>()).await?;
            }
            "retry" => {
                let retry = |lease| Retry { lease, delay: Duration::ZERO, error: "HTTP 500".into() };
                store.retry(&partition, &leases().into_iter().map(retry).collect::<Vec<_>>()).await?;
            }
            "transfer" | "transfer to a new list" => {
                let transfer = |(lease, list): (Lease, &str)| Transfer {
                    value: lease.id.to_string().into(),
                    lease,
                    list: list.into(),
                };
                let lists = LISTS.into_iter().cycle();
                store.transfer(&partition, &leases().into_iter().zip(lists).map(transfer).collect::<Vec<_>>()).await?;
            }
            "claim" => drop(store.claim(&partition, claim(ClaimMode::Ordinary)).await?),
            "probe" => drop(store.claim(&partition, claim(ClaimMode::Probe { skip: 1 })).await?),
            "claim a suspect" => drop(store.claim(&partition, claim(ClaimMode::Suspect)).await?),
            "recover" => drop(store.recover(&partition).await?),
            "cancel pending" => drop(store.cancel(&partition, &id("failed")).await?),
            "cancel dead" => drop(store.cancel(&partition, &id("dead")).await?),
            "get" => drop(store.get(&partition, &id("dead")).await?),
            "list" => drop(store.list(&partition, State::Dead, 10, u64::MAX, None).await?),
            "stats" => drop(store.stats(&partition).await?),
            "pause" => store.pause(&partition).await?,
            "resume" => store.resume(&partition).await?,
            "purge all" => drop(store.purge(&partition, None).await?),
            "purge some" => drop(store.purge(&partition, Some(&some_dead())).await?),
            "redrive all" => drop(store.redrive(&partition, None).await?),
            "redrive some" => drop(store.redrive(&partition, Some(&some_dead())).await?),
            "reschedule" => drop(store.reschedule(&partition, &id("failed"), Due::After(0)).await?),
            "schedule" => drop(store.schedule(&partition, &batch()).await?),
            "produce" => return self.produced(message("fresh", Due::At(UnixMillis::default()), false)).await,
            "produce in place of a pending one" => return self.produced(message("failed", Due::NOW, true)).await,
            "produce in place of a dead one" => return self.produced(message("dead", Due::NOW, true)).await,
            "register" | "repartition" => {
                // Another largest payload, or another number of partitions of an empty route: something to write.
                let other = if scene == "register" { &self.other } else { &self.repartitioned };
                other.register(true).await.map_err(|error| match error {
                    RegistrationError::Store(error) => error,
                    mismatch @ RegistrationError::Mismatch { .. } => panic!("{mismatch}"),
                })?;
            }
            other => panic!("no scene `{other}`"),
        }
        Ok(())
    }

    async fn produced(&mut self, message: NewMessage) -> Result<(), StoreError> {
        self.try_produce(&partition(), &message).await.map_err(|error| punctual::connection::classify(&error))?;
        Ok(())
    }

    /// All that is stored: type and content of each key, in an order of its own.
    pub async fn dump(&mut self) -> BTreeMap<String, (String, Vec<Vec<u8>>)> {
        let script = redis::Script::new(
            r"local all = {}
            for _, key in ipairs(redis.call('KEYS', '*')) do
              local kind = redis.call('TYPE', key).ok
              local content = kind == 'hash' and redis.call('HGETALL', key)
                or kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
                or kind == 'list' and redis.call('LRANGE', key, 0, -1)
                or { redis.call('GET', key) }
              all[#all + 1] = { key, kind, content }
            end
            return all",
        );
        let all: Vec<(String, String, Vec<Vec<u8>>)> =
            script.invoke_async(&mut self.raw).await.expect("the server answers");
        all.into_iter()
            .map(|(key, kind, content)| {
                let content = if kind == "hash" {
                    let mut pairs: Vec<_> = content.chunks(2).collect();
                    pairs.sort();
                    pairs.concat()
                } else {
                    content
                };
                (key, (kind, content))
            })
            .collect()
    }
}

/// Current ones with a history and without, a stale one, an unknown one, and one named again.
fn leases() -> Vec<Lease> {
    let lease = |text: &str, token| Lease { id: id(text), token: Token(token) };
    let held = HELD_UNTIL - 1;
    vec![
        lease("held", held),
        lease("due", 1),
        lease("held-failed", held),
        lease("expired", 1_999_999),
        lease("nobody", held),
        lease("held-crashed", held),
        lease("held", held),
    ]
}

fn some_dead() -> Vec<MessageId> {
    ["dead", "due", "nobody", "dead-lost", "dead"].map(id).to_vec()
}

fn claim(mode: ClaimMode) -> ClaimRequest {
    ClaimRequest { mode, limit: 10, max_bytes: u64::MAX, lease: Duration::from_secs(30) }
}

fn message(text: &str, due: Due, replace: bool) -> NewMessage {
    NewMessage {
        id: id(text),
        due,
        payload: Bytes::from_static(b"new"),
        metadata: Metadata::default(),
        on_conflict: if replace { OnConflict::Replace } else { OnConflict::Keep },
    }
}

fn batch() -> Vec<NewMessage> {
    vec![
        message("fresh", Due::After(FAR), false),
        message("early", Due::At(UnixMillis::default()), false),
        message("fresh", Due::After(FAR + 1), true),
        message("due", Due::NOW, false),
        message("failed", Due::NOW, true),
        message("failed", Due::After(1), true),
        message("held", Due::NOW, true),
        message("dead-crashed", Due::NOW, false),
        message("dead", Due::NOW, true),
        message("dead-lost", Due::NOW, true),
        message("orphan", Due::NOW, true),
    ]
}
