//! Audit lines of replaced messages. The first replacement of a token in a route is logged at once; further ones share
//! one line per minute. Otherwise a producer that always replaces would fill the log.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::sleep;

use super::audit::{Caller, Failure, NAMED_IDS, Of, UNKNOWN, log};
use crate::{
    message::{MessageId, NewMessage, OnConflict},
    queue::QueueError,
    store::{ScheduleStatus, Scheduled},
};

/// Interval of lines of one token and route.
const INTERVAL: Duration = Duration::from_mins(1);

/// Maximum number of addresses that a line names.
const NAMED_PEERS: usize = 10;

/// Replacements that are not logged yet, by token and route. The configuration bounds their number.
#[derive(Default)]
pub struct Replacements(Arc<Recent>);

#[derive(Default)]
struct Recent(Mutex<BTreeMap<Key, Replaced>>);

/// Name of a token, a route, and whether the outcome is unknown.
type Key = (String, String, bool);

#[derive(Default)]
struct Replaced {
    count: u64,
    /// The first `NAMED_IDS`.
    ids: Vec<MessageId>,
    has_more_ids: bool,
    /// The first `NAMED_PEERS`.
    peers: Vec<IpAddr>,
    has_more_peers: bool,
}

impl Replacements {
    /// Records replaced messages only: new, duplicate and stale messages change no other message. If the outcome is
    /// unknown, records `replacing`: any of them can have replaced a message.
    ///
    /// # Errors
    /// That of `result`.
    pub fn record(
        &self,
        caller: &Caller,
        route: &str,
        replacing: &[MessageId],
        result: Result<Vec<Scheduled>, QueueError>,
    ) -> Result<Vec<Scheduled>, QueueError> {
        let is_replaced = |one: &&Scheduled| matches!(one.status, ScheduleStatus::Replaced | ScheduleStatus::Revived);
        match &result {
            Ok(scheduled) => {
                let replaced: Vec<_> = scheduled.iter().filter(is_replaced).map(|one| &one.id).collect();
                self.add(caller, route, false, &replaced);
            }
            Err(error) if error.has_unknown_outcome() => {
                self.add(caller, route, true, &replacing.iter().collect::<Vec<_>>());
            }
            Err(_) => {}
        }
        result
    }

    fn add(&self, caller: &Caller, route: &str, is_unknown: bool, replaced: &[&MessageId]) {
        if replaced.is_empty() {
            return;
        }
        let key = (caller.grant.name().to_owned(), route.to_owned(), is_unknown);
        let mut recent = self.0.lock();
        let is_first = !recent.contains_key(&key);
        let waiting = recent.entry(key.clone()).or_default();
        for id in replaced {
            waiting.add(id, caller.peer);
        }
        if !is_first {
            return;
        }
        let first = std::mem::take(waiting);
        drop(recent);
        first.log(&key);
        let recent = Arc::downgrade(&self.0);
        // The task ends at the first minute without a replacement, or with the process.
        tokio::spawn(async move {
            loop {
                sleep(INTERVAL).await;
                let Some(replaced) = recent.upgrade().and_then(|recent| recent.take(&key)) else { return };
                replaced.log(&key);
            }
        });
    }
}

impl Recent {
    /// Replacements since the latest line. `None` without any: then the next replacement is logged at once.
    fn take(&self, key: &Key) -> Option<Replaced> {
        let mut recent = self.lock();
        let replaced = std::mem::take(recent.get_mut(key)?);
        if replaced.count == 0 {
            recent.remove(key);
            return None;
        }
        Some(replaced)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Replaced>> {
        self.0.lock()
    }
}

/// At its end the API logs the rest.
impl Drop for Recent {
    fn drop(&mut self) {
        for (key, replaced) in self.lock().iter().filter(|(_, replaced)| replaced.count > 0) {
            replaced.log(key);
        }
    }
}

impl Replaced {
    fn add(&mut self, id: &MessageId, peer: Option<IpAddr>) {
        self.count += 1;
        self.has_more_ids |= !keep(&mut self.ids, id, NAMED_IDS);
        if let Some(peer) = peer {
            self.has_more_peers |= !keep(&mut self.peers, &peer, NAMED_PEERS);
        }
    }

    fn log(&self, (token, route, is_unknown): &Key) {
        let peers = (!self.peers.is_empty()).then(|| listed(&self.peers, self.has_more_peers));
        let selection;
        let of = match &self.ids[..] {
            [id] => Of::Id(id),
            ids => {
                selection = listed(ids, self.has_more_ids);
                Of::Selection(selection)
            }
        };
        log(token, peers.as_deref(), "replace", route, &of, self.count, is_unknown.then_some(UNKNOWN));
    }
}

/// Ids of messages that replace others.
pub fn replacing(messages: &[NewMessage]) -> Vec<MessageId> {
    let replaces = |message: &&NewMessage| message.on_conflict == OnConflict::Replace;
    messages.iter().filter(replaces).map(|message| message.id.clone()).collect()
}

/// Adds `one` to a list of at most `most`. Returns whether it is in the list.
fn keep<T: Clone + PartialEq>(list: &mut Vec<T>, one: &T, most: usize) -> bool {
    if list.contains(one) {
        return true;
    }
    let has_room = list.len() < most;
    if has_room {
        list.push(one.clone());
    }
    has_room
}

fn listed<T: ToString>(list: &[T], has_more: bool) -> String {
    let named = list.iter().map(T::to_string).collect::<Vec<_>>().join(", ");
    if has_more { format!("{named} and others") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> MessageId {
        MessageId::parse(&format!("m{n}")).unwrap()
    }

    #[test]
    fn a_line_names_the_first_ids_and_addresses_each_once() {
        let (mut all, peer) = (Replaced::default(), |n: u8| IpAddr::from([10, 0, 0, n]));
        for n in 0..5 {
            all.add(&id(n % 2), Some(peer(1)));
        }
        assert_eq!((all.count, listed(&all.ids, all.has_more_ids)), (5, "m0, m1".into()));
        assert_eq!(listed(&all.peers, all.has_more_peers), "10.0.0.1");
        for n in 0..100 {
            all.add(&id(n), Some(peer(n.try_into().unwrap())));
        }
        assert_eq!((all.count, all.ids.len(), all.peers.len()), (105, NAMED_IDS, NAMED_PEERS));
        assert!(all.has_more_ids && listed(&all.peers, all.has_more_peers).ends_with(" and others"));
    }
}
