//! The modules `struct`, `cmsgpack` and `bit`, as far as the scripts use them: big endian unsigned integers, 32 bits.

use std::cmp::Ordering;

use mlua::{Error, Lua, LuaString, MultiValue, Result, Table, Value, Variadic};

use super::{function, number_of};

fn failure(text: &str) -> Error {
    Error::runtime(text)
}

/// The sizes of the integers of a format like `>BI8`.
fn sizes(format: &[u8]) -> Result<Vec<usize>> {
    let rest = format.strip_prefix(b">").ok_or_else(|| failure("only big endian formats are modelled"))?;
    let mut sizes = Vec::new();
    let mut at = 0;
    while at < rest.len() {
        let (size, taken) = match &rest[at..] {
            [b'B', ..] => (1, 1),
            [b'I', digit @ b'1'..=b'8', ..] => (usize::from(digit - b'0'), 2),
            _ => return Err(failure("this format is not modelled")),
        };
        sizes.push(size);
        at += taken;
    }
    Ok(sizes)
}

/// As `(Uinttype)n` for a number that is not negative.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as Redis does it")]
fn unsigned(number: f64) -> u64 {
    if number < 0.0 { number as i64 as u64 } else { number as u64 }
}

#[expect(clippy::cast_precision_loss, reason = "as Redis does it")]
fn number(value: u64) -> f64 {
    value as f64
}

pub fn structs(lua: &Lua) -> Result<Table> {
    let module = lua.create_table()?;
    let pack = function(lua, |lua, (format, numbers): (LuaString, Variadic<Value>)| {
        let mut packed = Vec::new();
        for (n, size) in sizes(&format.as_bytes())?.into_iter().enumerate() {
            let one = numbers.get(n).cloned().and_then(|one| lua.coerce_number(one).ok().flatten());
            let one = one.ok_or_else(|| failure("number expected"))?;
            packed.extend_from_slice(&unsigned(one).to_be_bytes()[8 - size..]);
        }
        lua.create_string(packed)
    })?;
    let unpack = function(lua, |_, (format, text, start): (LuaString, LuaString, Option<f64>)| {
        let text = text.as_bytes();
        #[expect(clippy::cast_possible_truncation, reason = "as Redis does it")]
        let start = start.map_or(1, |start| start as i64);
        if start == 0 {
            return Err(failure("offset must be 1 or greater"));
        }
        let at = usize::try_from(start - 1).ok().filter(|at| *at <= text.len());
        let mut at = at.ok_or_else(|| failure("data string too short"))?;
        let mut values = MultiValue::new();
        for size in sizes(&format.as_bytes())? {
            let bytes =
                text.get(at..).and_then(|rest| rest.get(..size)).ok_or_else(|| failure("data string too short"))?;
            let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
            values.push_back(Value::Number(number(value)));
            at += size;
        }
        #[expect(clippy::cast_precision_loss, reason = "a place in a string")]
        values.push_back(Value::Number((at + 1) as f64));
        Ok(values)
    })?;
    module.set("pack", pack)?;
    module.set("unpack", unpack)?;
    Ok(module)
}

const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// Deeper tables are packed as nil.
const MAX_NESTING: usize = 16;

pub fn messages(lua: &Lua) -> Result<Table> {
    let module = lua.create_table()?;
    let pack = function(lua, |lua, values: MultiValue| {
        if values.is_empty() {
            return Err(failure("MessagePack pack needs input."));
        }
        let mut packed = Vec::new();
        for value in values {
            pack_value(&value, &mut packed, 0)?;
        }
        lua.create_string(packed)
    })?;
    module.set("pack", pack)?;
    Ok(module)
}

fn pack_value(value: &Value, packed: &mut Vec<u8>, level: usize) -> Result<()> {
    match value {
        Value::String(text) => {
            let text = text.as_bytes();
            head(packed, text.len(), (0xa0, 32), Some(0xd9), (0xda, 0xdb));
            packed.extend_from_slice(&text);
        }
        Value::Table(table) if level < MAX_NESTING => pack_table(table, packed, level)?,
        Value::Boolean(one) => packed.push(0xc2 + u8::from(*one)),
        Value::Integer(number) => pack_integer(*number, packed),
        #[expect(clippy::cast_possible_truncation, reason = "checked")]
        Value::Number(number) => {
            let short = *number as f32;
            if number.fract() == 0.0 && (-TWO_TO_63..TWO_TO_63).contains(number) {
                pack_integer(*number as i64, packed);
            } else if f64::from(short).partial_cmp(number) == Some(Ordering::Equal) {
                packed.push(0xca);
                packed.extend_from_slice(&short.to_be_bytes());
            } else {
                packed.push(0xcb);
                packed.extend_from_slice(&number.to_be_bytes());
            }
        }
        _ => packed.push(0xc0),
    }
    Ok(())
}

