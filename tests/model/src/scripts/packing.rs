//! The modules `struct`, `cmsgpack` and `bit`, as far as the scripts use them: big endian unsigned integers, arrays of
//! strings, 32 bits.

use mlua::{Error, Lua, LuaString, MultiValue, Result, Table, Value, Variadic};

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
    let pack = lua.create_function(|lua, (format, numbers): (LuaString, Variadic<f64>)| {
        let sizes = sizes(&format.as_bytes())?;
        if numbers.len() < sizes.len() {
            return Err(failure("number expected, got no value"));
        }
        let mut packed = Vec::new();
        for (size, one) in sizes.iter().zip(numbers.iter()) {
            packed.extend_from_slice(&unsigned(*one).to_be_bytes()[8 - size..]);
        }
        lua.create_string(packed)
    })?;
    let unpack = lua.create_function(|_, (format, text, start): (LuaString, LuaString, Option<usize>)| {
        let text = text.as_bytes();
        let mut at = start.unwrap_or(1).checked_sub(1).ok_or_else(|| failure("offset must be 1 or greater"))?;
        let mut values = MultiValue::new();
        for size in sizes(&format.as_bytes())? {
            let bytes = text.get(at..at + size).ok_or_else(|| failure("data string too short"))?;
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

pub fn messages(lua: &Lua) -> Result<Table> {
    let module = lua.create_table()?;
    let pack = lua.create_function(|lua, values: MultiValue| {
        let mut packed = Vec::new();
        for value in values {
            pack_value(&value, &mut packed)?;
        }
        lua.create_string(packed)
    })?;
    module.set("pack", pack)?;
    Ok(module)
}

fn pack_value(value: &Value, packed: &mut Vec<u8>) -> Result<()> {
    match value {
        Value::String(text) => {
            let text = text.as_bytes();
            head(packed, text.len(), (0xa0, 32), Some(0xd9), (0xda, 0xdb));
            packed.extend_from_slice(&text);
        }
        Value::Table(table) => {
            let len = table.raw_len();
            head(packed, len, (0x90, 16), None, (0xdc, 0xdd));
            for n in 1..=len {
                pack_value(&table.raw_get(n)?, packed)?;
            }
        }
        _ => return Err(failure("only strings and arrays are modelled")),
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
    /// The lowest 32 bits of a number.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as the module does it")]
    fn low(number: f64) -> u32 {
        number as i64 as u32
    }
    /// Results are signed.
    fn result(bits: u32) -> f64 {
        f64::from(bits.cast_signed())
    }
    let module = lua.create_table()?;
    for (name, fold) in [("band", (|a, b| a & b) as fn(u32, u32) -> u32), ("bor", |a, b| a | b), ("bxor", |a, b| a ^ b)]
    {
        let all = lua.create_function(move |_, numbers: Variadic<f64>| {
            Ok(numbers.iter().copied().map(low).reduce(fold).map(result))
        })?;
        module.set(name, all)?;
    }
    module.set("bnot", lua.create_function(|_, number: f64| Ok(result(!low(number))))?)?;
    module
        .set("lshift", lua.create_function(|_, (number, by): (f64, f64)| Ok(result(low(number) << (low(by) & 31))))?)?;
    module
        .set("rshift", lua.create_function(|_, (number, by): (f64, f64)| Ok(result(low(number) >> (low(by) & 31))))?)?;
    Ok(module)
}
