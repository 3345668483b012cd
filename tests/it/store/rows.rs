//! What one partition holds, read from Redis in one go, or written there as it is.

use std::collections::BTreeMap;

use bytes::Bytes;
use punctual::message::LogRecord;
use redis::aio::MultiplexedConnection;

pub const PREFIX: &str = "p";

/// The content of a partition's keys. As the model it says what they ought to hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub pending: BTreeMap<String, u64>,
    pub unack: BTreeMap<String, u64>,
    pub dead: BTreeMap<String, u64>,
    pub bodies: BTreeMap<String, Bytes>,
    /// Failures and crashes.
    pub attempts: BTreeMap<String, (u32, u32)>,
    pub errors: BTreeMap<String, String>,
    /// When each ended, in milliseconds, and whether it was cancelled.
    pub remembered: BTreeMap<String, (u64, bool)>,
    /// The record that was last applied to each that came with one.
    pub records: BTreeMap<String, LogRecord>,
    /// Number and token of each instance's last claim that took messages.
    pub claims: BTreeMap<u64, (u64, u64)>,
    /// The instance that last took messages, and when, in microseconds.
    pub latest: Option<(u64, u64)>,
    pub paused: bool,
    /// Of the bodies of those in pending and unack, as they are counted.
    pub bytes: u64,
}

type Set = Vec<(String, f64)>;
type Hash<V> = BTreeMap<String, V>;
/// In the order in which `read` asks.
type Reply =
    (Set, Set, Set, Set, Hash<Vec<u8>>, Hash<String>, Hash<String>, Hash<String>, Hash<String>, bool, Option<u64>);

pub fn key(route: &str, number: u16, name: &str) -> String {
    format!("{{{PREFIX}:{route}:{number}}}:{name}")
}

impl Rows {
    pub async fn read(connection: &mut MultiplexedConnection, route: &str, number: u16) -> Self {
        let mut pipe = redis::pipe();
        for set in ["pending", "unack", "dead", "remembered"] {
            pipe.cmd("ZRANGE").arg(key(route, number, set)).arg(0).arg(-1).arg("WITHSCORES");
        }
        for hash in ["messages", "attempts", "errors", "records", "claims"] {
            pipe.hgetall(key(route, number, hash));
        }
        pipe.exists(key(route, number, "paused"));
        pipe.get(key(route, number, "bytes"));
        let (pending, unack, dead, remembered, bodies, attempts, errors, records, mut claims, paused, bytes): Reply =
            pipe.query_async(connection).await.expect("our keys hold our types");
        let latest = claims.remove("latest").map(|text| {
            let (instance, at) = text.split_once(' ').expect("an instance and a time");
            (self::instance(instance), at.parse().expect("microseconds"))
        });
        Self {
            pending: whole_scores(pending),
            unack: whole_scores(unack),
            dead: whole_scores(dead),
            bodies: bodies.into_iter().map(|(id, body)| (id, body.into())).collect(),
            attempts: attempts.into_iter().map(|(id, text)| (id, counts(&text))).collect(),
            errors,
            remembered: remembered.into_iter().map(|(id, score)| (id, ended(score))).collect(),
            records: records.into_iter().map(|(id, text)| (id, log_record(&text))).collect(),
            claims: claims.into_iter().map(|(name, text)| (instance(&name), pair(&text))).collect(),
            latest,
            paused,
            bytes: bytes.unwrap_or(0),
        }
    }

