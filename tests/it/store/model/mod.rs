//! The model on which the simulation runs the scripts replies as a real Redis does, and keeps the same keys.

mod channels;
mod commands;
mod reply;
mod script;

use std::sync::Arc;

use punctual_model::{Keyspace, Server};
use rand::{SeedableRng, rngs::StdRng};
use redis::aio::MultiplexedConnection;

use self::{
    commands::{arguments, command, forms},
    reply::{Shown, contents, contents_of_model},
    script::script,
};
use crate::support::{RedisServer, servers};

/// Sequences of commands, and scripts; `PROPTEST_CASES` asks for more.
const SEQUENCES: u64 = 200;
const SCRIPTED: u64 = 1000;
const COMMANDS: u32 = 60;

/// Scripts on the arguments `ARGV`, which are members.
const SCRIPTS: [&str; 25] = [
    "return ARGV",
    "return { #KEYS, KEYS[1], 3.99, -3.99, true, false, 'behind' }",
    "return { 1, 2, nil, 4 }",
    "return { ok = 'FINE' }",
    "return redis.error_reply('PUNCTUAL split too large')",
    "return redis.call('GET', KEYS[1])",
    "return redis.call('ZADD', KEYS[1], 1, 'a', 2.5, 'b')",
    "redis.call('SET', KEYS[1], 'kept') return redis.call('LPOP', KEYS[1])",
    "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 12) return redis.call('HGET', KEYS[1], 'a')",
    "local reply = redis.pcall('HGET', KEYS[1]) return reply.err and 'an error' or reply",
    "local _, result = pcall(redis.call, 'NOSUCH') return type(result) == 'table' and result.err and 'an error'",
    "local _, result = pcall(function() return nil + 1 end) return type(result)",
    "return nil + 1",
    "return no_such_global",
    "a_global = 1",
    "return redis.call('ZSCORE', KEYS[1], 'no') == false",
    "return type(redis.call('TIME')[1])",
    "return cmsgpack.pack(ARGV, { 'a', string.rep('b', 40), string.rep('c', 300), string.rep('d', 70000) }, {})",
    "return struct.pack('>BI2I4I8', 255, 258, 66051, 2 ^ 52 + 1) .. struct.pack('>I8', '1700000000000')",
    "return { struct.unpack('>I8I2B', '\\0\\0\\1\\139\\207\\229\\104\\0\\1\\2\\3rest') }",
    "return struct.unpack('>I8', 'short')",
    "return { bit.band(255, 15), bit.bnot(0), bit.bxor(5, -1), bit.rshift(-1, 28), bit.lshift(1, 31), bit.bor(1, 2) }",
    "local d = cjson.decode('{\"a\":[1,2.5,\"x/\\\\u00e9\"],\"b\":null,\"c\":{}}') \
     return { d.a[1], tostring(d.a[2]), d.a[3], d.b == cjson.null, cjson.encode(d.a), cjson.encode(d.c) }",
    "return pcall(cjson.decode, '{\"a\":') and 'valid' or 'invalid'",
    "return { tostring(1700000000123456), 1700000000123456 .. '', string.format('%.0f', 1700000000123456), #ARGV[1] }",
];

/// Both servers.
struct Pair {
    redis: RedisServer,
    connection: MultiplexedConnection,
    model: Arc<Server>,
}

impl Pair {
    async fn start() -> Self {
        let redis = RedisServer::start_with(&["--appendonly", "no"]).await;
        let connection = redis.connection().await;
        Self { redis, connection, model: Server::new(|| 1_700_000_000_123_456) }
    }

    async fn clear(&mut self) {
        let () = redis::cmd("FLUSHALL").query_async(&mut self.connection).await.expect("the server answers");
        self.model.keys(Keyspace::clear);
    }

    /// `about`: the case.
    async fn compare(&mut self, command: &[Vec<u8>], about: &str) {
        let expected = Shown::on_redis(&mut self.connection, command).await.ordered(command);
        let reply = Shown::from(&self.model.execute(command)).ordered(command);
        assert_eq!(reply, expected, "the model's reply to {}\n{about}", show(command));
    }

    async fn compare_keys(&mut self, about: &str) {
        let expected = contents(&mut self.connection).await;
        let keys = self.model.keys(|keys| contents_of_model(keys));
        assert_eq!(keys, expected, "the model's keys\n{about}");
    }
}

fn show(command: &[Vec<u8>]) -> String {
    String::from_utf8_lossy(&command.join(&b' ')).into_owned()
}

fn words(command: &str) -> Vec<Vec<u8>> {
    command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn eval(script: &str, arguments: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let call = ["EVAL", script, "1", "k1"].map(|part| part.as_bytes().to_vec());
    call.into_iter().chain(arguments).collect()
}

/// Number of cases.
fn cases(usual: u64) -> u64 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.map_or(usual, |asked| asked.parse().expect("a number of cases"))
}

#[tokio::test]
async fn the_model_replies_to_random_commands_as_redis_does() {
    let mut pair = Pair::start().await;
    for seed in 0..cases(SEQUENCES) {
        let mut rng = StdRng::seed_from_u64(seed);
        let forms = forms(&mut rng);
        pair.clear().await;
        let mut before = format!("seed {seed}");
        for _ in 0..COMMANDS {
            let command = command(&forms, &mut rng);
            pair.compare(&command, &before).await;
            before = format!("{before}\n{}", show(&command));
        }
        pair.compare_keys(&before).await;
    }
}

#[tokio::test]
async fn the_model_runs_scripts_as_redis_does() {
    // Error replies of scripts have had their codes since 7.0.
    if servers::redis_version() < (7, 0) {
        return;
    }
    let mut pair = Pair::start().await;
    for prepared in ["DEL k1", "SET k1 text", "ZADD k1 1 a", "RPUSH k1 a b", "HSET k1 a 1"] {
        for script in SCRIPTS {
            pair.clear().await;
            pair.compare(&words(prepared), "").await;
            let about = format!("after {prepared}");
            pair.compare(&eval(script, arguments("m*", &mut StdRng::seed_from_u64(1))), &about).await;
            // A script that failed keeps its writes.
            pair.compare_keys(script).await;
        }
    }
}

#[tokio::test]
async fn the_model_runs_random_scripts_as_redis_does() {
    // Error replies of scripts have had their codes since 7.0.
    if servers::redis_version() < (7, 0) {
        return;
    }
    let mut pair = Pair::start().await;
    for seed in 0..cases(SCRIPTED) {
        let mut rng = StdRng::seed_from_u64(seed);
        // Ten scripts each on the keys of those before.
        if seed % 10 == 0 {
            pair.clear().await;
        }
        let script = script(&mut rng);
        let about = format!("seed {seed}");
        pair.compare(&eval(&script, arguments("m*", &mut rng)), &about).await;
        pair.compare_keys(&about).await;
    }
}
