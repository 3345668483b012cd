//! Delivery to a list on the queue's own Redis. The store pushes and acknowledges in one step, so a message cannot be
//! repeated or lost in between.
//!
//! A transfer without an answer is repeated with the same token, so it takes effect only once.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use tokio::time::{Instant, sleep};

use super::{
    attempt::{Attempt, Batch},
    in_flight::Permits,
    recurring,
    settler::took_effect,
    store_backoff::{StoreBackoff, is_outage},
};
use crate::{
    sink::{Element, Outcome},
    store::{ClaimEnd, Settled, StoreError, Transfer, Transferred},
};

/// Maximum bytes of values and list names in one call: scripts that write stay below 4 MiB.
const MAX_BYTES: usize = 4 * 1024 * 1024 - 256 * 1024;

/// Maximum messages in one call.
const MAX_MESSAGES: usize = 500;

impl Batch {
    /// `elements`: one per attempt, or the reason why it has none; `one_list` as in `Target::List`. Returns when each
    /// message is moved, given up or passed to the settler.
    pub async fn transfer(mut self, attempts: Vec<Attempt>, elements: Vec<Result<Element, String>>, one_list: bool) {
        let started = Instant::now();
        let mut pairs = Vec::with_capacity(attempts.len());
        for (attempt, element) in attempts.into_iter().zip(elements) {
            match element {
                Ok(element) => pairs.push((attempt, element)),
                Err(error) => attempt.conclude(&mut self, started, &Outcome::Unsendable { error }, None, None),
            }
        }
        let sizes: Vec<usize> = pairs.iter().map(|(_, element)| element.value.len() + element.list.len()).collect();
        let mut pairs = pairs.into_iter();
        for chunk in chunks(&sizes) {
            let (attempts, transfers) = pairs
                .by_ref()
                .take(chunk.len())
                .map(|(attempt, Element { list, value })| {
                    let (lease, record) = (attempt.held.lease.clone(), attempt.held.record.clone());
                    (attempt, Transfer { lease, list, value, record })
                })
                .unzip();
            let denied = self.transfer_chunk(attempts, transfers, one_list).await;
            for (attempts, transfers) in by_list(denied) {
                self.transfer_chunk(attempts, transfers, one_list).await;
            }
        }
    }

    /// Returns the messages of a call in which one of several lists was denied.
    async fn transfer_chunk(
        &mut self,
        attempts: Vec<Attempt>,
        transfers: Vec<Transfer>,
        one_list: bool,
    ) -> Vec<(Attempt, Transfer)> {
        let sent = Instant::now();
        let transfers_to_one_list = transfers.iter().all(|transfer| transfer.list == transfers[0].list);
        let mut backoff = StoreBackoff::default();
        // A transfer without an answer may have taken effect: its messages are not recovered while it is repeated.
        let mut unanswered = None;
        let verdicts = loop {
            match self.route.store.transfer(&self.partition, &transfers).await {
                Ok(verdicts) => break verdicts,
                Err(error) if error.is_denied() => {
                    let denied = attempts.into_iter().zip(transfers);
                    if transfers_to_one_list || !error.is_denied_key() {
                        self.conclude_denied(denied, sent, &error, one_list);
                        return Vec::new();
                    }
                    return denied.collect();
                }
                Err(error) => {
                    let wait = backoff.wait(&self.route.incidents, &self.partition, "transfer", &error);
                    if is_outage(&error) {
                        unanswered.get_or_insert_with(|| self.settler.unanswered().mark());
                    } else if attempts.iter().all(|attempt| attempt.held.lease_ends <= Instant::now()) {
                        return Vec::new();
                    }
                    sleep(wait).await;
                }
            }
        };
        let repeated = unanswered.is_some();
        let mut done = Vec::with_capacity(attempts.len());
        for ((attempt, Transfer { list, .. }), verdict) in attempts.into_iter().zip(transfers).zip(verdicts) {
            let settled = match verdict {
                Transferred::Done => Settled::Done,
                Transferred::Stale => Settled::Stale,
                Transferred::Refused(text) => {
                    let error = format!("list `{list}`: {text}");
                    // One list of many must not stop the others.
                    let outcome = if one_list {
                        Outcome::Unavailable { error }
                    } else {
                        Outcome::Failed { error, retry_after: None }
                    };
                    attempt.conclude(self, sent, &outcome, None, None);
                    continue;
                }
            };
            if took_effect(settled, attempt.held.lease_ends, repeated) {
                self.route.metrics.delivered.increment(1);
                recurring::count(&attempt.held.lease.id, &ClaimEnd::Ack);
                done.push(attempt.observe(self, sent, &Outcome::Confirmed, None, 0.0, false).0.permits);
            } else {
                self.route.metrics.stale("transfer", 1);
                done.push(attempt.held.permits);
            }
        }
        Permits::release(done);
        self.route.show_in_flight();
        Vec::new()
    }

    /// A denied call changed nothing. Without the right to push, the sink is down. Without the right to one list of
    /// many, the messages of this list fail.
    fn conclude_denied(
        &mut self,
        denied: impl Iterator<Item = (Attempt, Transfer)>,
        sent: Instant,
        error: &StoreError,
        one_list: bool,
    ) {
        for (attempt, Transfer { list, .. }) in denied {
            let outcome = if !one_list && error.is_denied_key() {
                // `check` does not know the lists of messages.
                let right = format!("grant the right with `ACL SETUSER <user> ~{list}`, or with a pattern");
                Outcome::Failed { error: format!("list `{list}`: {error}; {right}"), retry_after: None }
            } else {
                // All lists have the same error, so that it is logged once.
                Outcome::Unavailable { error: format!("{error}; `punctual check --connect` names missing rights") }
            };
            attempt.conclude(self, sent, &outcome, None, None);
        }
        self.route.show_in_flight();
    }
}

type Transfers = (Vec<Attempt>, Vec<Transfer>);

fn by_list(denied: Vec<(Attempt, Transfer)>) -> Vec<Transfers> {
    let mut lists: BTreeMap<Arc<str>, Transfers> = BTreeMap::new();
    for (attempt, transfer) in denied {
        let (attempts, transfers) = lists.entry(transfer.list.clone()).or_default();
        attempts.push(attempt);
        transfers.push(transfer);
    }
    lists.into_values().collect()
}

/// Consecutive parts within the limits; a value above `MAX_BYTES` is alone. `sizes` in bytes.
fn chunks(sizes: &[usize]) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, size) in sizes.iter().enumerate() {
        if index > start && (bytes + size > MAX_BYTES || index - start == MAX_MESSAGES) {
            chunks.push(start..index);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < sizes.len() {
        chunks.push(start..sizes.len());
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_keep_to_bytes_and_count() {
        assert!(chunks(&[]).is_empty());
        assert_eq!(chunks(&[1, MAX_BYTES + 1, 1, MAX_BYTES - 1, 1]), [0..1, 1..2, 2..4, 4..5]);
        assert_eq!(chunks(&[MAX_BYTES + 1, 1]), [0..1, 1..2]);
        assert_eq!(chunks(&[1; 1001]), [0..500, 500..1000, 1000..1001]);
    }
}