/// The shortest form of an integer.
fn pack_integer(number: i64, packed: &mut Vec<u8>) {
    let (kind, size) = match number {
        -0x20..=0x7f => (None, 1),
        0x80..=0xff => (Some(0xcc), 1),
        0x100..=0xffff => (Some(0xcd), 2),
        0x1_0000..=0xffff_ffff => (Some(0xce), 4),
        0x1_0000_0000.. => (Some(0xcf), 8),
        -0x80..=-0x21 => (Some(0xd0), 1),
        -0x8000..=-0x81 => (Some(0xd1), 2),
        -0x8000_0000..=-0x8001 => (Some(0xd2), 4),
        _ => (Some(0xd3), 8),
    };
    packed.extend(kind);
    packed.extend_from_slice(&number.to_be_bytes()[8 - size..]);
}

fn pack_table(table: &Table, packed: &mut Vec<u8>, level: usize) -> Result<()> {
    let pairs = table.pairs::<Value, Value>().collect::<Result<Vec<_>>>()?;
    let is_place = |number: f64| number >= 1.0 && number.fract() == 0.0;
    let mut last = pairs.iter().map(|(name, _)| number_of(name).filter(|number| is_place(*number)));
    let last = last.try_fold(0.0, |last: f64, place| place.map(|place| last.max(place)));
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    if last == Some(pairs.len() as f64) {
        head(packed, pairs.len(), (0x90, 16), None, (0xdc, 0xdd));
        for n in 1..=pairs.len() {
            pack_value(&table.raw_get(n)?, packed, level + 1)?;
        }
    } else {
        head(packed, pairs.len(), (0x80, 16), None, (0xde, 0xdf));
        for (name, value) in &pairs {
            pack_value(name, packed, level + 1)?;
            pack_value(value, packed, level + 1)?;
        }
    }
    Ok(())
}

/// Appends the kind and the length of a value.
fn head(packed: &mut Vec<u8>, len: usize, (short, below): (u8, usize), byte: Option<u8>, (two, four): (u8, u8)) {
    let bytes = u32::try_from(len).expect("a short value").to_be_bytes();
    match (len, byte) {
        (_, _) if len < below => packed.push(short | bytes[3]),
        (0..=0xff, Some(byte)) => packed.extend_from_slice(&[byte, bytes[3]]),
        (0..=0xffff, _) => packed.extend_from_slice(&[two, bytes[2], bytes[3]]),
        _ => {
            packed.push(four);
            packed.extend_from_slice(&bytes);
        }
    }
}

pub fn bits(lua: &Lua) -> Result<Table> {
    /// The lowest 32 bits of a number, which is rounded.
    #[expect(clippy::cast_possible_truncation, reason = "as the module does it")]
    fn low(number: f64) -> u32 {
        (number + 6_755_399_441_055_744.0).to_bits() as u32
    }
    /// Results are signed.
    fn result(bits: u32) -> f64 {
        f64::from(bits.cast_signed())
    }
    let module = lua.create_table()?;
    for (name, fold) in [("band", (|a, b| a & b) as fn(u32, u32) -> u32), ("bor", |a, b| a | b), ("bxor", |a, b| a ^ b)]
    {
        let all = function(lua, move |_, (first, others): (f64, Variadic<f64>)| {
            Ok(result(others.iter().copied().map(low).fold(low(first), fold)))
        })?;
        module.set(name, all)?;
    }
    module.set("tobit", function(lua, |_, number: f64| Ok(result(low(number))))?)?;
    module.set("bnot", function(lua, |_, number: f64| Ok(result(!low(number))))?)?;
    let lshift = function(lua, |_, (number, by): (f64, f64)| Ok(result(low(number) << (low(by) & 31))))?;
    module.set("lshift", lshift)?;
    let rshift = function(lua, |_, (number, by): (f64, f64)| Ok(result(low(number) >> (low(by) & 31))))?;
    module.set("rshift", rshift)?;
    Ok(module)
}
