//! The model on which the simulation runs the scripts replies as a real Redis does.

use punctual_model::{Reply, Server};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use redis::{Value, aio::MultiplexedConnection};

use crate::support::RedisServer;

const SEQUENCES: u64 = 300;
const COMMANDS: u32 = 60;

/// Commands, with the kinds of their arguments: `k` key, `m` member, `m*` members, `s` score, `p*` pairs of score and
/// member, `f*` pairs of field and value, `b` bound of scores, `l` bound of members, `n` number; others as they are.
const FORMS: [&str; 62] = [
    "DEL k",
    "DEL k k",
    "UNLINK k",
    "EXISTS k k k",
    "GET k",
    "SET k m",
    "STRLEN k",
    "TYPE k",
    "PERSIST k",
    "GETDEL k",
    "HGET k m",
    "HMGET k m*",
    "HSET k f*",
    "HSET k f*",
    "HSET k m",
    "HDEL k m*",
    "HLEN k",
    "HSTRLEN k m",
    "HGETALL k",
    "HKEYS k",
    "HVALS k",
    "HEXISTS k m",
    "HSCAN k 0 COUNT 100",
    "HSCAN k m",
    "RPUSH k m*",
    "LPUSH k m*",
    "LPOP k",
    "RPOP k",
    "LLEN k",
    "LRANGE k n n",
    "LTRIM k n n",
    "LINDEX k n",
    "ZADD k p*",
    "ZADD k p*",
    "ZADD k NX p*",
    "ZADD k XX p*",
    "ZADD k CH p*",
    "ZADD k NX CH p*",
    "ZADD k XX NX p*",
    "ZADD k s",
    "ZADD k m m",
    "ZREM k m*",
    "ZCARD k",
    "ZSCORE k m",
    "ZMSCORE k m*",
    "ZRANK k m",
    "ZCOUNT k b b",
    "ZRANGE k n n",
    "ZRANGE k n n WITHSCORES",
    "ZRANGE k n n REV WITHSCORES",
    "ZRANGE k b b BYSCORE LIMIT n n",
    "ZRANGE k b b BYSCORE REV",
    "ZRANGE k n n LIMIT 0 1",
    "ZRANGEBYSCORE k b b WITHSCORES",
    "ZRANGEBYSCORE k b b WITHSCORES LIMIT n n",
    "ZREMRANGEBYRANK k n n",
    "ZREMRANGEBYSCORE k b b",
    "GET k k",
    "HGET k",
    "NOSUCH k",
    "ZRANGEBYSCORE k m b",
    "ZRANGE k m n",
];

/// Of sorted sets in which all scores are equal, as those that are read by members must be.
const FORMS_BY_MEMBER: [&str; 9] = [
    "ZADD k 0 m",
    "ZADD k 0 m 0 m",
    "ZREM k m*",
    "ZRANGEBYLEX k l l",
    "ZRANGEBYLEX k l l LIMIT n n",
    "ZLEXCOUNT k l l",
    "ZRANGE k l l BYLEX",
    "ZRANGE k l l BYLEX REV LIMIT n n",
    "ZRANGEBYLEX k m l",
];

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

/// A reply in a form that does not depend on the order of fields nor on the text of an error.
#[derive(Clone, Debug, PartialEq)]
enum Shown {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    /// With its code.
    Error(String),
    Array(Vec<Shown>),
}

impl From<&Reply> for Shown {
    fn from(reply: &Reply) -> Self {
        match reply {
            Reply::Nil => Self::Nil,
            Reply::Int(number) => Self::Int(*number),
            Reply::Bulk(bytes) => Self::Text(bytes.clone()),
            Reply::Status(text) => Self::Text(text.clone().into_bytes()),
            Reply::Error(text) => Self::Error(text.split(' ').next().unwrap_or_default().to_owned()),
            Reply::Array(all) => Self::Array(all.iter().map(Self::from).collect()),
        }
    }
}

impl From<Value> for Shown {
    fn from(value: Value) -> Self {
        match value {
            Value::Nil => Self::Nil,
            Value::Int(number) => Self::Int(number),
            Value::BulkString(bytes) => Self::Text(bytes),
            Value::SimpleString(text) => Self::Text(text.into_bytes()),
            Value::Okay => Self::Text(b"OK".to_vec()),
            Value::Array(all) => Self::Array(all.into_iter().map(Self::from).collect()),
            other => panic!("{other:?}"),
        }
    }
}

impl Shown {
    async fn on_redis(connection: &mut MultiplexedConnection, command: &[Vec<u8>]) -> Self {
        let mut sent = redis::Cmd::new();
        for part in command {
            sent.arg(&part[..]);
        }
        match sent.query_async::<Value>(connection).await {
            Ok(value) => value.into(),
            Err(error) => {
                assert!(!error.is_io_error(), "{error}");
                Self::Error(error.code().unwrap_or("ERR").to_owned())
            }
        }
    }

    /// Of commands with fields in an order of Redis' own.
    fn ordered(self, command: &[Vec<u8>]) -> Self {
        match (&command[0][..], self) {
            (b"HGETALL", Self::Array(all)) => Self::pairs(&all),
            (b"HKEYS" | b"HVALS", Self::Array(mut all)) => {
                all.sort_by_key(|one| format!("{one:?}"));
                Self::Array(all)
            }
            (b"HSCAN", Self::Array(mut parts)) => {
                if let Some(Self::Array(all)) = parts.get(1) {
                    parts[1] = Self::pairs(all);
                }
                Self::Array(parts)
            }
            (_, other) => other,
        }
    }

