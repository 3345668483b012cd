//! Lua scripts, with the modules that Redis gives them.

mod cjson;
mod packing;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use parking_lot::Mutex;

use crate::{server::Host, value::Reply};

/// Gives scripts the module `redis`, over the function `execute`, and refuses globals as Redis does. Returns the function
/// that runs a script.
const PRELUDE: &str = r"
local execute = ...
redis = {
  pcall = execute,
  call = function(...)
    local reply = execute(...)
    if type(reply) == 'table' and reply.err then error(reply, 0) end
    return reply
  end,
  error_reply = function(text) return { err = text } end,
  status_reply = function(text) return { ok = text } end,
}
bit = {
  tobit = bits.band, band = bits.band, bor = bits.bor, bxor = bits.bxor, bnot = bits.bnot, lshift = bits.lshift,
  rshift = bits.rshift,
}
bits = nil
local pcall, rawset, globals = pcall, rawset, _G
setmetatable(_G, {
  __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. tostring(name), 2) end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})
return function(script, keys, arguments)
  rawset(globals, 'KEYS', keys)
  rawset(globals, 'ARGV', arguments)
  return pcall(script)
end
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

/// Bytes that become a string of Lua.
struct Text<'a>(&'a [u8]);

impl mlua::IntoLua for Text<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        lua.create_string(self.0).map(Value::String)
    }
}

fn prepare(lua: &Lua, host: &Arc<Mutex<Host>>) -> mlua::Result<Function> {
    let host = Arc::clone(host);
    let execute = lua.create_function(move |lua, arguments: MultiValue| {
        let mut command = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let Some(text) = text_of(&argument) else {
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
    globals.set("bits", packing::bits(lua)?)?;
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
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(number) => Some(number_text(*number)),
        _ => None,
    }
}

/// A number as `%.17g` writes it, as far as scripts pass any.
fn number_text(number: f64) -> Vec<u8> {
    if number.is_infinite() {
        return if number > 0.0 { b"inf".to_vec() } else { b"-inf".to_vec() };
    }
    format!("{number}").into_bytes()
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
        Reply::Array(all) => {
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
        return Reply::Error(text.strip_prefix('-').unwrap_or(&text).to_owned());
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
