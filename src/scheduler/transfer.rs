//! Into a list on the queue's own Redis: the store pushes and acknowledges in one step, so there is nothing
//! in between that could be repeated or lost.
//!
//! A transfer without an answer is repeated with the same token, which can take effect only once.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    attempt::Attempt,
    patience::{Patience, is_outage},
    route::Route,
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

/// `values`: one per attempt. Ends when each was moved, given back or given up.
pub async fn transfer(
    route: &Route,
    partition: &Partition,
    settler: &Settler,
    clock: &ServerClock,
    list: &Arc<str>,
    attempts: Vec<Attempt>,
    values: Vec<Bytes>,
) {
    let sizes: Vec<usize> = values.iter().map(Bytes::len).collect();
    let mut attempts = attempts.into_iter();
    let mut values = values.into_iter();
    for chunk in chunks(&sizes) {
        let chunk: Vec<Attempt> = attempts.by_ref().take(chunk.len()).collect();
        let transfers: Vec<Transfer> = chunk
            .iter()
            .zip(values.by_ref())
            .map(|(attempt, value)| Transfer { lease: attempt.held.lease.clone(), list: Arc::clone(list), value })
            .collect();
        one_call(route, partition, settler, clock, chunk, transfers).await;
    }
}

async fn one_call(
    route: &Route,
    partition: &Partition,
    settler: &Settler,
    clock: &ServerClock,
    attempts: Vec<Attempt>,
    transfers: Vec<Transfer>,
) {
    let sent = Instant::now();
    let mut patience = Patience::default();
    let mut repeated = false;
    loop {
        match route.store.transfer(partition, &transfers).await {
            Ok(verdicts) => {
                conclude(route, clock, sent, attempts, &verdicts, repeated);
                route.show_in_flight();
                return;
            }
            Err(error @ StoreError::Destination { .. }) => {
                let outcome = Outcome::Unavailable { error: error.to_string() };
                for mut attempt in attempts {
                    attempt.observe(&outcome, sent, clock, route);
                    attempt.give_back(settler);
                }
                return;
            }
            Err(error) => {
                let wait = patience.wait(partition, "transfer", &error);
                let over = attempts.iter().all(|attempt| attempt.held.lease_ends <= Instant::now());
                if !is_outage(&error) && over {
                    return;
                }
                repeated |= is_outage(&error);
                sleep(wait).await;
            }
        }
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

/// Consecutive parts within the limits; a value beyond them is alone.
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
