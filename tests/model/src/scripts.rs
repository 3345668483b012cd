//! Lua scripts, with the modules that Redis gives them.

mod cjson;
mod packing;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use parking_lot::Mutex;

use crate::{number, server::Host, value::Reply};

/// Gives scripts the module `redis`, over the function `execute`, and refuses globals as Redis does. Returns the function
/// that runs a script.
const PRELUDE: &str = r"
local execute = ...
redis = {
  -- A table: a function in Rust has less room for arguments than one of Redis.
  pcall = function(...) return execute(select('#', ...), { ... }) end,
  call = function(...)
    local reply = execute(select('#', ...), { ... })
    if type(reply) == 'table' and reply.err then error(reply, 0) end
    return reply
  end,
  error_reply = function(...)
    local text = ...
    if select('#', ...) ~= 1 or type(text) ~= 'string' then return { err = 'ERR wrong number or type of arguments' } end
    text = string.gsub(text, '^%-', '')
    return { err = string.find(text, ' ', 1, true) and text or 'ERR ' .. text }
  end,
  status_reply = function(...)
    local text = ...
    if select('#', ...) ~= 1 or type(text) ~= 'string' then return { err = 'ERR wrong number or type of arguments' } end
    return { ok = text }
  end,
}
-- An error of a command is a table, of which `pcall` returns the text.
local plain_pcall, type = pcall, type
local function with_text(is_done, result, ...)
  if not is_done and type(result) == 'table' and type(result.err) == 'string' then result = result.err end
  return is_done, result, ...
end
pcall = function(...) return with_text(plain_pcall(...)) end
local rawset, globals = rawset, _G
setmetatable(_G, {
  __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. tostring(name), 2) end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})
return function(script, keys, arguments)
  rawset(globals, 'KEYS', keys)
  rawset(globals, 'ARGV', arguments)
  return plain_pcall(script)
end
";

/// Raises the text that a function returns first.
const RAISE: &str = r"
local run = ...
local function finish(text, ...)
  if text then error(text, 0) end
  return ...
end
return function(...) return finish(run(...)) end
";

/// The names of scripts by their text: servers of one process load the same scripts.
static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(Mutex::default);

type Names = HashMap<Arc<[u8]>, Arc<str>>;

/// The scripts that were loaded.
pub struct Scripts {
    lua: Lua,
    run: Function,
    loaded: HashMap<Arc<str>, Loaded>,
}

struct Loaded {
    /// Compiled at its first run.
    function: Option<Function>,
    code: Arc<[u8]>,
    /// Number of commands in its last run.
    commands: u32,
}

impl Scripts {
    pub fn new(host: &Arc<Mutex<Host>>) -> Self {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::new()).expect("Lua");
        let run = prepare(&lua, host).expect("the prelude is valid");
        Self { lua, run, loaded: HashMap::new() }
    }

    /// Returns the name of a script, the SHA-1 of its text.
    pub fn load(&mut self, code: &[u8]) -> Arc<str> {
        let mut names = NAMES.lock();
        let (code, name) = if let Some((code, name)) = names.get_key_value(code) {
            (code.clone(), name.clone())
        } else {
            let name: Arc<str> = sha1_smol::Sha1::from(code).hexdigest().into();
            let code: Arc<[u8]> = code.into();
            names.insert(code.clone(), name.clone());
            (code, name)
        };
        self.loaded.entry(name.clone()).or_insert(Loaded { function: None, code, commands: 0 });
        name
    }

    pub fn is_loaded(&self, name: &str) -> bool {
        self.loaded.contains_key(name)
    }

    pub fn flush(&mut self) {
        self.loaded.clear();
    }

    /// Number of commands in the last run of a script.
    pub fn commands(&self, name: &str) -> u32 {
        self.loaded.get(name).map_or(0, |script| script.commands)
    }

    /// Runs a loaded script.
    pub fn run(&mut self, name: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>], host: &Mutex<Host>) -> Reply {
        let Some(script) = self.loaded.get_mut(name) else {
            return Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        };
        let function = match &script.function {
            Some(function) => function,
            None => match self.lua.load(&script.code[..]).set_name("@user_script").into_function() {
                Ok(function) => script.function.insert(function),
                Err(error) => return Reply::Error(format!("ERR Error compiling script: {error}")),
            },
        };
        host.lock().begin_script();
        let array = |values: &[Vec<u8>]| self.lua.create_sequence_from(values.iter().map(|one| Text(one)));
        let result = array(keys).and_then(|keys| {
            let arguments = array(arguments)?;
            self.run.call::<(bool, Value)>((function, keys, arguments))
        });
        script.commands = host.lock().end_script();
        match result {
            Ok((true, value)) => reply_of(&value),
            Ok((false, error)) => Reply::Error(error_text(&error, name)),
            Err(error) => Reply::Error(format!("ERR {error} script: {name}, on @user_script:0.")),
        }
    }
}

