//! Random commands with any arguments.

use rand::{RngExt, rngs::StdRng};

use crate::support::servers;

/// Commands, with the kinds of their arguments: `k` key, `m` member, `m*` members, `m+` many members, `s` score, `p*` and
/// `p+` pairs of score and member, `f*` and `f+` pairs of field and value, `b` bound of scores, `l` bound of members, `n`
/// number; others as they are.
const FORMS: [&str; 73] = [
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
    "PUBLISH k m",
    "SPUBLISH k m",
    "GET k k",
    "NOSUCH k",
    "HGET k m",
    "HGET k",
    "HMGET k m*",
    "HMGET k m+",
    "HSET k f*",
    "HSET k f*",
    "HSET k f+",
    "HSET k m",
    "HDEL k m*",
    "HDEL k m+",
    "HLEN k",
    "HSTRLEN k m",
    "HGETALL k",
    "HKEYS k",
    "HVALS k",
    "HEXISTS k m",
    "HSCAN k 0 COUNT 100",
    "HSCAN k n COUNT n",
    "HSCAN k m",
    "RPUSH k m*",
    "RPUSH k m+",
    "LPUSH k m*",
    "LPOP k",
    "RPOP k",
    "LLEN k",
    "LRANGE k n n",
    "LTRIM k n n",
    "LINDEX k n",
    "ZADD k p*",
    "ZADD k p*",
    "ZADD k p+",
    "ZADD k NX p*",
    "ZADD k XX p*",
    "ZADD k CH p*",
    "ZADD k NX CH p*",
    "ZADD k XX CH p+",
    "ZADD k XX NX p*",
    "ZADD k s",
    "ZADD k m m",
    "ZREM k m*",
    "ZREM k m+",
    "ZCARD k",
    "ZSCORE k m",
    "ZMSCORE k m*",
    "ZMSCORE k m+",
    "ZRANK k m",
    "ZCOUNT k b b",
    "ZRANGE k n n",
    "ZRANGE k n n WITHSCORES",
    "ZRANGE k n n REV WITHSCORES",
    "ZRANGE k n n LIMIT n n",
    "ZRANGE k b b BYSCORE LIMIT n n",
    "ZRANGE k b b BYSCORE REV WITHSCORES",
    "ZRANGE k b b BYSCORE BYLEX",
    "ZRANGEBYSCORE k b b WITHSCORES",
    "ZRANGEBYSCORE k b b WITHSCORES LIMIT n n",
    "ZREMRANGEBYRANK k n n",
    "ZREMRANGEBYSCORE k b b",
    "ZREMRANGEBYSCORE k m b",
];

/// Commands on sorted sets in which all scores are equal, as those that are read by members must be.
const FORMS_BY_MEMBER: [&str; 13] = [
    "ZADD k 0 m",
    "ZADD k 0 m 0 m",
    "ZADD k 0 m 0 m 0 m",
    "DEL k",
    "ZREM k m*",
    "ZRANGEBYLEX k l l",
    "ZRANGEBYLEX k l l LIMIT n n",
    "ZRANGEBYLEX k l l WITHSCORES",
    "ZLEXCOUNT k l l",
    "ZRANGE k l l BYLEX",
    "ZRANGE k l l BYLEX REV LIMIT n n",
    "ZRANGEBYLEX k m l",
    "ZRANGE k l l BYLEX WITHSCORES",
];

const MEMBERS: [&str; 9] = ["a", "b", "ab", "", "a\0b", "\u{e9}", "10", "n1", "n2"];
/// Scores with a text that all versions of Redis write alike.
const SCORES: [&str; 15] = [
    "0",
    "1",
    "1",
    "-1",
    "2",
    "2.5",
    "1700000000000",
    "4503599627370495.5",
    "+3",
    "inf",
    "-inf",
    "1e20",
    "0.125",
    "-1700000000123456",
    ".5",
];
/// Scores with a text of 17 digits, before 7.2.
const LONG_SCORES: [&str; 4] = ["0.1", "1e-7", "1e300", "123456789012345678"];
const BOUNDS: [&str; 14] =
    ["-inf", "+inf", "0", "(0", "1", "(1", "2.5", "(inf", "1700000000000", "(2", "(", " 1", "1e400", "(-inf"];
