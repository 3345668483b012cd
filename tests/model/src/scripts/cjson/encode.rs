//! Values of Lua as JSON.

use mlua::{Error, Result, Table, Value};

use super::MAX_DEPTH;
use crate::{number, scripts::number_of};

/// An array with a higher last place is an error if more than half of its places are empty.
const MAX_SPARSE: usize = 10;

pub fn encode(value: &Value, text: &mut Vec<u8>, depth: usize) -> Result<()> {
    match value {
        Value::Nil => text.extend_from_slice(b"null"),
        Value::LightUserData(pointer) if pointer.0.is_null() => text.extend_from_slice(b"null"),
        Value::Boolean(one) => text.extend_from_slice(one.to_string().as_bytes()),
        Value::Integer(_) | Value::Number(_) => encode_number(number_of(value).expect("a number"), text)?,
        Value::String(one) => encode_text(&one.as_bytes(), text),
        Value::Table(table) => encode_table(table, text, depth + 1)?,
        _ => return Err(Error::runtime(format!("Cannot serialise {}: type not supported", value.type_name()))),
    }
    Ok(())
}

fn encode_number(number: f64, text: &mut Vec<u8>) -> Result<()> {
    if !number.is_finite() {
        return Err(Error::runtime("Cannot serialise number: must not be NaN or Inf"));
    }
    text.extend_from_slice(number::text(number, 14).as_bytes());
    Ok(())
}

fn encode_table(table: &Table, text: &mut Vec<u8>, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::runtime(format!("Cannot serialise, excessive depth ({depth})")));
    }
    let len = array_len(table)?;
    if len > 0 {
        for n in 1..=len {
            text.push(if n == 1 { b'[' } else { b',' });
            encode(&table.raw_get(n)?, text, depth)?;
        }
        text.push(b']');
        return Ok(());
    }
    text.push(b'{');
    let mut is_first = true;
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair?;
        if !is_first {
            text.push(b',');
        }
        is_first = false;
        match name {
            Value::String(name) => encode_text(&name.as_bytes(), text),
            Value::Integer(_) | Value::Number(_) => {
                text.push(b'"');
                encode_number(number_of(&name).expect("a number"), text)?;
                text.push(b'"');
            }
            other => {
                let kind = other.type_name();
                return Err(Error::runtime(format!("Cannot serialise {kind}: table key must be a number or string")));
            }
        }
        text.push(b':');
        encode(&value, text, depth)?;
    }
    text.push(b'}');
    Ok(())
}

/// The last place of an array; 0: an object.
fn array_len(table: &Table) -> Result<usize> {
    let (mut last, mut places) = (0, 0);
    for pair in table.pairs::<Value, Value>() {
        let (name, _) = pair?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place")]
        match number_of(&name) {
            Some(place) if place.fract() == 0.0 && place >= 1.0 => {
                last = last.max(place as usize);
            }
            _ => return Ok(0),
        }
        places += 1;
    }
    if last > places * 2 && last > MAX_SPARSE {
        return Err(Error::runtime("Cannot serialise table: excessively sparse array"));
    }
    Ok(last)
}

/// Escapes as cjson does, `/` and DEL too. Bytes beyond ASCII are kept.
fn encode_text(bytes: &[u8], text: &mut Vec<u8>) {
    text.push(b'"');
    for byte in bytes {
        match byte {
            b'"' | b'\\' | b'/' => text.extend_from_slice(&[b'\\', *byte]),
            b'\x08' => text.extend_from_slice(b"\\b"),
            b'\x0c' => text.extend_from_slice(b"\\f"),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\t' => text.extend_from_slice(b"\\t"),
            0..=31 | 127 => text.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => text.push(*byte),
        }
    }
    text.push(b'"');
}