/// A function of Lua. Its errors are texts, as those of functions in C are.
fn function<A: FromLuaMulti, R: IntoLuaMulti>(
    lua: &Lua,
    run: impl Fn(&Lua, A) -> mlua::Result<R> + Send + 'static,
) -> mlua::Result<Function> {
    // Returns the text of an error, or nil and the results.
    let run = lua.create_function(move |lua, arguments: MultiValue| {
        let result = A::from_lua_multi(arguments, lua).and_then(|arguments| run(lua, arguments)?.into_lua_multi(lua));
        Ok(match result {
            Ok(mut results) => {
                results.push_front(Value::Nil);
                results
            }
            Err(error) => MultiValue::from_iter([Value::String(lua.create_string(error.to_string())?)]),
        })
    })?;
    lua.load(RAISE).set_name("@raise").call(run)
}

/// Bytes that become a string of Lua.
struct Text<'a>(&'a [u8]);

impl mlua::IntoLua for Text<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        lua.create_string(self.0).map(Value::String)
    }
}

fn prepare(lua: &Lua, host: &Arc<Mutex<Host>>) -> mlua::Result<Function> {
    let host = Arc::clone(host);
    let execute = lua.create_function(move |lua, (count, arguments): (usize, Table)| {
        let mut command = Vec::with_capacity(count);
        for n in 1..=count {
            let Some(text) = text_of(&arguments.raw_get(n)?) else {
                let text = "ERR Lua redis lib command arguments must be strings or integers";
                return value_of(lua, &Reply::error(text));
            };
            command.push(text);
        }
        let reply = host.lock().execute_in_script(&command);
        value_of(lua, &reply)
    })?;
    let globals = lua.globals();
    globals.set("struct", packing::structs(lua)?)?;
    globals.set("cmsgpack", packing::messages(lua)?)?;
    globals.set("bit", packing::bits(lua)?)?;
    globals.set("cjson", cjson::module(lua)?)?;
    for name in ["dofile", "loadfile", "print", "require", "module", "package"] {
        globals.set(name, Value::Nil)?;
    }
    lua.load(PRELUDE).set_name("@prelude").call(execute)
}

/// The text of an argument of a command.
fn text_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        _ => number_of(value).map(|number| number::text(number, 17).into_bytes()),
    }
}

/// A number of Lua 5.1, where all numbers are doubles.
fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(as_number(*number)),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

/// The reply as a value of Lua.
fn value_of(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let single = |name: &str, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(name, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Int(number) => Value::Number(as_number(*number)),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Status(text) => return single("ok", text),
        Reply::Error(text) => return single("err", text),
        Reply::Array(all) | Reply::Push(all) => {
            let table = lua.create_table_with_capacity(all.len(), 0)?;
            for (n, one) in all.iter().enumerate() {
                table.raw_set(n + 1, value_of(lua, one)?)?;
            }
            Value::Table(table)
        }
    })
}

/// Lua 5.1 has no integers.
#[expect(clippy::cast_precision_loss, reason = "as Redis does it")]
fn as_number(number: i64) -> f64 {
    number as f64
}

/// The value that a script returned as a reply.
fn reply_of(value: &Value) -> Reply {
    match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Int(*number),
        #[expect(clippy::cast_possible_truncation, reason = "as Redis does it")]
        Value::Number(number) => Reply::Int(*number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => of_table(table),
        _ => Reply::Nil,
    }
}

fn of_table(table: &Table) -> Reply {
    let field = |name: &str| match table.raw_get::<Value>(name) {
        Ok(Value::String(text)) => Some(text.to_string_lossy()),
        _ => None,
    };
    if let Some(text) = field("err") {
        return Reply::Error(text);
    }
    if let Some(text) = field("ok") {
        return Reply::Status(text);
    }
    let mut all = Vec::new();
    for n in 1.. {
        match table.raw_get::<Value>(n) {
            Ok(Value::Nil) | Err(_) => break,
            Ok(value) => all.push(reply_of(&value)),
        }
    }
    Reply::Array(all)
}

/// The text of the error reply for a script that failed.
fn error_text(error: &Value, name: &str) -> String {
    let text = match error {
        Value::Table(table) => table.raw_get::<mlua::LuaString>("err").map(|text| text.to_string_lossy()).ok(),
        Value::String(text) => Some(format!("ERR {}", text.to_string_lossy())),
        Value::Error(error) => Some(format!("ERR {}", error.to_string().lines().next().unwrap_or_default())),
        _ => None,
    };
    let text = text.unwrap_or_else(|| "ERR unknown error".to_owned());
    format!("{text} script: {name}, on @user_script:0.")
}
