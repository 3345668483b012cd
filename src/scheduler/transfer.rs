//! Into a list on the queue's own Redis: the store pushes and acknowledges in one step, so there is nothing
//! in between that could be repeated or lost.
//!
//! A transfer without an answer is repeated with the same token, which can take effect only once.

use std::ops::Range;

use rand::rngs::StdRng;
use tokio::time::{Instant, sleep};

use super::{
    attempt::Attempt,
    route::ActiveRoute,
    settler::{Settler, took_effect},
    store_backoff::{StoreBackoff, is_outage},
};
use crate::{
    sink::{Element, Outcome},
    store::{Partition, Settled, Transfer, Transferred},
    time::ServerClock,
};

/// Bytes of values and list names in one call: scripts that write stay below 4 MiB.
const MAX_BYTES: usize = 4 * 1024 * 1024 - 256 * 1024;

/// Messages in one call.
const MAX_MESSAGES: usize = 500;

/// One batch on its way into lists.
pub struct Transfers<'a> {
    pub route: &'a ActiveRoute,
    pub partition: &'a Partition,
    pub settler: &'a Settler,
    pub clock: &'a ServerClock,
    pub rng: &'a mut StdRng,
    pub one_list: bool,
}

impl Transfers<'_> {
    /// `elements`: one per attempt, or why it has none. Ends when each was moved, given back, given up or is with
    /// the settler.
    pub async fn run(mut self, attempts: Vec<Attempt>, elements: Vec<Result<Element, String>>) {
        let started = Instant::now();
        let mut pairs = Vec::with_capacity(attempts.len());
        for (attempt, element) in attempts.into_iter().zip(elements) {
            match element {
                Ok(element) => pairs.push((attempt, element)),
                Err(error) => self.end(attempt, &Outcome::Unsendable { error }, started),
            }
        }
        let sizes: Vec<usize> = pairs.iter().map(|(_, element)| element.value.len() + element.list.len()).collect();
        let mut pairs = pairs.into_iter();
        for chunk in chunks(&sizes) {
            let (attempts, transfers) = pairs
                .by_ref()
                .take(chunk.len())
                .map(|(attempt, Element { list, value })| {
                    let lease = attempt.held.lease.clone();
                    (attempt, Transfer { lease, list, value })
                })
                .unzip();
            self.one_call(attempts, transfers).await;
        }
    }

    async fn one_call(&mut self, attempts: Vec<Attempt>, transfers: Vec<Transfer>) {
        let sent = Instant::now();
        let mut backoff = StoreBackoff::default();
        // What got no answer may have been done, and is not to be recovered while it is repeated.
        let mut unanswered = None;
        loop {
            match self.route.store.transfer(self.partition, &transfers).await {
                Ok(verdicts) => {
                    let lists = transfers.iter().map(|transfer| &*transfer.list);
                    for ((attempt, list), verdict) in attempts.into_iter().zip(lists).zip(verdicts) {
                        self.conclude(attempt, list, verdict, sent, unanswered.is_some());
                    }
                    self.route.show_in_flight();
                    return;
                }
                Err(error) => {
                    let wait = backoff.wait(self.partition, "transfer", &error);
                    let expired = attempts.iter().all(|attempt| attempt.held.lease_ends <= Instant::now());
                    if !is_outage(&error) && expired {
                        return;
                    }
                    if is_outage(&error) {
                        unanswered.get_or_insert_with(|| self.settler.unanswered().mark());
                    }
                    sleep(wait).await;
                }
            }
        }
    }

    fn conclude(&mut self, mut attempt: Attempt, list: &str, verdict: Transferred, sent: Instant, repeated: bool) {
        let settled = match verdict {
            Transferred::Done => Settled::Done,
            Transferred::Stale => Settled::Stale,
            Transferred::Refused(text) => {
                let error = format!("list `{list}`: {text}");
                // One list of many is no reason to stop the others.
                let outcome = if self.one_list {
                    Outcome::Unavailable { error }
                } else {
                    Outcome::Failed { error, retry_after: None }
                };
                return self.end(attempt, &outcome, sent);
            }
        };
        if took_effect(settled, &attempt.held, repeated) {
            attempt.observe((&Outcome::Confirmed, None), sent, self.clock, self.route, 0.0);
            self.route.metrics.delivered.increment(1);
        } else {
            self.route.metrics.stale("transfer", 1);
        }
    }

    fn end(&mut self, attempt: Attempt, outcome: &Outcome, sent: Instant) {
        attempt.conclude((outcome, None), sent, self.clock, (self.route, self.settler, self.rng));
    }
}

/// Consecutive parts within the limits; a value beyond them is alone. `sizes` in bytes.
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
        assert_eq!(chunks(&[1; 1001]), [0..500, 500..1000, 1000..1001]);
    }
}
