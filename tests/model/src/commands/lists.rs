//! Commands on lists.

use std::collections::VecDeque;

use super::{Answer, Arguments, array, integer, places};
use crate::{
    keyspace::{Keyspace, Value},
    value::Reply,
};

type List = VecDeque<Vec<u8>>;

pub fn push_right(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let pushed = keyspace.change(&arguments[0], |list: &mut List| {
        list.extend(arguments[1..].iter().cloned());
        list.len()
    })?;
    Ok(Reply::count(pushed))
}

pub fn push_left(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let pushed = keyspace.change(&arguments[0], |list: &mut List| {
        arguments[1..].iter().for_each(|value| list.push_front(value.clone()));
        list.len()
    })?;
    Ok(Reply::count(pushed))
}

pub fn pop_left(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    pop(keyspace, arguments, VecDeque::pop_front)
}

pub fn pop_right(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    pop(keyspace, arguments, VecDeque::pop_back)
}

fn pop(keyspace: &mut Keyspace, arguments: Arguments, pop: fn(&mut List) -> Option<Vec<u8>>) -> Answer {
    if keyspace.read::<List>(&arguments[0])?.is_none() {
        return Ok(Reply::Nil);
    }
    Ok(Reply::optional(keyspace.change(&arguments[0], pop)?.as_ref()))
}

pub fn len(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    Ok(Reply::count(keyspace.read::<List>(&arguments[0])?.map_or(0, VecDeque::len)))
}

pub fn index(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    let Some(list) = keyspace.read::<List>(&arguments[0])? else { return Ok(Reply::Nil) };
    let number = integer(&arguments[1])?;
    let len = i64::try_from(list.len()).expect("a small number");
    let place = if number < 0 { len.saturating_add(number) } else { number };
    Ok(Reply::optional(usize::try_from(place).ok().and_then(|place| list.get(place))))
}

pub fn range(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    for place in &arguments[1..] {
        integer(place)?;
    }
    let Some(list) = keyspace.read::<List>(&arguments[0])? else { return Ok(array([])) };
    let places = places(list.len(), &arguments[1], &arguments[2])?;
    Ok(array(list.range(places).cloned()))
}

pub fn trim(keyspace: &mut Keyspace, arguments: Arguments) -> Answer {
    for place in &arguments[1..] {
        integer(place)?;
    }
    let Some(list) = keyspace.read::<List>(&arguments[0])? else { return Ok(Reply::ok()) };
    let places = places(list.len(), &arguments[1], &arguments[2])?;
    if places != (0..list.len()) {
        let kept: List = list.range(places).cloned().collect();
        keyspace.replace(&arguments[0], (!kept.is_empty()).then_some(Value::List(kept)));
    }
    Ok(Reply::ok())
}
