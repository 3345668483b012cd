//! Many messages, sent again until each is confirmed, as the scheduler would.

use std::{collections::BTreeSet, sync::Mutex};

use futures::future::join_all;
use punctual::sink::{Outcome, Sink};
use tokio::sync::watch;

use crate::support::{delivery, send};

/// Messages in one call.
const BATCH: usize = 100;
/// Calls at once.
const SENDERS: usize = 4;

pub struct Load {
    /// Neither confirmed nor in flight.
    waiting: Mutex<Vec<usize>>,
    confirmed: watch::Sender<BTreeSet<usize>>,
    total: usize,
}

impl Load {
    pub fn new(total: usize) -> Self {
        Self::held_back(0, total)
    }

    /// The last `held` of `total` wait for `release`.
    pub fn held_back(held: usize, total: usize) -> Self {
        Self { waiting: Mutex::new((0..total - held).collect()), confirmed: watch::Sender::default(), total }
    }

    pub fn release(&self, held: usize) {
        (self.total - held..self.total).for_each(|number| self.give_back(number));
    }

    pub fn id(number: usize) -> String {
        format!("m{number}")
    }

    pub fn confirmed(&self) -> BTreeSet<usize> {
        self.confirmed.borrow().clone()
    }

    /// Waits until this number of messages is confirmed.
    pub async fn reached(&self, count: usize) {
        let mut watched = self.confirmed.subscribe();
        watched.wait_for(|confirmed| confirmed.len() >= count).await.expect("the sender is here");
    }

    /// Sends until all messages are confirmed. Every other outcome must be `unavailable`.
    pub async fn run(&self, sink: &dyn Sink) {
        join_all((0..SENDERS).map(|_| self.sender(sink))).await;
    }

    async fn sender(&self, sink: &dyn Sink) {
        let mut watched = self.confirmed.subscribe();
        while self.confirmed.borrow().len() < self.total {
            let numbers = self.take();
            if numbers.is_empty() {
                // The last ones are with other senders, or held back.
                watched.changed().await.expect("the sender is here");
                continue;
            }
            let batch = numbers.iter().map(|n| delivery(&Self::id(*n), format!("payload of {n}"))).collect();
            for (number, outcome) in numbers.into_iter().zip(send(sink, batch).await) {
                match outcome {
                    Outcome::Confirmed => self.confirmed.send_modify(|confirmed| {
                        confirmed.insert(number);
                    }),
                    Outcome::Unavailable { .. } => self.give_back(number),
                    other => panic!("{number}: {other:?}"),
                }
            }
        }
    }

    fn take(&self) -> Vec<usize> {
        let mut waiting = self.waiting.lock().unwrap();
        let left = waiting.len().saturating_sub(BATCH);
        waiting.split_off(left)
    }

    fn give_back(&self, number: usize) {
        self.waiting.lock().unwrap().push(number);
        // Wakes those who found nothing.
        self.confirmed.send_modify(|_| {});
    }
}