    fn pairs(all: &[Self]) -> Self {
        let mut pairs: Vec<_> = all.chunks(2).map(<[Self]>::to_vec).collect();
        pairs.sort_by_key(|pair| format!("{pair:?}"));
        Self::Array(pairs.concat())
    }
}

/// Both servers.
struct Pair {
    _redis: RedisServer,
    connection: MultiplexedConnection,
    model: std::sync::Arc<Server>,
}

impl Pair {
    async fn start() -> Self {
        let redis = RedisServer::start_with(&["--appendonly", "no"]).await;
        let connection = redis.connection().await;
        Self { _redis: redis, connection, model: Server::new(|| 1_700_000_000_123_456) }
    }

    async fn clear(&mut self) {
        let () = redis::cmd("FLUSHALL").query_async(&mut self.connection).await.expect("the server answers");
        self.model.keys(punctual_model::Keyspace::clear);
    }

    async fn compare(&mut self, command: &[Vec<u8>], before: &[String]) {
        let expected = Shown::on_redis(&mut self.connection, command).await.ordered(command);
        let reply = Shown::from(&self.model.execute(command)).ordered(command);
        let show = String::from_utf8_lossy(&command.join(&b' ')).into_owned();
        assert_eq!(reply, expected, "{show}\nafter\n{}", before.join("\n"));
    }
}

fn pick<'a>(rng: &mut StdRng, from: &[&'a str]) -> &'a str {
    from[rng.random_range(0..from.len())]
}

/// The arguments of a kind.
fn arguments(kind: &str, rng: &mut StdRng) -> Vec<Vec<u8>> {
    const MEMBERS: [&str; 7] = ["a", "b", "ab", "", "a\0b", "\u{e9}", "10"];
    const SCORES: [&str; 10] = ["0", "1", "-1", "2", "2.5", "1700000000000", "4503599627370495.5", "+3", "inf", "-inf"];
    const BOUNDS: [&str; 9] = ["-inf", "+inf", "0", "(0", "1", "(1", "2.5", "(inf", "1700000000000"];
    const MEMBER_BOUNDS: [&str; 9] = ["-", "+", "[a", "(a", "[ab", "(b", "[", "(", "[\u{e9}"];
    const NUMBERS: [&str; 9] = ["0", "1", "-1", "2", "-2", "3", "-3", "100", "-100"];
    let many = |kind: &str, rng: &mut StdRng| {
        (0..rng.random_range(1..4)).flat_map(|_| arguments(kind, rng)).collect::<Vec<_>>()
    };
    let one = match kind {
        "k" => pick(rng, &["k1", "k2", "k3", "k4"]),
        "m" => pick(rng, &MEMBERS),
        "s" => pick(rng, &SCORES),
        "b" => pick(rng, &BOUNDS),
        "l" => pick(rng, &MEMBER_BOUNDS),
        "n" => pick(rng, &NUMBERS),
        "m*" => return many("m", rng),
        "f*" => return many("f", rng),
        "p*" => return many("p", rng),
        "f" => return [arguments("m", rng), arguments("m", rng)].concat(),
        "p" => return [arguments("s", rng), arguments("m", rng)].concat(),
        other => other,
    };
    vec![one.as_bytes().to_vec()]
}

fn command(form: &str, rng: &mut StdRng) -> Vec<Vec<u8>> {
    form.split(' ').flat_map(|kind| arguments(kind, rng)).collect()
}

#[tokio::test]
async fn the_model_replies_to_random_commands_as_redis_does() {
    let mut pair = Pair::start().await;
    for seed in 0..SEQUENCES {
        let mut rng = StdRng::seed_from_u64(seed);
        // Some sequences meet few types, so that values grow.
        let type_of = pick(&mut rng, &["Z", "H", "L", "", ""]).as_bytes();
        let forms: Vec<_> = if seed % 5 == 4 {
            FORMS_BY_MEMBER.to_vec()
        } else {
            let is_of = |form: &&str| type_of.is_empty() || form.as_bytes()[0] == type_of[0] || form.starts_with("DEL");
            FORMS.into_iter().filter(is_of).collect()
        };
        pair.clear().await;
        let mut before = vec![format!("seed {seed}")];
        for _ in 0..COMMANDS {
            let command = command(pick(&mut rng, &forms), &mut rng);
            pair.compare(&command, &before).await;
            before.push(String::from_utf8_lossy(&command.join(&b' ')).into_owned());
        }
    }
}

#[tokio::test]
async fn the_model_runs_scripts_as_redis_does() {
    let mut pair = Pair::start().await;
    for prepared in ["", "SET k1 text", "ZADD k1 1 a", "RPUSH k1 a b", "HSET k1 a 1"] {
        for script in SCRIPTS {
            pair.clear().await;
            let mut rng = StdRng::seed_from_u64(1);
            if !prepared.is_empty() {
                let words: Vec<_> = prepared.split(' ').map(|word| word.as_bytes().to_vec()).collect();
                pair.compare(&words, &[]).await;
            }
            let mut call: Vec<_> = ["EVAL", script, "1", "k1"].map(|part| part.as_bytes().to_vec()).to_vec();
            call.extend(arguments("m*", &mut rng));
            pair.compare(&call, &[prepared.to_owned()]).await;
            // A script that failed keeps what it wrote.
            for look in ["TYPE k1", "GET k1", "HGETALL k1", "ZRANGE k1 0 -1 WITHSCORES"] {
                let look: Vec<_> = look.split(' ').map(|word| word.as_bytes().to_vec()).collect();
                pair.compare(&look, &[script.to_owned()]).await;
            }
        }
    }
}
