//! Into a list on the queue's own Redis: the store pushes and acknowledges in one step, so there is nothing
//! in between that could be repeated or lost.
//!
//! A transfer without an answer is repeated with the same token, which can take effect only once.

use std::{ops::Range, sync::Arc};

use rand::rngs::StdRng;
use tokio::time::{Instant, sleep};

use super::{
    attempt::Attempt,
    patience::{Patience, is_outage},
    route::{Element, Route},
    settler::{Settler, took_effect},
};
use crate::{
    outcome::Outcome,
    port::{Partition, Settled, StoreError, Transfer},
    time::ServerClock,
};

/// Bytes of values in one call: scripts that write stay below 4 MiB.
const MAX_BYTES: usize = 4 * 1024 * 1024 - 256 * 1024;

/// Messages in one call.
const MAX_MESSAGES: usize = 500;

/// One batch on its way into lists.
pub struct Transfers<'a> {
    pub route: &'a Route,
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
                Err(error) => self.end(attempt, &Outcome::Rejected { error }, started),
            }
        }
        // One list per call: what is wrong with one must not hold up another. Stable: in due order within each.
        pairs.sort_by(|(_, one), (_, other)| one.list.cmp(&other.list));
        let sizes: Vec<(Arc<str>, usize)> =
            pairs.iter().map(|(_, element)| (Arc::clone(&element.list), element.value.len())).collect();
        let mut pairs = pairs.into_iter();
        for chunk in chunks(&sizes) {
            let list = &sizes[chunk.start].0;
            let (attempts, transfers) = pairs
                .by_ref()
                .take(chunk.len())
                .map(|(attempt, Element { value, .. })| {
                    let lease = attempt.held.lease.clone();
                    (attempt, Transfer { lease, value })
                })
                .unzip();
            self.one_call(list, attempts, transfers).await;
        }
    }

    async fn one_call(&mut self, list: &str, attempts: Vec<Attempt>, transfers: Vec<Transfer>) {
        let sent = Instant::now();
        let mut patience = Patience::default();
        // What got no answer may have been done, and is not to be recovered while it is repeated.
        let mut unanswered = None;
        loop {
            match self.route.store.transfer(self.partition, list, &transfers).await {
                Ok(verdicts) => {
                    conclude(self.route, self.clock, sent, attempts, &verdicts, unanswered.is_some());
                    self.route.show_in_flight();
                    return;
                }
                Err(error @ StoreError::Destination { .. }) => {
                    let error = error.to_string();
                    let outcome = if self.one_list {
                        Outcome::Unavailable { error }
                    } else {
                        Outcome::Failed { error, retry_after: None }
                    };
                    for attempt in attempts {
                        self.end(attempt, &outcome, sent);
                    }
                    return;
                }
                Err(error) => {
                    let wait = patience.wait(self.partition, "transfer", &error);
                    let over = attempts.iter().all(|attempt| attempt.held.lease_ends <= Instant::now());
                    if !is_outage(&error) && over {
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

    fn end(&mut self, attempt: Attempt, outcome: &Outcome, sent: Instant) {
        attempt.conclude(outcome, sent, self.clock, (self.route, self.settler, self.rng));
    }
}

fn conclude(
    route: &Route,
    clock: &ServerClock,
    sent: Instant,
    attempts: Vec<Attempt>,
    verdicts: &[Settled],
    repeated: bool,
) {
    let mut stale = 0;
    for (mut attempt, verdict) in attempts.into_iter().zip(verdicts) {
        if took_effect(*verdict, &attempt.held, repeated) {
            attempt.observe(&Outcome::Confirmed, sent, clock, route);
            route.metrics.delivered.increment(1);
        } else {
            stale += 1;
        }
    }
    if stale > 0 {
        route.metrics.stale("transfer", stale);
    }
}

/// Consecutive parts of one list and within the limits; a value beyond them is alone.
fn chunks(sizes: &[(Arc<str>, usize)]) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, (list, size)) in sizes.iter().enumerate() {
        let full = bytes + size > MAX_BYTES || index - start == MAX_MESSAGES;
        if index > start && (full || *list != sizes[start].0) {
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

    fn cut(sizes: &[(&str, usize)]) -> Vec<Range<usize>> {
        let sizes: Vec<_> = sizes.iter().map(|(list, size)| (Arc::from(*list), *size)).collect();
        chunks(&sizes)
    }

    #[test]
    fn chunks_keep_to_one_list_bytes_and_count() {
        assert!(cut(&[]).is_empty());
        let sizes = [1, MAX_BYTES + 1, 1, MAX_BYTES - 1, 1].map(|size| ("a", size));
        assert_eq!(cut(&sizes), [0..1, 1..2, 2..4, 4..5]);
        assert_eq!(cut(&vec![("a", 1); 1001]), [0..500, 500..1000, 1000..1001]);
        assert_eq!(cut(&[("a", 1), ("a", 1), ("b", 1), ("c", 1), ("c", 1)]), [0..2, 2..3, 3..5]);
    }
}
