//! The module `cjson`. Hexadecimal numbers are not modelled.

mod decode;
mod encode;

use mlua::{LightUserData, Lua, LuaString, Result, Table, Value};

use super::function;

/// Maximum number of values in each other.
const MAX_DEPTH: usize = 1000;

pub fn module(lua: &Lua) -> Result<Table> {
    let module = lua.create_table()?;
    module.set("decode", function(lua, |lua, text: LuaString| decode::decode(lua, &text.as_bytes()))?)?;
    let encode = function(lua, |lua, value: Value| {
        let mut text = Vec::new();
        encode::encode(&value, &mut text, 0)?;
        lua.create_string(text)
    })?;
    module.set("encode", encode)?;
    module.set("null", null())?;
    Ok(module)
}

fn null() -> Value {
    Value::LightUserData(LightUserData(std::ptr::null_mut()))
}
