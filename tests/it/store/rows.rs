//! The content of one partition, read from Redis in one step, or written to it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use punctual::{
    message::LogRecord,
    store::{
        Partition, ScheduleOwner,
        memory::{BLOCK, MemoryFlows, MemoryHistory, MemoryPartition, MemorySchedule, SHUT, SortedSet},
    },
};
use redis::aio::MultiplexedConnection;

pub const PREFIX: &str = "p";

type Set = Vec<(String, f64)>;
type Hash<V> = BTreeMap<String, V>;
/// In the order in which `read` asks.
type Reply =
    (Set, Set, Set, Set, Hash<Vec<u8>>, Hash<String>, Hash<String>, Hash<String>, Hash<String>, bool, Option<u64>);
type Flows = (Hash<String>, Set, Set, Set, Set, Hash<String>);

pub fn key(partition: &Partition, name: &str) -> String {
    format!("{{{PREFIX}:{partition}}}:{name}")
}

/// Reads the content of a partition.
pub async fn read(connection: &mut MultiplexedConnection, partition: &Partition) -> MemoryPartition {
    let mut pipe = redis::pipe();
    for set in ["pending", "unack", "dead", "remembered"] {
        pipe.cmd("ZRANGE").arg(key(partition, set)).arg(0).arg(-1).arg("WITHSCORES");
    }
    for hash in ["messages", "attempts", "errors", "records", "claims"] {
        pipe.hgetall(key(partition, hash));
    }
    pipe.exists(key(partition, "paused"));
    pipe.get(key(partition, "bytes"));
    let (pending, unack, dead, remembered, bodies, attempts, errors, records, mut claims, paused, bytes): Reply =
        pipe.query_async(connection).await.expect("our keys hold our types");
    let outbox: Set = redis::cmd("ZRANGE")
        .arg(key(partition, "outbox"))
        .arg(&["0", "-1", "WITHSCORES"])
        .query_async(connection)
        .await
        .expect("our keys hold our types");
    let latest = claims.remove("latest").map(|text| {
        let (instance, at) = text.split_once(' ').expect("an instance and a time");
        (self::instance(instance), at.parse().expect("microseconds"))
    });
    MemoryPartition {
        pending: whole_scores(pending),
        unack: whole_scores(unack),
        dead: whole_scores(dead),
        outbox: whole_scores(outbox),
        bodies: bodies.into_iter().map(|(id, body)| (id, body.into())).collect(),
        attempts: attempts.into_iter().map(|(id, text)| (id, counts(&text))).collect(),
        tries: errors.iter().filter_map(|(id, text)| Some((id.clone(), tries(text)?))).collect(),
        errors: errors.into_iter().filter_map(|(id, text)| Some((id, failure(&text)?))).collect(),
        remembered: remembered.into_iter().map(|(id, score)| (id, ended(score))).collect(),
        records: records.into_iter().map(|(id, text)| (id, log_record(&text))).collect(),
        claims: claims.into_iter().map(|(name, text)| (instance(&name), pair(&text))).collect(),
        latest,
        paused,
        bytes: bytes.unwrap_or(0),
        flow: flows(connection, partition).await,
        groups: groups(connection, partition).await,
        schedules: schedules(connection, partition).await,
        history: history(connection, partition).await,
    }
}

/// Checks that `ended` has the block of the last end of each id.
async fn history(connection: &mut MultiplexedConnection, partition: &Partition) -> MemoryHistory {
    let mut pipe = redis::pipe();
    pipe.hgetall(key(partition, "history"));
    pipe.cmd("ZRANGE").arg(key(partition, "ended")).arg(0).arg(-1).arg("WITHSCORES");
    let (mut blocks, ended): (Hash<Vec<u8>>, Set) =
        pipe.query_async(connection).await.expect("our keys hold our types");
    let state = blocks.remove("").map_or_else(|| "0 0 0".to_owned(), |text| String::from_utf8(text).expect("text"));
    let state: Vec<u64> = state.split(' ').map(|number| number.parse().expect("a number")).collect();
    let [following, first, last] = state[..] else { panic!("{state:?}") };
    let mut blocks: Vec<(u64, Vec<u8>)> =
        blocks.into_iter().map(|(number, block)| (number.parse().expect("a number"), block)).collect();
    blocks.sort();
    let (mut ends, mut number, mut newest) = (VecDeque::new(), first, BTreeMap::<String, u64>::new());
    for (block, text) in blocks {
        assert_eq!(number, block * BLOCK, "blocks in a row");
        let mut rest = &text[..];
        while !rest.is_empty() {
            let at = u64::from_be_bytes(rest[..8].try_into().expect("eight bytes"));
            let count = rest[8];
            rest = &rest[9..];
            for _ in 0..count {
                let (entry, behind) = rest.split_at(2 + usize::from(u16::from_be_bytes([rest[0], rest[1]])));
                let id = String::from_utf8(entry[24..24 + usize::from(entry[23])].to_vec()).expect("an id");
                newest.insert(id.clone(), number / BLOCK);
                ends.push_back((at, id, Bytes::copy_from_slice(entry)));
                (rest, number) = (behind, number + 1);
            }
        }
    }
    assert_eq!(number, following, "ends in blocks");
    let ended: BTreeMap<String, u64> = whole_scores(ended).iter().map(|(id, block)| (id.to_owned(), block)).collect();
    assert_eq!(ended, newest, "blocks of ids in {partition}");
    MemoryHistory { first, last, ends }
}

