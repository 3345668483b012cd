//! Commands on hashes. Fields are in order of their bytes, where Redis has an order of its own.

use std::collections::BTreeMap;

use super::{Answer, Arguments, SYNTAX, array, integer, wrong_number};
use crate::{keyspace::Keyspace, value::Reply};

type Hash = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn set(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let (key, pairs) = (&arguments[0], &arguments[1..]);
    if pairs.len() % 2 == 1 {
        return Ok(wrong_number("hset"));
    }
    let added = keyspace.change(key, |hash: &mut Hash| {
        let pairs = pairs.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        pairs.filter(|(field, value)| hash.insert(field.clone(), value.clone()).is_none()).count()
    })?;
    Ok(Reply::count(added))
}

pub fn del(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let (key, fields) = (&arguments[0], &arguments[1..]);
    // Without a field to delete nothing is written.
    let Some(hash) = keyspace.read::<Hash>(key)? else { return Ok(Reply::Int(0)) };
    if fields.iter().all(|field| !hash.contains_key(field)) {
        return Ok(Reply::Int(0));
    }
    let deleted = |hash: &mut Hash| fields.iter().filter(|field| hash.remove(*field).is_some()).count();
    Ok(Reply::count(keyspace.change(key, deleted)?))
}

pub fn exists(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::flag(field(keyspace, arguments)?.is_some()))
}

pub fn get(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::optional(field(keyspace, arguments)?))
}

pub fn strlen(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::count(field(keyspace, arguments)?.map_or(0, Vec::len)))
}

fn field<'a>(keyspace: &'a Keyspace, arguments: Arguments) -> Result<Option<&'a Vec<u8>>, String> {
    Ok(keyspace.read::<Hash>(&arguments[0])?.and_then(|hash| hash.get(&arguments[1])))
}

pub fn get_many(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let hash = keyspace.read::<Hash>(&arguments[0])?;
    let value = |field| Reply::optional(hash.and_then(|hash| hash.get(field)));
    Ok(Reply::Array(arguments[1..].iter().map(value).collect()))
}

pub fn len(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::count(keyspace.read::<Hash>(&arguments[0])?.map_or(0, BTreeMap::len)))
}

pub fn all(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let hash = keyspace.read::<Hash>(&arguments[0])?;
    Ok(array(hash.into_iter().flatten().flat_map(|(field, value)| [field.clone(), value.clone()])))
}

pub fn keys(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let hash = keyspace.read::<Hash>(&arguments[0])?;
    Ok(array(hash.into_iter().flat_map(BTreeMap::keys).cloned()))
}

pub fn values(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let hash = keyspace.read::<Hash>(&arguments[0])?;
    Ok(array(hash.into_iter().flat_map(BTreeMap::values).cloned()))
}

/// Returns all fields at once, whatever `COUNT` asks for, as Redis does for a small hash.
pub fn scan(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    // It ends at a zero byte.
    let cursor = arguments[1].split(|byte| *byte == 0).next().unwrap_or_default();
    let digits = match cursor {
        [b'+' | b'-', digits @ ..] if !digits.is_empty() => digits,
        digits => digits,
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err("ERR invalid cursor".into());
    }
    if keyspace.read::<Hash>(&arguments[0])?.is_some() {
        match &arguments[2..] {
            [] => {}
            [name, count] if name.eq_ignore_ascii_case(b"count") && integer(count)? > 0 => {}
            _ => return Err(SYNTAX.into()),
        }
    }
    let all = all(keyspace, &arguments[..1])?;
    Ok(Reply::Array(vec![Reply::bulk("0"), all]))
}
