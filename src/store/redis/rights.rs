//! Checks whether the user can call every command that scripts and sinks on Redis use.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use redis::{Cmd, cmd};

use super::{
    ExternalPlace, RedisStore,
    connection::{Connection, is_denied, is_denied_key},
    keys::PartitionKeys,
    safety::SafetyError,
    script,
};
use crate::store::{Partition, StoreError};

/// Route in the tested key if there are no routes. No route has a blank in its name.
const NO_ROUTE: &str = "no route";

impl RedisStore {
    /// Tries each command in a form that changes nothing; one call, on a cluster one to each primary. A script that
    /// lacks one of its rights changes nothing, so without this check messages would wait silently.
    ///
    /// # Errors
    /// `Denied` names the commands.
    pub async fn check_rights(&self) -> Result<(), SafetyError> {
        let mut keys: Vec<PartitionKeys> = self.one_on_each().map(|(_, keys)| keys.clone()).collect();
        if keys.is_empty() {
            keys.push(PartitionKeys::new(&self.prefix, &Partition { route: NO_ROUTE.into(), index: 0, count: 1 }));
        }
        let ask =
            async |keys: &PartitionKeys| script::RIGHTS.keys(&[&keys.rights]).run::<Vec<String>>(&self.servers).await;
        let mut denied: Vec<String> = try_join_all(keys.iter().map(ask)).await?.concat();
        denied.sort();
        denied.dedup();
        if denied.is_empty() { Ok(()) } else { Err(SafetyError::Denied { rights: format!("+{}", denied.join(" +")) }) }
    }
}

/// A command on a key of other programs, with the arguments after the key.
type Form = (&'static str, &'static [&'static str]);

const PUSH: &[Form] = &[("TYPE", &[]), ("RPUSH", &[""])];
/// The undo of a push that is part of a script.
const TRIM: &[Form] = &[("LTRIM", &["0", "0"])];
const SORTED_SET: &[Form] = &[
    ("TYPE", &[]),
    ("ZCARD", &[]),
    ("ZRANGEBYSCORE", &["0", "0"]),
    ("ZMSCORE", &[""]),
    ("ZREM", &[""]),
    ("ZADD", &["0", ""]),
];
const SCAN: &[Form] = &[("ZSCAN", &["0"])];
const HASH: &[Form] = &[("TYPE", &[]), ("HLEN", &[]), ("HKEYS", &[]), ("HVALS", &[]), ("HSTRLEN", &[""]), ("DEL", &[])];
const READY_LIST: &[Form] = &[("LLEN", &[]), ("LRANGE", &["0", "0"])];
const COUNTS: &[Form] = &[("HMGET", &[""]), ("HDEL", &[""]), ("HSET", &["", ""])];
const BODY: &[Form] = &[("TYPE", &[]), ("STRLEN", &[]), ("GET", &[]), ("DEL", &[]), ("PERSIST", &[])];

/// Checks the rights to push into a list; `None` if its key depends on the message. `is_own`: a script on the queue's
/// Redis pushes.
///
/// # Errors
/// `Denied` names the missing rights.
pub async fn check_list(connection: &Connection, list: Option<&str>, is_own: bool) -> Result<(), SafetyError> {
    let list = list.unwrap_or_default().as_bytes().to_vec();
    let parts = [(list.clone(), PUSH), (list, if is_own { TRIM } else { &[] })];
    check(connection, &parts).await
}

/// Checks the rights to move messages out of this place. A prefix of many keys is checked with the key that ends with
/// `*`, which is also the pattern that grants the right to all of them.
///
/// # Errors
/// `Denied` names the missing rights.
pub async fn check_place(connection: &Connection, place: &ExternalPlace) -> Result<(), SafetyError> {
    let part = |key: &str, forms: &'static [Form]| (key.as_bytes().to_vec(), forms);
    let parts = match place {
        ExternalPlace::Members { key, .. } => vec![part(key, SORTED_SET)],
        ExternalPlace::Hashes { key, prefix, .. } => vec![part(key, SORTED_SET), part(&format!("{prefix}*"), HASH)],
        ExternalPlace::DelayQueue(keys) => {
            let sets =
                [&keys.pending, &keys.unack].into_iter().flat_map(|key| [part(key, SORTED_SET), part(key, SCAN)]);
            let lists = [&keys.ready, &keys.retry]
                .into_iter()
                .flat_map(|key| [part(key, PUSH), part(key, TRIM), part(key, READY_LIST)]);
            let others = [part(&keys.counts, COUNTS), (keys.body(b"*"), BODY)];
            sets.chain(lists).chain(others).collect()
        }
    };
    check(connection, &parts).await
}

/// An unknown key is empty: only the rights to its commands are checked. Redis checks the right to a command before the
/// right to its key. Rights that cannot be tested are named, too, so that one check names all that are missing.
async fn check(connection: &Connection, parts: &[(Vec<u8>, &[Form])]) -> Result<(), SafetyError> {
    let forms = || parts.iter().flat_map(|(key, forms)| forms.iter().map(move |form| (key, form)));
    let commands: Vec<Cmd> =
        forms().map(|(key, (name, arguments))| cmd(name).arg(&key[..]).arg(*arguments).clone()).collect();
    let (mut denied, mut refused, mut permitted) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let refusals = match connection.rehearse(&commands).await {
        Ok(refusals) => refusals,
        Err(error @ StoreError::Unavailable { kind: "noperm", .. }) => {
            denied.insert("+multi".to_owned());
            vec![Some(error); commands.len()]
        }
        // A server without transactions.
        Err(error) if is_denied(&error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for ((key, (name, _)), refusal) in forms().zip(refusals) {
        match refusal {
            Some(error) if is_denied_key(&error) => drop(refused.insert(key)),
            Some(error) if is_denied(&error) => drop(denied.insert(format!("+{}", name.to_lowercase()))),
            // None, or a state of the server.
            _ => drop(permitted.insert(key)),
        }
    }
    let keys = parts.iter().map(|(key, _)| key).filter(|key| refused.contains(key) || !permitted.contains(key));
    denied.extend(keys.filter(|key| !key.is_empty()).map(|key| format!("~{}", key.escape_ascii())));
    let rights = denied.into_iter().collect::<Vec<_>>().join(" ");
    if rights.is_empty() { Ok(()) } else { Err(SafetyError::Denied { rights }) }
}