async fn flows(connection: &mut MultiplexedConnection, partition: &Partition) -> MemoryFlows {
    let mut pipe = redis::pipe();
    pipe.hgetall(key(partition, "flows"));
    for set in ["waiting", "flights", "gates", "slots"] {
        pipe.cmd("ZRANGE").arg(key(partition, set)).arg(0).arg(-1).arg("WITHSCORES");
    }
    pipe.hgetall(key(partition, "rules"));
    let (flows, waiting, flights, gates, slots, rules): Flows =
        pipe.query_async(connection).await.expect("our keys hold our types");
    let (shut, open): (Set, Set) = gates.into_iter().partition(|(_, at)| at.is_infinite());
    let open = whole_scores(open);
    let mut gates: BTreeMap<_, _> = open.iter().map(|(name, at)| (name.to_owned(), at)).collect();
    gates.extend(shut.into_iter().map(|(name, _)| (name, SHUT)));
    let members = |set: Set| set.into_iter().map(|(member, _)| member).collect();
    MemoryFlows {
        flows,
        waiting: members(waiting),
        flights: members(flights),
        gates,
        slots: slots.into_iter().collect(),
        rules,
    }
}

/// Checks that `grouped` has just the members of `groups`.
async fn groups(connection: &mut MultiplexedConnection, partition: &Partition) -> Hash<String> {
    let mut pipe = redis::pipe();
    pipe.hgetall(key(partition, "groups"))
        .cmd("ZRANGE")
        .arg(key(partition, "grouped"))
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES");
    let (groups, grouped): (Hash<String>, Set) = pipe.query_async(connection).await.expect("our keys hold our types");
    let mut expected: Set = groups.iter().map(|(id, group)| (format!("{group}\0{id}"), 0.0)).collect();
    expected.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(grouped, expected, "members of groups in {partition}");
    groups
}

async fn schedules(connection: &mut MultiplexedConnection, partition: &Partition) -> BTreeMap<String, MemorySchedule> {
    let key = key(partition, "schedules");
    let found: Hash<Vec<u8>> =
        redis::cmd("HGETALL").arg(key).query_async(connection).await.expect("our keys hold our types");
    found.into_iter().map(|(id, text)| (id, schedule(&text))).collect()
}

fn schedule(text: &[u8]) -> MemorySchedule {
    let end = text.iter().position(|byte| *byte == b'\n').expect("a line feed");
    let parts: Vec<&str> = std::str::from_utf8(&text[..end]).expect("text").split(' ').collect();
    let [revision, paused, owner, file, size, since, runs] = parts[..] else { panic!("{parts:?}") };
    let file_end = end + 1 + size.parse::<usize>().expect("a size");
    MemorySchedule {
        revision: revision.to_owned(),
        is_paused: paused == "1",
        owner: if owner == "file" {
            ScheduleOwner::File { revision: file.parse().expect("a revision") }
        } else {
            ScheduleOwner::Api
        },
        flow: String::from_utf8(text[end + 1..file_end].to_vec()).expect("text"),
        since: since.parse().expect("milliseconds"),
        runs: runs.split(',').filter(|run| !run.is_empty()).map(str::to_owned).collect(),
        tail: text[file_end..].to_vec().into(),
    }
}

fn schedule_text(one: &MemorySchedule) -> Vec<u8> {
    let MemorySchedule { revision, is_paused, owner, flow, since, runs, tail } = one;
    let (owner, file) = match owner {
        ScheduleOwner::File { revision } => ("file", *revision),
        ScheduleOwner::Api => ("api", 0),
    };
    let (paused, size, runs) = (u8::from(*is_paused), flow.len(), runs.join(","));
    let head = format!("{revision} {paused} {owner} {file} {size} {since} {runs}\n{flow}");
    [head.as_bytes(), tail].concat()
}

