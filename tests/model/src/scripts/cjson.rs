//! The module `cjson`.

use mlua::{Error, LightUserData, Lua, LuaString, Result, Table, Value};
use serde_json::Value as Json;

/// As cjson: deeper values are errors.
const MAX_DEPTH: usize = 1000;

pub fn module(lua: &Lua) -> Result<Table> {
    let module = lua.create_table()?;
    let decode = lua.create_function(|lua, text: LuaString| {
        let text = text.as_bytes();
        let mut reader = serde_json::Deserializer::from_slice(&text).into_iter::<Json>();
        let invalid = || Error::runtime("Expected value but found invalid token");
        let json = reader.next().ok_or_else(invalid)?.map_err(|_| invalid())?;
        if reader.next().is_some() {
            return Err(Error::runtime("Expected the end but found other text"));
        }
        to_lua(lua, &json, 0)
    })?;
    let encode = lua.create_function(|lua, value: Value| {
        let mut text = Vec::new();
        encode(&value, &mut text, 0)?;
        lua.create_string(text)
    })?;
    module.set("decode", decode)?;
    module.set("encode", encode)?;
    module.set("null", null())?;
    Ok(module)
}

fn null() -> Value {
    Value::LightUserData(LightUserData(std::ptr::null_mut()))
}

fn to_lua(lua: &Lua, json: &Json, depth: usize) -> Result<Value> {
    if depth > MAX_DEPTH {
        return Err(Error::runtime("Found too many nested data structures"));
    }
    Ok(match json {
        Json::Null => null(),
        Json::Bool(one) => Value::Boolean(*one),
        Json::Number(number) => Value::Number(number.as_f64().expect("a number")),
        Json::String(text) => Value::String(lua.create_string(text)?),
        Json::Array(all) => {
            let table = lua.create_table()?;
            for (n, one) in all.iter().enumerate() {
                table.raw_set(n + 1, to_lua(lua, one, depth + 1)?)?;
            }
            Value::Table(table)
        }
        Json::Object(fields) => {
            let table = lua.create_table()?;
            for (name, one) in fields {
                table.raw_set(lua.create_string(name)?, to_lua(lua, one, depth + 1)?)?;
            }
            Value::Table(table)
        }
    })
}

fn encode(value: &Value, text: &mut Vec<u8>, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::runtime("Cannot serialise, excessive depth"));
    }
    match value {
        Value::Nil | Value::LightUserData(_) => text.extend_from_slice(b"null"),
        Value::Boolean(one) => text.extend_from_slice(one.to_string().as_bytes()),
        Value::Integer(number) => text.extend_from_slice(number.to_string().as_bytes()),
        Value::Number(number) => text.extend_from_slice(format!("{number}").as_bytes()),
        Value::String(one) => encode_text(&one.as_bytes(), text),
        Value::Table(table) => encode_table(table, text, depth)?,
        _ => return Err(Error::runtime("Cannot serialise this type")),
    }
    Ok(())
}

fn encode_table(table: &Table, text: &mut Vec<u8>, depth: usize) -> Result<()> {
    let len = table.raw_len();
    if len > 0 {
        for n in 1..=len {
            text.push(if n == 1 { b'[' } else { b',' });
            encode(&table.raw_get(n)?, text, depth + 1)?;
        }
        text.push(b']');
        return Ok(());
    }
    let mut separator = b'{';
    for pair in table.pairs::<LuaString, Value>() {
        let (name, value) = pair?;
        text.push(separator);
        separator = b',';
        encode_text(&name.as_bytes(), text);
        text.push(b':');
        encode(&value, text, depth + 1)?;
    }
    if separator == b'{' {
        text.push(b'{');
    }
    text.push(b'}');
    Ok(())
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