    /// Puts these rows into an empty partition.
    pub async fn write(&self, connection: &mut MultiplexedConnection, route: &str, number: u16) {
        let mut pipe = redis::pipe();
        for (name, set) in [("pending", &self.pending), ("unack", &self.unack), ("dead", &self.dead)] {
            for (id, score) in set {
                pipe.zadd(key(route, number, name), id, *score).ignore();
            }
        }
        for (id, body) in &self.bodies {
            pipe.hset(key(route, number, "messages"), id, &body[..]).ignore();
        }
        for (id, (failures, crashes)) in &self.attempts {
            pipe.hset(key(route, number, "attempts"), id, format!("{failures} {crashes}")).ignore();
        }
        for (id, error) in &self.errors {
            pipe.hset(key(route, number, "errors"), id, error).ignore();
        }
        for (id, (at, cancelled)) in &self.remembered {
            let half = if *cancelled { ".5" } else { "" };
            pipe.zadd(key(route, number, "remembered"), id, format!("{at}{half}")).ignore();
        }
        for (id, record) in &self.records {
            pipe.hset(key(route, number, "records"), id, record.to_string()).ignore();
        }
        for (instance, (last, token)) in &self.claims {
            pipe.hset(key(route, number, "claims"), format!("{instance:016x}"), format!("{last} {token}")).ignore();
        }
        if let Some((instance, at)) = self.latest {
            pipe.hset(key(route, number, "claims"), "latest", format!("{instance:016x} {at}")).ignore();
        }
        if self.paused {
            pipe.set(key(route, number, "paused"), 1).ignore();
        }
        if self.held_bytes() > 0 {
            pipe.set(key(route, number, "bytes"), self.held_bytes()).ignore();
        }
        let () = pipe.query_async(connection).await.expect("the partition is empty");
    }

    /// What `bytes` ought to be.
    pub fn held_bytes(&self) -> u64 {
        let held = self.pending.keys().chain(self.unack.keys());
        held.filter_map(|id| self.bodies.get(id)).map(|body| body.len() as u64).sum()
    }

    /// The invariants that hold after every script, whatever it was.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn check_invariants(&self) {
        let sets = [&self.pending, &self.unack, &self.dead];
        let live: Vec<&String> = {
            let mut ids: Vec<_> = sets.iter().flat_map(|set| set.keys()).collect();
            ids.sort();
            ids
        };
        assert!(live.windows(2).all(|pair| pair[0] != pair[1]), "an id in two sets: {self:?}");
        assert_eq!(self.bytes, self.held_bytes(), "bytes of what waits or is in flight: {self:?}");
        assert_eq!(live, self.bodies.keys().collect::<Vec<_>>(), "a body exists iff its id is live: {self:?}");
        for id in self.attempts.keys().chain(self.errors.keys()) {
            assert!(live.contains(&id), "something is kept about `{id}`, which is not live: {self:?}");
        }
        for id in self.remembered.keys() {
            assert!(!live.contains(&id), "`{id}` is remembered as ended, and live: {self:?}");
        }
        for id in self.records.keys() {
            let known = live.contains(&id) || self.remembered.contains_key(id);
            assert!(known, "a record of `{id}`, which is neither live nor remembered: {self:?}");
        }
        let mut tokens: Vec<u64> = self.claims.values().map(|(_, token)| *token).collect();
        tokens.sort_unstable();
        assert!(tokens.windows(2).all(|pair| pair[0] != pair[1]), "a token of two instances: {self:?}");
        let latest = self.latest.map(|(instance, _)| instance);
        assert!(latest.is_none_or(|latest| self.claims.contains_key(&latest)), "{self:?}");
        assert!(self.attempts.values().all(|counts| *counts != (0, 0)), "attempts of an id that has none: {self:?}");
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole_scores(set: Vec<(String, f64)>) -> BTreeMap<String, u64> {
    set.into_iter()
        .map(|(id, score)| {
            assert!(score.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&score), "{id} has score {score}");
            (id, score as u64)
        })
        .collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn ended(score: f64) -> (u64, bool) {
    assert!([0.0, 0.5].contains(&score.fract()), "{score}");
    (score as u64, score.fract() > 0.0)
}

fn log_record(text: &str) -> LogRecord {
    let parts: Vec<&str> = text.splitn(3, ' ').collect();
    let number = |n: usize| parts[n].parse().expect("a number");
    LogRecord { offset: number(0), timestamp: number(1), place: parts[2].into() }
}

/// As the store spells it: 16 hexadecimal digits.
fn instance(name: &str) -> u64 {
    assert_eq!(name.len(), 16, "{name}");
    u64::from_str_radix(name, 16).expect("hexadecimal digits")
}

fn pair(text: &str) -> (u64, u64) {
    let (first, second) = text.split_once(' ').expect("two numbers");
    (first.parse().expect("a number"), second.parse().expect("a number"))
}

fn counts(text: &str) -> (u32, u32) {
    let (failures, crashes) = text.split_once(' ').expect("two counts");
    (failures.parse().expect("failures"), crashes.parse().expect("crashes"))
}