/// Puts `rows` into an empty partition.
pub async fn write(rows: &MemoryPartition, connection: &mut MultiplexedConnection, partition: &Partition) {
    let mut pipe = redis::pipe();
    for (name, set) in
        [("pending", &rows.pending), ("unack", &rows.unack), ("dead", &rows.dead), ("outbox", &rows.outbox)]
    {
        for (id, score) in set.iter() {
            pipe.zadd(key(partition, name), id, score).ignore();
        }
    }
    for (id, body) in &rows.bodies {
        pipe.hset(key(partition, "messages"), id, &body[..]).ignore();
    }
    for (id, (failures, crashes)) in &rows.attempts {
        pipe.hset(key(partition, "attempts"), id, format!("{failures} {crashes}")).ignore();
    }
    for (id, (at, failures, error)) in &rows.errors {
        let tries = rows.tries.get(id).into_iter().flatten().map(|text| format!("\0{text}"));
        let value = format!("{at} {failures} {error}{}", tries.collect::<String>());
        pipe.hset(key(partition, "errors"), id, value).ignore();
    }
    for (id, (at, cancelled)) in &rows.remembered {
        let half = if *cancelled { ".5" } else { "" };
        pipe.zadd(key(partition, "remembered"), id, format!("{at}{half}")).ignore();
    }
    for (id, record) in &rows.records {
        pipe.hset(key(partition, "records"), id, record.to_string()).ignore();
    }
    for (instance, (last, token)) in &rows.claims {
        pipe.hset(key(partition, "claims"), format!("{instance:016x}"), format!("{last} {token}")).ignore();
    }
    if let Some((instance, at)) = rows.latest {
        pipe.hset(key(partition, "claims"), "latest", format!("{instance:016x} {at}")).ignore();
    }
    if rows.paused {
        pipe.set(key(partition, "paused"), "1700000000000\n\n").ignore();
    }
    for (hash, fields) in [("flows", &rows.flow.flows), ("rules", &rows.flow.rules)] {
        for (field, value) in fields {
            pipe.hset(key(partition, hash), field, value).ignore();
        }
    }
    for (id, group) in &rows.groups {
        pipe.hset(key(partition, "groups"), id, group).ignore();
        pipe.zadd(key(partition, "grouped"), format!("{group}\0{id}"), 0).ignore();
    }
    for (set, members) in [("waiting", &rows.flow.waiting), ("flights", &rows.flow.flights)] {
        for member in members {
            pipe.zadd(key(partition, set), member, 0).ignore();
        }
    }
    for (name, at) in &rows.flow.gates {
        let at = if *at == SHUT { "inf".to_owned() } else { at.to_string() };
        pipe.zadd(key(partition, "gates"), name, at).ignore();
    }
    for (name, at) in &rows.flow.slots {
        pipe.zadd(key(partition, "slots"), name, at).ignore();
    }
    for (id, one) in &rows.schedules {
        pipe.hset(key(partition, "schedules"), id, schedule_text(one)).ignore();
    }
    write_history(&rows.history, &mut pipe, partition);
    if rows.held_bytes() > 0 {
        pipe.set(key(partition, "bytes"), rows.held_bytes()).ignore();
    }
    let () = pipe.query_async(connection).await.expect("the partition is empty");
}

fn write_history(history: &MemoryHistory, pipe: &mut redis::Pipeline, partition: &Partition) {
    if history.ends.is_empty() {
        return;
    }
    let mut blocks = BTreeMap::<u64, Vec<u8>>::new();
    for (number, (at, id, entry)) in (history.first..).zip(&history.ends) {
        let block = blocks.entry(number / BLOCK).or_default();
        block.extend(at.to_be_bytes());
        block.push(1);
        block.extend(&entry[..]);
        pipe.zadd(key(partition, "ended"), id, number / BLOCK).ignore();
    }
    for (number, block) in blocks {
        pipe.hset(key(partition, "history"), number, block).ignore();
    }
    let state = format!("{} {} {}", history.following(), history.first, history.last);
    pipe.hset(key(partition, "history"), "", state).ignore();
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole_scores(set: Vec<(String, f64)>) -> SortedSet {
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

/// `None` for a message that was redriven.
fn failure(text: &str) -> Option<(u64, u32, String)> {
    let text = text.split('\0').next().unwrap_or_default();
    let parts: Vec<&str> = text.splitn(3, ' ').collect();
    (text != "0 0 ")
        .then(|| (parts[0].parse().expect("milliseconds"), parts[1].parse().expect("failures"), parts[2].to_owned()))
}

fn tries(text: &str) -> Option<Vec<String>> {
    let tries: Vec<_> = text.split('\0').skip(1).map(str::to_owned).collect();
    (!tries.is_empty()).then_some(tries)
}

fn counts(text: &str) -> (u32, u32) {
    let (failures, crashes) = text.split_once(' ').expect("two counts");
    (failures.parse().expect("failures"), crashes.parse().expect("crashes"))
}
