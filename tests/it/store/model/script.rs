//! Random scripts.

use std::fmt::Write;

use rand::{RngExt, rngs::StdRng};

use super::commands::{command, forms, is_by_member, pick};

/// Functions of each script: `show` makes a text of any value, `try` of the results or of the error of a call.
const HELPERS: &str = r"
local function show(value)
  local kind = type(value)
  if kind == 'number' then return string.format('%.17g', value) end
  if kind == 'string' then return kind .. value end
  if kind == 'userdata' then return value == cjson.null and 'null' or kind end
  if kind ~= 'table' then return tostring(value) end
  if type(value.err) == 'string' then return 'error ' .. string.match(value.err, '^%S*') end
  local parts = {}
  for name, one in pairs(value) do parts[#parts + 1] = show(name) .. '=' .. show(one) end
  table.sort(parts)
  return '{' .. table.concat(parts, ',') .. '}'
end
local function results(is_done, ...)
  if not is_done then return 'failed: ' .. (type(...) == 'table' and show(...) or type(...)) end
  local parts = {}
  for n = 1, select('#', ...) do parts[n] = show((select(n, ...))) end
  return table.concat(parts, ' ')
end
local function try(...) return results(pcall(...)) end
local function sorted(reply)
  if type(reply) == 'table' and not reply.err then
    if type(reply[2]) == 'table' then table.sort(reply[2]) else table.sort(reply) end
  end
  return reply
end
local function nested(depth) return string.rep('[', depth) .. string.rep(']', depth) end
local function repeated(count)
  local all = {}
  for n = 1, count do all[n] = 'a' end
  return all
end
local replies = {}
";

/// Numbers of up to 53 bits, which all conversions keep.
const NUMBERS: [&str; 20] = [
    "0",
    "1",
    "-1",
    "3.99",
    "-3.99",
    "127",
    "128",
    "-32",
    "-33",
    "255",
    "256",
    "65535",
    "65536",
    "4294967296",
    "-2147483649",
    "1700000000123456",
    "9007199254740992",
    "-9007199254740992",
    "0.5",
    "2.5",
];
/// Numbers that are not whole ones of 64 bits.
const WIDE_NUMBERS: [&str; 7] = ["1e300", "1e20", "1/0", "-1/0", "0.1", "1e-7", "9223372036854775808"];
const TEXTS: [&str; 12] =
    ["", "a", "b", "1", "12", "0x10", "a/b", "\"q\\\"", "\0\u{1}\u{7f}", "\u{e9}", "\r\n\t\u{8}\u{c}", "1e3"];
const JSON: [&str; 34] = [
    "[]",
    "{}",
    "null",
    "true",
    "[1e400]",
    "[01]",
    "[+1]",
    "[.5]",
    "[+.5]",
    "[-]",
    "[1.]",
    "[1.e5]",
    "nan",
    "[-inf]",
    "[Infinity]",
    "[\"\\ud800\"]",
    "[\"\\ud83d\\ude00\"]",
    "[\"\\ud83d\\u0041\"]",
    "[\"\\udc00\"]",
    "[\"\\u0000\"]",
    "[1]\0x",
    "\0[1]",
    "[\"a\0\"]",
    "[\"\u{1}\n\"]",
    "{\"a\":1,\"a\":2}",
    "[1,]",
    "{\"a\":}",
    "{1:2}",
    "[1 2]",
    "truex",
    "[\"\\x\"]",
    "[\"\\/\\b\\f\\n\\r\\t\"]",
    "",
    "[5e-324]",
];

/// A string of Lua.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("'");
    for byte in bytes {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "\\{byte:03}");
        }
    }
    text + "'"
}

/// An expression of any type; `is_wide`: with numbers beyond integers.
fn value(rng: &mut StdRng, depth: u32, is_wide: bool) -> String {
    match rng.random_range(0..if depth < 4 { 10 } else { 7 }) {
        0 => pick(rng, &["nil", "false", "true", "cjson.null"]).to_owned(),
        1 if is_wide => pick(rng, &WIDE_NUMBERS).to_owned(),
        1..4 => pick(rng, &NUMBERS).to_owned(),
        4..7 => quoted(pick(rng, &TEXTS).as_bytes()),
        7 => {
            // Places of an array, some of them empty.
            let mut all = String::from("{");
            for _ in 0..rng.random_range(0..6) {
                let place = if rng.random_bool(0.2) { rng.random_range(1..30) } else { 0 };
                let one = value(rng, depth + 1, is_wide);
                let _ = if place > 0 { write!(all, "[{place}]={one},") } else { write!(all, "{one},") };
            }
            all + "}"
        }
        8 => {
            let all: Vec<_> = (0..rng.random_range(0..5)).map(|_| value(rng, depth + 1, is_wide)).collect();
            format!("{{{}}}", all.join(","))
        }
        _ => {
            let mut all = String::from("{");
            for _ in 0..rng.random_range(0..5) {
                let name = pick(rng, &["a", "b", "c", "'x y'", "1", "2", "2.5", "-1", "true"]);
                let name = if name.len() == 1 && name.as_bytes()[0].is_ascii_alphabetic() {
                    quoted(name.as_bytes())
                } else {
                    name.to_owned()
                };
                let _ = write!(all, "[{name}]={},", value(rng, depth + 1, is_wide));
            }
            all + "}"
        }
    }
}