const MEMBER_BOUNDS: [&str; 12] = ["-", "+", "[a", "(a", "[ab", "(b", "[", "(", "[\u{e9}", "[a\0b", "(10", "[z"];
const NUMBERS: [&str; 11] = ["0", "1", "-1", "2", "-2", "3", "-3", "100", "-100", "7", "-50"];
/// Arguments in place of others.
const ODD: [&str; 20] = [
    "",
    "nan",
    "x",
    "1.5",
    "-01",
    "01",
    "+1",
    " 1",
    "1 ",
    "9223372036854775808",
    "9223372036854775807",
    "-9223372036854775808",
    "1e400",
    "1e-400",
    "(",
    "[",
    "\0",
    "inf",
    "--1",
    "1e",
];
/// Share of the commands with an odd argument, and of those with one more or one less.
const ODD_SHARE: f64 = 0.04;

pub fn pick<'a>(rng: &mut StdRng, from: &[&'a str]) -> &'a str {
    from[rng.random_range(0..from.len())]
}

/// The forms of one sequence of commands.
pub fn forms(rng: &mut StdRng) -> Vec<&'static str> {
    // Sequences on few types, so that values grow.
    match pick(rng, &["Z", "H", "L", "R", "lex", "any", "any"]) {
        "lex" => FORMS_BY_MEMBER.to_vec(),
        "any" => FORMS.to_vec(),
        first => {
            let of = if first == "R" { "L" } else { first };
            let is_of = |form: &&str| form.starts_with(of) || form.starts_with(first) || form.starts_with("DEL");
            FORMS.into_iter().filter(is_of).collect()
        }
    }
}

/// Whether these are commands on sorted sets in which all scores must be equal.
pub fn is_by_member(forms: &[&str]) -> bool {
    forms == FORMS_BY_MEMBER
}

pub fn command(forms: &[&str], rng: &mut StdRng) -> Vec<Vec<u8>> {
    let form = pick(rng, forms);
    let mut command: Vec<_> = form.split(' ').flat_map(|kind| arguments(kind, rng)).collect();
    // Other scores would make the order of members undefined, and a second argument of these is a number of values.
    let is_fixed = form.starts_with("ZADD k 0") || ["LPOP k", "RPOP k"].contains(&form);
    if !is_fixed && rng.random_bool(ODD_SHARE) {
        let at = rng.random_range(1..command.len());
        command[at] = pick(rng, &ODD).as_bytes().to_vec();
    }
    if !is_fixed && rng.random_bool(ODD_SHARE) {
        if rng.random_bool(0.5) {
            command.pop();
        } else {
            command.push(pick(rng, &ODD).as_bytes().to_vec());
        }
    }
    command
}

/// The arguments of a kind.
pub fn arguments(kind: &str, rng: &mut StdRng) -> Vec<Vec<u8>> {
    let one = match kind {
        "k" => pick(rng, &["k1", "k2", "k3"]),
        "m" => pick(rng, &MEMBERS),
        "s" if servers::redis_version() < (7, 2) && rng.random_bool(0.2) => pick(rng, &LONG_SCORES),
        "s" => pick(rng, &SCORES),
        "b" => pick(rng, &BOUNDS),
        "l" => pick(rng, &MEMBER_BOUNDS),
        "n" => pick(rng, &NUMBERS),
        "f" => return [arguments("m", rng), arguments("m", rng)].concat(),
        "p" => return [arguments("s", rng), arguments("m", rng)].concat(),
        "m*" | "f*" | "p*" => {
            return (0..rng.random_range(1..4)).flat_map(|_| arguments(&kind[..1], rng)).collect();
        }
        // A large sorted set has another form in Redis than a small one. Hashes stay small, which are scanned at once.
        "m+" | "f+" | "p+" => {
            let (from, len) = (rng.random_range(0..50), rng.random_range(1..100));
            let members = (from..from + len).map(|n: u32| format!("n{}", if kind == "p+" { n } else { n % 90 }));
            let with = |member: String, rng: &mut StdRng| match kind {
                "m+" => vec![member.into_bytes()],
                "f+" => vec![member.into_bytes(), b"value".to_vec()],
                _ => [arguments("s", rng), vec![member.into_bytes()]].concat(),
            };
            return members.flat_map(|member| with(member, rng)).collect();
        }
        other => other,
    };
    vec![one.as_bytes().to_vec()]
}
