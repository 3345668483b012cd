//! Which server of a cluster has which hash slots.

use std::{collections::BTreeSet, sync::Arc};

use redis::Value;

use super::ServerAddress;
use crate::store::StoreError;

/// Number of slots of a cluster.
const SLOTS: u16 = 16384;

/// The slot of a key: of its hash tag, if it has one that is not empty.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, as the cluster specification of Redis names it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        (0..8).fold(crc ^ u16::from(*byte) << 8, shift)
    })
}

/// The primary of each slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap(Vec<Option<Arc<ServerAddress>>>);

impl Default for SlotMap {
    fn default() -> Self {
        Self(vec![None; usize::from(SLOTS)])
    }
}

impl SlotMap {
    /// Parses the answer of `CLUSTER SLOTS`. `asked`: the host of the server that answered, used if the answer names no
    /// host.
    ///
    /// # Errors
    /// `Unavailable`: the answer has another form.
    pub fn parse(answer: &Value, asked: &str) -> Result<Self, StoreError> {
        let mut map = Self::default();
        let ranges = items(answer).ok_or_else(|| unexpected(answer))?;
        for range in ranges {
            let [first, last, primary, ..] = items(range).ok_or_else(|| unexpected(range))? else {
                return Err(unexpected(range));
            };
            let [host, port, ..] = items(primary).ok_or_else(|| unexpected(range))? else {
                return Err(unexpected(range));
            };
            let (Value::Int(first), Value::Int(last), Value::Int(port)) = (first, last, port) else {
                return Err(unexpected(range));
            };
            let host = match host {
                Value::Nil => String::new(),
                host => redis::from_redis_value_ref(host).map_err(|_| unexpected(range))?,
            };
            let place = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS).map(usize::from);
            let (Some(first), Some(last), Ok(port)) = (place(first), place(last), u16::try_from(*port)) else {
                return Err(unexpected(range));
            };
            // Redis shows `?` for a server that should have a name but has none.
            if host != "?" && first <= last {
                let host = if host.is_empty() { asked.to_owned() } else { host };
                map.0[first..=last].fill(Some(Arc::new(ServerAddress { host, port })));
            }
        }
        Ok(map)
    }

    pub fn owner(&self, slot: u16) -> Option<&Arc<ServerAddress>> {
        self.0.get(usize::from(slot))?.as_ref()
    }

    /// A copy of the map in which `owner` has `slot`. `None` if the slot does not exist.
    pub fn with(&self, slot: u16, owner: ServerAddress) -> Option<Self> {
        let mut map = self.clone();
        *map.0.get_mut(usize::from(slot))? = Some(Arc::new(owner));
        Some(map)
    }

    /// The servers that have a slot.
    pub fn primaries(&self) -> BTreeSet<Arc<ServerAddress>> {
        let mut primaries = BTreeSet::new();
        let mut last: Option<&Arc<ServerAddress>> = None;
        for owner in self.0.iter().flatten() {
            if last.is_none_or(|last| last != owner) {
                primaries.insert(owner.clone());
                last = Some(owner);
            }
        }
        primaries
    }
}

fn items(value: &Value) -> Option<&[Value]> {
    if let Value::Array(items) = value { Some(items) } else { None }
}

fn unexpected(value: &Value) -> StoreError {
    StoreError::Unavailable { kind: "reply", text: format!("{value:?} instead of the slots of a cluster") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_of_its_hash_tag() {
        // As `CLUSTER KEYSLOT` answers.
        for (key, slot) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("{user1000}.following", 3443),
            ("{user1000}.followers", 3443),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("", 0),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn the_owner_of_a_slot_is_its_primary_or_the_server_that_was_asked() {
        let server = |host: &str, port| Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)]);
        let range =
            |first, last, servers: &[Value]| Value::Array([&[Value::Int(first), Value::Int(last)], servers].concat());
        let answer = Value::Array(vec![
            range(0, 99, &[server("10.0.0.1", 1), server("10.0.0.9", 9)]),
            range(100, 100, &[server("", 2)]),
            range(200, 16383, &[server("?", 3)]),
        ]);
        let map = SlotMap::parse(&answer, "asked").unwrap();
        let owner = |map: &SlotMap, slot| map.owner(slot).map(ToString::to_string);
        assert_eq!(owner(&map, 99).as_deref(), Some("10.0.0.1:1"));
        assert_eq!(owner(&map, 100).as_deref(), Some("asked:2"));
        assert_eq!((owner(&map, 101), owner(&map, 16383)), (None, None));
        let other = map.with(101, ServerAddress { host: "::1".into(), port: 3 }).unwrap();
        assert_eq!(owner(&other, 101).as_deref(), Some("[::1]:3"));
        assert_eq!(map.primaries().len(), 2);
        for wrong in
            [Value::Nil, Value::Array(vec![Value::Int(1)]), Value::Array(vec![range(0, 16384, &[server("a", 1)])])]
        {
            assert!(SlotMap::parse(&wrong, "asked").is_err(), "{wrong:?}");
        }
    }
}