fn json(rng: &mut StdRng, depth: u32) -> Vec<u8> {
    let many = |rng: &mut StdRng| rng.random_range(0..4);
    match rng.random_range(0..if depth < 4 { 8 } else { 5 }) {
        0 => pick(rng, &["null", "true", "false"]).into(),
        1 => pick(rng, &["0", "-0", "1", "-1.5", "1e3", "1E-2", "1700000000123456", "0.1", "123456789012345678901"])
            .into(),
        2 => pick(rng, &["\"\"", "\"a\"", "\"\u{e9}\"", "\"\\u00e9\\n\"", "\"a/b\"", "\"\\u20ac\""]).into(),
        3 => b"\"\xff\xfe\"".to_vec(),
        4 => b" [ ] ".to_vec(),
        5 | 6 => {
            let all: Vec<_> = (0..many(rng)).map(|_| json(rng, depth + 1)).collect();
            [b"[", &all.join(&b","[..])[..], b"]"].concat()
        }
        _ => {
            let names = ["\"a\":", "\"b\" : ", "\"a b\":", "\"1\":", "\"\":"];
            let all: Vec<_> =
                (0..many(rng)).map(|_| [pick(rng, &names).as_bytes(), &json(rng, depth + 1)].concat()).collect();
            [b"{", &all.join(&b","[..])[..], b"}"].concat()
        }
    }
}

/// JSON, not all of it valid.
fn any_json(rng: &mut StdRng) -> String {
    if rng.random_bool(0.2) {
        return quoted(pick(rng, &JSON).as_bytes());
    }
    if rng.random_bool(0.02) {
        return format!("nested({})", pick(rng, &["127", "128", "129", "999", "1000", "1001"]));
    }
    let mut text = json(rng, 0);
    if rng.random_bool(0.3) {
        let at = rng.random_range(0..=text.len());
        if rng.random_bool(0.5) && at < text.len() {
            text.remove(at);
        } else {
            text.insert(
                at,
                pick(rng, &["1", ",", "\"", "[", "]", "{", "}", ":", " ", "-", "e", ".", "\\"]).as_bytes()[0],
            );
        }
    }
    quoted(&text)
}

fn struct_call(rng: &mut StdRng) -> String {
    let sizes = ["B", "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8"];
    let format: Vec<_> = (0..rng.random_range(0..5)).map(|_| pick(rng, &sizes)).collect();
    let numbers = rng.random_range(format.len().saturating_sub(1)..=format.len() + 1);
    if rng.random_bool(0.5) {
        let number = |rng: &mut StdRng| match rng.random_range(0..40) {
            0 => quoted(pick(rng, &TEXTS).as_bytes()),
            1 => "nil".to_owned(),
            _ => pick(rng, &NUMBERS).to_owned(),
        };
        let numbers: Vec<_> = (0..numbers).map(|_| format!(",{}", number(rng))).collect();
        return format!("struct.pack('>{}'{})", format.concat(), numbers.concat());
    }
    let text: Vec<u8> = (0..rng.random_range(0..40)).map(|_| rng.random()).collect();
    let start = pick(rng, &["", "", ",1", ",2", ",3", ",9", ",40", ",0", ",-1", ",1.5", ",nil", ",'2'"]);
    format!("struct.unpack('>{}',{}{start})", format.concat(), quoted(&text))
}

fn bit_call(rng: &mut StdRng) -> String {
    let (name, numbers) = match pick(rng, &["band", "bor", "bxor", "bnot", "lshift", "rshift", "tobit"]) {
        name @ ("bnot" | "tobit") => (name, 1),
        name @ ("lshift" | "rshift") => (name, 2),
        name => (name, rng.random_range(0..4)),
    };
    let bits =
        ["2147483647", "2147483648", "-2147483648", "4294967295", "31", "32", "33", "1.5", "-0.5", "'12'", "true"];
    let number = |rng: &mut StdRng| if rng.random_bool(0.5) { pick(rng, &bits) } else { pick(rng, &NUMBERS) };
    let numbers: Vec<_> = (0..numbers).map(|_| number(rng)).collect();
    format!("bit.{name}({})", numbers.join(","))
}

