//! Commands on keys of any type, and on strings.
#![allow(clippy::unnecessary_wraps, reason = "all commands have one type")]

use super::{Answer, Arguments};
use crate::{
    keyspace::{Keyspace, Value},
    value::Reply,
};

pub fn del(keyspace: &mut Keyspace, keys: Arguments) -> Answer {
    Ok(Reply::count(keys.iter().filter(|key| keyspace.value(key).is_some() && keyspace.replace(key, None)).count()))
}

pub fn exists(keyspace: &mut Keyspace, keys: Arguments) -> Answer {
    Ok(Reply::count(keys.iter().filter(|key| keyspace.value(key).is_some()).count()))
}

pub fn flush_all(keyspace: &mut Keyspace, _: Arguments) -> Answer {
    for key in keyspace.names().cloned().collect::<Vec<_>>() {
        keyspace.replace(&key, None);
    }
    Ok(Reply::ok())
}

pub fn get(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::optional(keyspace.read::<Vec<u8>>(&arguments[0])?))
}

pub fn get_and_delete(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let reply = get(keyspace, arguments)?;
    del(keyspace, arguments)?;
    Ok(reply)
}

/// No key has a time of expiry.
pub fn persist(_: &mut Keyspace, _: Arguments) -> Answer {
    Ok(Reply::Int(0))
}

pub fn set(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    keyspace.replace(&arguments[0], Some(Value::Text(arguments[1].clone())));
    Ok(Reply::ok())
}

pub fn strlen(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::count(keyspace.read::<Vec<u8>>(&arguments[0])?.map_or(0, Vec::len)))
}

pub fn type_of(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::Status(keyspace.value(&arguments[0]).map_or("none", Value::type_name).to_owned()))
}
