//! Replies and keys of both servers in one form.

use std::collections::BTreeMap;

use punctual_model::{Keyspace, Reply, Value as Key};
use redis::{Value, aio::MultiplexedConnection};

/// A reply in a form that does not depend on the order of fields nor on the text of an error.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    Nil,
    Int(i64),
    Text(String),
    Status(String),
    /// With its code.
    Error(String),
    Array(Vec<Shown>),
}

/// Each byte as one character.
fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

impl From<&Reply> for Shown {
    fn from(reply: &Reply) -> Self {
        match reply {
            Reply::Nil => Self::Nil,
            Reply::Int(number) => Self::Int(*number),
            Reply::Bulk(bytes) => Self::Text(text(bytes)),
            Reply::Status(status) => Self::Status(status.replace(['\r', '\n'], " ")),
            Reply::Error(error) => Self::Error(error.split(' ').next().unwrap_or_default().to_owned()),
            Reply::Array(all) | Reply::Push(all) => {
                let all: Vec<_> = all.iter().map(Self::from).collect();
                // The client returns an error in an array in place of the array.
                let error = all.iter().find(|one| matches!(one, Self::Error(_))).cloned();
                error.unwrap_or(Self::Array(all))
            }
        }
    }
}

impl From<Value> for Shown {
    fn from(value: Value) -> Self {
        match value {
            Value::Nil => Self::Nil,
            Value::Int(number) => Self::Int(number),
            Value::BulkString(bytes) => Self::Text(text(&bytes)),
            Value::SimpleString(status) => Self::Status(status),
            Value::Okay => Self::Status("OK".to_owned()),
            Value::Array(all) => Self::Array(all.into_iter().map(Self::from).collect()),
            Value::ServerError(error) => Self::Error(error.code().to_owned()),
            other => panic!("{other:?}"),
        }
    }
}

impl Shown {
    pub async fn on_redis(connection: &mut MultiplexedConnection, command: &[Vec<u8>]) -> Self {
        let mut sent = redis::Cmd::new();
        for part in command {
            sent.arg(&part[..]);
        }
        match sent.query_async::<Value>(connection).await {
            Ok(value) => value.into(),
            Err(error) => {
                assert!(!error.is_io_error(), "{error}: {}", command.iter().map(|part| text(part)).collect::<String>());
                Self::Error(error.code().unwrap_or("ERR").to_owned())
            }
        }
    }

    /// Sorts the fields of commands that return them in an order of Redis' own.
    pub fn ordered(self, command: &[Vec<u8>]) -> Self {
        match (&command[0][..], self) {
            (b"HGETALL", Self::Array(all)) => Self::pairs(&all),
            (b"HKEYS" | b"HVALS", Self::Array(mut all)) => {
                all.sort_by_key(|one| format!("{one:?}"));
                Self::Array(all)
            }
            (b"HSCAN", Self::Array(mut parts)) => {
                if let Some(Self::Array(all)) = parts.get(1) {
                    parts[1] = Self::pairs(all);
                }
                Self::Array(parts)
            }
            (_, other) => other,
        }
    }

    fn pairs(all: &[Self]) -> Self {
        let mut pairs: Vec<_> = all.chunks(2).map(<[Self]>::to_vec).collect();
        pairs.sort_by_key(|pair| format!("{pair:?}"));
        Self::Array(pairs.concat())
    }
}

/// Types and contents by key.
pub type Contents = BTreeMap<String, (String, Shown)>;

/// All keys of Redis.
pub async fn contents(connection: &mut MultiplexedConnection) -> Contents {
    let mut found = Contents::new();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(connection).await.expect("the server answers");
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query_async(connection).await.expect("the server answers");
        let (name, rest): (_, &[&str]) = match kind.as_str() {
            "string" => ("GET", &[]),
            "hash" => ("HGETALL", &[]),
            "list" => ("LRANGE", &["0", "-1"]),
            "zset" => ("ZRANGE", &["0", "-1", "WITHSCORES"]),
            other => panic!("a key of type {other}"),
        };
        let read: Vec<_> = [name.as_bytes(), &key].into_iter().chain(rest.iter().map(|one| one.as_bytes())).collect();
        let read: Vec<_> = read.into_iter().map(<[u8]>::to_vec).collect();
        found.insert(text(&key), (kind, Shown::on_redis(connection, &read).await.ordered(&read)));
    }
    found
}

/// All keys of the model.
pub fn contents_of_model(keys: &Keyspace) -> Contents {
    let bulk = |bytes: &Vec<u8>| Shown::Text(text(bytes));
    let shown = |key: &Key| match key {
        Key::Text(bytes) => bulk(bytes),
        Key::Hash(fields) => {
            let all: Vec<_> = fields.iter().flat_map(|(name, value)| [bulk(name), bulk(value)]).collect();
            Shown::pairs(&all)
        }
        Key::List(values) => Shown::Array(values.iter().map(bulk).collect()),
        Key::Sorted(members) => {
            Shown::Array(members.iter().flat_map(|(member, score)| [bulk(member), bulk(&score.text())]).collect())
        }
    };
    let of = |name: &Vec<u8>| {
        let key = keys.value(name).expect("it was listed");
        (text(name), (key.type_name().to_owned(), shown(key)))
    };
    keys.names().map(of).collect()
}