/// A call of a command, with numbers in place of some texts.
fn redis_call(forms: &[&str], rng: &mut StdRng) -> String {
    let command = command(forms, rng);
    let argument = |part: &Vec<u8>, rng: &mut StdRng| {
        if rng.random_bool(0.01) {
            return pick(rng, &["true", "nil", "{}"]).to_owned();
        }
        match &part[..] {
            b"inf" | b"+inf" => return "1/0".to_owned(),
            b"-inf" => return "-1/0".to_owned(),
            _ => {}
        }
        let is_number =
            part.len() < 17 && part.iter().all(u8::is_ascii_digit) && part.first().is_some_and(|one| *one != b'0');
        if is_number && rng.random_bool(0.5) { String::from_utf8_lossy(part).into_owned() } else { quoted(part) }
    };
    let arguments: Vec<_> = command.iter().map(|part| argument(part, rng)).collect();
    let call = format!("redis.{}({})", pick(rng, &["call", "call", "pcall"]), arguments.join(","));
    let is_unordered = [&b"HGETALL"[..], b"HKEYS", b"HVALS", b"HSCAN"].contains(&&command[0][..]);
    if is_unordered { format!("sorted({call})") } else { call }
}

fn expression(forms: &[&str], rng: &mut StdRng) -> String {
    match rng.random_range(0..16) {
        0 => format!("cjson.encode({})", value(rng, 0, true)),
        1 => format!("cjson.decode({})", any_json(rng)),
        2 => format!("cjson.encode(cjson.decode({}))", any_json(rng)),
        3 => {
            let values: Vec<_> = (0..rng.random_range(0..4)).map(|_| value(rng, 0, true)).collect();
            format!("cmsgpack.pack({})", values.join(","))
        }
        4 | 5 => struct_call(rng),
        6 => bit_call(rng),
        7 => {
            let number = if rng.random_bool(0.3) { pick(rng, &WIDE_NUMBERS) } else { pick(rng, &NUMBERS) };
            let format = pick(rng, &["%.17g", "%.14g", "%.0f", "%s"]);
            format!(
                "string.format('{format}', {number}), ({number}) .. '', redis.call('SET', 'k1', {})",
                pick(rng, &NUMBERS)
            )
        }
        8 => {
            let count = pick(rng, &["1000", "7000", "7990", "8000", "9000"]);
            let (command, key) = (pick(rng, &["HMGET", "ZMSCORE", "DEL", "EXISTS", "RPUSH"]), pick(rng, &["k1", "k2"]));
            format!("redis.call('{command}', '{key}', unpack(repeated({count})))")
        }
        _ => redis_call(forms, rng),
    }
}

/// The last statement, which fails in some scripts.
fn ending(forms: &[&str], rng: &mut StdRng) -> String {
    match rng.random_range(0..20) {
        0..4 => format!("return {}", value(rng, 0, false)),
        4 => format!("return {}", redis_call(forms, rng)),
        5 => "return nil + 1".to_owned(),
        6 => "error('failed')".to_owned(),
        7 => "error({ err = 'CODE failed' })".to_owned(),
        8 => "return no_such_global".to_owned(),
        9 => "a_global = 1".to_owned(),
        10 => {
            let text = quoted(pick(rng, &["CODE text", "ONE", "-CODE text", "-ONE", "a b c"]).as_bytes());
            format!(
                "return {}",
                pick(
                    rng,
                    &[
                        "redis.error_reply(?)",
                        "redis.status_reply(?)",
                        "{ err = ? }",
                        "{ ok = ? }",
                        "{ 1, { err = ? } }"
                    ]
                )
            )
            .replace('?', &text)
        }
        11 => format!("return redis.error_reply({})", value(rng, 4, false)),
        12 => "local function deeper(n) return 1 + deeper(n + 1) end return deeper(1)".to_owned(),
        _ => "return replies".to_owned(),
    }
}

pub fn script(rng: &mut StdRng) -> String {
    let forms = forms(rng);
    let mut script = HELPERS.to_owned();
    if is_by_member(&forms) {
        // The scores of former scripts are not equal.
        script.push_str("redis.call('DEL', 'k1', 'k2', 'k3')\n");
    }
    for _ in 0..rng.random_range(1..10) {
        let expression = expression(&forms, rng);
        let _ = writeln!(script, "replies[#replies + 1] = try(function() return {expression} end)");
        if rng.random_bool(0.02) {
            // An error midway, which the script does not catch.
            let _ = writeln!(script, "redis.call('LPOP', redis.call('SET', 'k1', 'x') and 'k1')");
        }
    }
    script + &ending(&forms, rng)
}
