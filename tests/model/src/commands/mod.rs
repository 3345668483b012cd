//! The commands, with the replies and errors of Redis.

mod hashes;
mod keys;
mod lists;
mod sorted_sets;

use crate::{keyspace::Keyspace, value::Reply};

/// A command's reply, or the text of its error.
type Answer = Result<Reply, String>;

type Arguments<'a> = &'a [Vec<u8>];

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// A command on keys.
struct Command {
    name: &'static str,
    /// Minimum number of arguments behind the name, and the maximum if there is one.
    arity: (usize, Option<usize>),
    run: fn(&mut Keyspace, Arguments) -> Answer,
}

/// Every command on keys that the scripts use, and a few for tests.
const COMMANDS: [Command; 42] = [
    Command { name: "DEL", arity: (1, None), run: keys::del },
    Command { name: "EXISTS", arity: (1, None), run: keys::exists },
    Command { name: "FLUSHALL", arity: (0, Some(0)), run: keys::flush_all },
    Command { name: "GET", arity: (1, Some(1)), run: keys::get },
    Command { name: "GETDEL", arity: (1, Some(1)), run: keys::get_and_delete },
    Command { name: "PERSIST", arity: (1, Some(1)), run: keys::persist },
    Command { name: "SET", arity: (2, Some(2)), run: keys::set },
    Command { name: "STRLEN", arity: (1, Some(1)), run: keys::strlen },
    Command { name: "TYPE", arity: (1, Some(1)), run: keys::type_of },
    Command { name: "UNLINK", arity: (1, None), run: keys::del },
    Command { name: "HDEL", arity: (2, None), run: hashes::del },
    Command { name: "HEXISTS", arity: (2, Some(2)), run: hashes::exists },
    Command { name: "HGET", arity: (2, Some(2)), run: hashes::get },
    Command { name: "HGETALL", arity: (1, Some(1)), run: hashes::all },
    Command { name: "HKEYS", arity: (1, Some(1)), run: hashes::keys },
    Command { name: "HLEN", arity: (1, Some(1)), run: hashes::len },
    Command { name: "HMGET", arity: (2, None), run: hashes::get_many },
    Command { name: "HSCAN", arity: (2, None), run: hashes::scan },
    Command { name: "HSET", arity: (3, None), run: hashes::set },
    Command { name: "HSTRLEN", arity: (2, Some(2)), run: hashes::strlen },
    Command { name: "HVALS", arity: (1, Some(1)), run: hashes::values },
    Command { name: "LINDEX", arity: (2, Some(2)), run: lists::index },
    Command { name: "LLEN", arity: (1, Some(1)), run: lists::len },
    Command { name: "LPOP", arity: (1, Some(1)), run: lists::pop_left },
    Command { name: "LPUSH", arity: (2, None), run: lists::push_left },
    Command { name: "LRANGE", arity: (3, Some(3)), run: lists::range },
    Command { name: "LTRIM", arity: (3, Some(3)), run: lists::trim },
    Command { name: "RPOP", arity: (1, Some(1)), run: lists::pop_right },
    Command { name: "RPUSH", arity: (2, None), run: lists::push_right },
    Command { name: "ZADD", arity: (3, None), run: sorted_sets::add },
    Command { name: "ZCARD", arity: (1, Some(1)), run: sorted_sets::len },
    Command { name: "ZCOUNT", arity: (3, Some(3)), run: sorted_sets::count },
    Command { name: "ZLEXCOUNT", arity: (3, Some(3)), run: sorted_sets::count_members },
    Command { name: "ZMSCORE", arity: (2, None), run: sorted_sets::scores },
    Command { name: "ZRANGE", arity: (3, None), run: sorted_sets::range },
    Command { name: "ZRANGEBYLEX", arity: (3, None), run: sorted_sets::range_by_member },
    Command { name: "ZRANGEBYSCORE", arity: (3, None), run: sorted_sets::range_by_score },
    Command { name: "ZRANK", arity: (2, Some(2)), run: sorted_sets::rank },
    Command { name: "ZREM", arity: (2, None), run: sorted_sets::remove },
    Command { name: "ZREMRANGEBYRANK", arity: (3, Some(3)), run: sorted_sets::remove_by_rank },
    Command { name: "ZREMRANGEBYSCORE", arity: (3, Some(3)), run: sorted_sets::remove_by_score },
    Command { name: "ZSCORE", arity: (2, Some(2)), run: sorted_sets::score },
];

/// Runs a command on keys; `None` if it is not one of them.
pub fn run(keyspace: &mut Keyspace, command: &[Vec<u8>]) -> Option<Reply> {
    let (name, arguments) = command.split_first()?;
    let found = COMMANDS.iter().find(|one| one.name.as_bytes().eq_ignore_ascii_case(name))?;
    let (least, most) = found.arity;
    if arguments.len() < least || most.is_some_and(|most| arguments.len() > most) {
        return Some(wrong_number(found.name));
    }
    Some((found.run)(keyspace, arguments).unwrap_or_else(Reply::Error))
}

/// The error of a command with too few or too many arguments.
pub fn wrong_number(name: &str) -> Reply {
    Reply::error(format!("ERR wrong number of arguments for '{}' command", name.to_lowercase()))
}

fn integer(text: &[u8]) -> Result<i64, String> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
    // Other forms of a number, as `+1` and `01`, are not accepted.
    number.filter(|number| number.to_string().as_bytes() == text).ok_or_else(|| NOT_AN_INTEGER.to_owned())
}

/// The places of `from` to `to` among `len` values, negative ones counted from the end.
fn places(len: usize, from: &[u8], to: &[u8]) -> Result<std::ops::Range<usize>, String> {
    let len = i64::try_from(len).expect("a small number");
    let place = |text: &[u8]| integer(text).map(|number| if number < 0 { len.saturating_add(number) } else { number });
    let (from, to) = (place(from)?.max(0), place(to)?.min(len - 1));
    let place = |number: i64| usize::try_from(number).expect("not negative");
    Ok(if from > to { 0..0 } else { place(from)..place(to + 1) })
}

fn array(all: impl IntoIterator<Item = Vec<u8>>) -> Reply {
    Reply::Array(all.into_iter().map(Reply::Bulk).collect())
}
