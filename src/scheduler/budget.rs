//! The messages and bytes that a route may have in flight on this instance.
//!
//! A claimer takes a `Reservation` before it claims, and returns the unused part. Each claimed message holds its share
//! of the reservation until its settlement is sent.
//!
//! The bytes of all routes have one bound more, the `Pool`: with many routes their budgets together can be more than the
//! memory of the process. A route needs the pool for bytes beyond those of its largest message. So a slow route cannot
//! stop another one, which always has room for some messages.
//!
//! If the sink is so slow that messages are returned unsent, the route claims fewer, so that messages are not claimed
//! and returned repeatedly. After each round, which is as many messages as the limit, the limit falls by the number of
//! unsent messages, or rises if there were none.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};

/// How long a full route gathers permits or settlements before a call: this saves calls, and delays no message.
pub const GATHER_WAIT: Duration = Duration::from_millis(1);

/// The limit does not fall below this number of messages, or the configured number if that is less.
const MIN_MESSAGES: i64 = 16;

/// Without unsent messages the limit rises by this part of itself (1/RISE) after each round.
const RISE: i64 = 16;

/// The bytes that all routes of a process may have in flight, beyond those of one largest message of each route.
#[derive(Debug)]
pub struct Pool {
    /// Below zero if a message was larger than configured.
    free: AtomicI64,
    freed: Notify,
}

impl Pool {
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { free: AtomicI64::new(signed(bytes)), freed: Notify::new() })
    }

    /// Takes `bytes` if they are free.
    fn take(&self, bytes: i64) -> bool {
        let fits = |free: i64| (bytes <= free.max(0)).then(|| free - bytes);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Takes `bytes` even if they are not free: a message that is in memory counts.
    fn count(&self, bytes: i64) {
        self.free.fetch_sub(bytes, Ordering::Relaxed);
        if bytes < 0 {
            self.freed.notify_waiters();
        }
    }
}

/// Shared by the partitions of one route.
#[derive(Debug)]
pub struct Budget {
    pool: Arc<Pool>,
    /// The configured number of bytes.
    bytes: i64,
    /// Bytes of the largest message, or of the whole budget if that is less.
    largest: i64,
    /// The configured number of messages.
    messages: i64,
    free: Mutex<Free>,
    freed: Notify,
}

#[derive(Debug)]
struct Free {
    room: Room,
    /// Bytes of the pool that the route has.
    pooled: i64,
    /// Messages that may be in flight now, at most the configured number.
    limit: i64,
    /// Messages concluded in this round, and the unsent ones among them. After a fall of the limit, `concluded` begins
    /// below zero: messages that are in flight at the fall say nothing about the new limit.
    concluded: i64,
    unsent: i64,
    /// Messages in flight.
    claimed: usize,
}

/// Free messages and bytes.
#[derive(Clone, Copy, Debug)]
struct Room {
    messages: i64,
    /// Below zero if a message was larger than configured: it is sent, and the next ones wait for it.
    bytes: i64,
}

impl Budget {
    /// `largest`: bytes of the largest message as it is stored.
    pub fn new(messages: u32, bytes: u64, largest: u64, pool: &Arc<Pool>) -> Arc<Self> {
        let room = Room { messages: messages.into(), bytes: signed(bytes) };
        Arc::new(Self {
            pool: Arc::clone(pool),
            bytes: room.bytes,
            largest: signed(largest).min(room.bytes),
            messages: room.messages,
            free: Mutex::new(Free { room, pooled: 0, limit: room.messages, concluded: 0, unsent: 0, claimed: 0 }),
            freed: Notify::new(),
        })
    }

    /// Reserves up to `messages` and `bytes` that are free; `None` when full. The budget is also full while fewer bytes
    /// are free than the largest message has.
    pub fn reserve(self: &Arc<Self>, messages: u32, bytes: u64) -> Option<Reservation> {
        let mut free = self.free.lock();
        let room = self.room(&free);
        if !self.fits(room) || messages == 0 {
            return None;
        }
        let messages = messages.min(u32::try_from(room.messages).unwrap_or(u32::MAX));
        let bytes = signed(bytes).max(self.largest).min(room.bytes);
        let pooled = self.pooled(free.room.bytes - bytes);
        // Another route can have taken them since.
        if !self.pool.take(pooled - free.pooled) {
            return None;
        }
        free.pooled = pooled;
        free.room.messages -= i64::from(messages);
        free.room.bytes -= bytes;
        Some(Reservation { budget: Arc::clone(self), messages, bytes, claimed: 0 })
    }

    /// The free permits below the limit, and the free bytes of the route that the pool has too.
    fn room(&self, free: &Free) -> Room {
        let own = self.largest - (self.bytes - free.room.bytes);
        let bytes = free.room.bytes.min(own.max(0) + self.pool.free.load(Ordering::Relaxed).max(0));
        Room { messages: free.room.messages - (self.messages - free.limit), bytes }
    }

    /// Bytes of the pool that the route needs with `free` bytes of its own.
    fn pooled(&self, free: i64) -> i64 {
        (self.bytes - free - self.largest).max(0)
    }

    /// Changes the free bytes, after messages were read or are no longer in memory.
    fn add_bytes(&self, free: &mut Free, bytes: i64) {
        free.room.bytes += bytes;
        let pooled = self.pooled(free.room.bytes);
        self.pool.count(pooled - free.pooled);
        free.pooled = pooled;
    }

    /// Records whether a message was sent.
    pub fn concluded(&self, sent: bool) {
        let mut free = self.free.lock();
        free.concluded += 1;
        free.unsent += i64::from(!sent && free.concluded > 0);
        if free.concluded < free.limit {
            return;
        }
        let earlier = if free.unsent == 0 { 0 } else { i64::try_from(free.claimed).unwrap_or(i64::MAX) };
        free.limit = match free.unsent {
            0 => (free.limit + (free.limit / RISE).max(1)).min(self.messages),
            unsent => (free.limit - unsent).max(MIN_MESSAGES.min(self.messages)),
        };
        (free.concluded, free.unsent) = (-earlier, 0);
    }

    /// Messages that may be in flight now.
    pub fn limit(&self) -> usize {
        usize::try_from(self.free.lock().limit).unwrap_or(0)
    }

    /// Waits while full. After that gathers freed permits until `worthwhile` messages may be claimed, at most
    /// `GATHER_WAIT`. Cancel-safe.
    pub async fn available(&self, worthwhile: usize) {
        if self.is_available() {
            return;
        }
        self.room_for(1).await;
        // After the timeout, the caller claims with the permits that are free.
        let _ = timeout(GATHER_WAIT, self.room_for(worthwhile)).await;
    }

    async fn room_for(&self, messages: usize) {
        loop {
            // Registered before the check, so that nothing freed in between is missed.
            let (freed, pool_freed) = (self.freed.notified(), self.pool.freed.notified());
            if self.is_available() && self.free() >= messages {
                return;
            }
            tokio::select! {
                () = freed => {}
                () = pool_freed => {}
            }
        }
    }

    /// Messages in flight. Reserved messages count once they are claimed.
    pub fn in_flight(&self) -> usize {
        self.free.lock().claimed
    }

    /// Messages that may be claimed.
    pub fn free(&self) -> usize {
        usize::try_from(self.room(&self.free.lock()).messages).unwrap_or(0)
    }

    /// Whether `available` would not wait.
    pub fn is_available(&self) -> bool {
        self.fits(self.room(&self.free.lock()))
    }

    fn fits(&self, room: Room) -> bool {
        room.messages > 0 && room.bytes >= self.largest
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The permits of one claim, or the share of one claimed message; freed on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    messages: u32,
    bytes: i64,
    /// Reserved messages that are in flight.
    claimed: usize,
}

impl Reservation {
    pub fn messages(&self) -> u32 {
        self.messages
    }

    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(0)
    }

    /// Records that `messages` were claimed. Each takes its `permit`.
    pub fn claimed(&mut self, messages: usize) {
        self.claimed += messages;
        self.budget.free.lock().claimed += messages;
    }

    /// The share of one claimed message with this number of bytes.
    pub fn permit(&mut self, bytes: usize) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.messages = self.messages.saturating_sub(1);
        self.bytes -= bytes;
        self.claimed -= 1;
        Self { budget: Arc::clone(&self.budget), messages: 1, bytes, claimed: 1 }
    }

    /// Takes over `other`, of the same budget, so that both are freed at once.
    pub fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget));
        self.messages += mem::take(&mut other.messages);
        self.bytes += mem::take(&mut other.bytes);
        self.claimed += mem::take(&mut other.claimed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if (self.messages, self.bytes, self.claimed) == (0, 0, 0) {
            return;
        }
        {
            let mut free = self.budget.free.lock();
            free.room.messages += i64::from(self.messages);
            self.budget.add_bytes(&mut free, self.bytes);
            free.claimed -= self.claimed;
        }
        self.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;

    fn budget_of(messages: u32, bytes: u64, largest: u64) -> Arc<Budget> {
        Budget::new(messages, bytes, largest, &Pool::new(bytes))
    }

    #[tokio::test]
    async fn routes_share_the_pool_and_each_has_room_for_one_largest_message() {
        let pool = Pool::new(500);
        let [slow, other] = [(); 2].map(|()| Budget::new(10, 1000, 100, &pool));
        let held = slow.reserve(1, 5000).unwrap();
        assert_eq!(held.bytes(), 600, "its own largest message, and the pool");
        let own = other.reserve(1, 5000).unwrap();
        assert_eq!(own.bytes(), 100);
        assert!(other.reserve(1, 1).is_none());
        let waiting = other.available(1);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(held);
        assert!(waiting.now_or_never().is_some(), "another route freed the pool");
        assert_eq!(other.reserve(1, 5000).unwrap().bytes(), 500);
        drop(own);
        let all = slow.reserve(10, 5000).unwrap();
        assert_eq!(all.bytes(), 600, "nothing is lost");
    }

    #[test]
    fn a_message_larger_than_configured_counts_for_the_pool_too() {
        let pool = Pool::new(500);
        let [one, other] = [(); 2].map(|()| Budget::new(10, 1000, 100, &pool));
        let permit = claimed(&one, 1, 100, 5000);
        assert_eq!(other.reserve(10, 5000).unwrap().bytes(), 100);
        drop(permit);
        assert_eq!(other.reserve(10, 5000).unwrap().bytes(), 600);
    }

    /// The permit of one message of `size` bytes, out of a reservation.
    fn claimed(budget: &Arc<Budget>, messages: u32, bytes: u64, size: usize) -> Reservation {
        let mut reservation = budget.reserve(messages, bytes).unwrap();
        reservation.claimed(1);
        reservation.permit(size)
    }

    #[test]
    fn capacity_that_a_claim_did_not_use_is_free_again() {
        let budget = budget_of(10, 1000, 100);
        let mut reservation = budget.reserve(8, 500).unwrap();
        assert_eq!((reservation.messages(), reservation.bytes(), budget.in_flight()), (8, 500, 0));
        reservation.claimed(1);
        let permit = reservation.permit(60);
        assert_eq!(budget.in_flight(), 1);
        drop(reservation);
        assert_eq!(budget.in_flight(), 1);
        drop(permit);
        assert_eq!(budget.in_flight(), 0);
        let all = budget.reserve(100, 5000).unwrap();
        assert_eq!((all.messages(), all.bytes()), (10, 1000));
    }

    #[test]
    fn the_limit_falls_by_what_was_unsent_and_rises_again() {
        let budget = budget_of(160, 1000, 1);
        let round = |unsent: usize| {
            for n in 0..budget.limit() {
                budget.concluded(n >= unsent);
            }
            (budget.limit(), budget.free())
        };
        assert_eq!(round(0), (160, 160));
        assert_eq!(round(60), (100, 100));
        let permit = claimed(&budget, 1, 1, 1);
        assert_eq!(budget.reserve(200, 500).unwrap().messages(), 99);
        drop(permit);
        assert_eq!(round(0).0, 106);
        assert_eq!(round(106).0, 16);
        assert_eq!(round(16).0, 16, "some are always tried");
        let rounds = (1..1000).find(|_| round(0).0 == 160);
        assert!(rounds.is_some_and(|rounds| rounds < 50), "{rounds:?}");
        let full = budget_of(160, 1000, 1);
        let mut flight = full.reserve(160, 1).unwrap();
        flight.claimed(160);
        (0..160).for_each(|n| full.concluded(n >= 60));
        (0..160).for_each(|_| full.concluded(false));
        assert_eq!(full.limit(), 100, "those that were in flight say nothing about the new limit");
        (0..100).for_each(|_| full.concluded(true));
        assert_eq!(full.limit(), 106);
        let small = budget_of(2, 1000, 1);
        (0..20).for_each(|_| small.concluded(false));
        assert_eq!(small.limit(), 2);
    }

    #[test]
    fn the_budget_is_full_while_a_largest_message_would_not_fit() {
        let budget = budget_of(10, 1000, 100);
        let permit = claimed(&budget, 1, 1000, 901);
        assert!(budget.reserve(1, 1).is_none());
        assert!(budget.available(1).now_or_never().is_none());
        drop(permit);
        assert!(budget.available(1).now_or_never().is_some());
    }

    #[test]
    fn a_message_larger_than_configured_passes_and_counts() {
        let budget = budget_of(10, 1000, 100);
        let permit = claimed(&budget, 1, 100, 5000);
        assert!(budget.reserve(1, 1).is_none());
        drop(permit);
        assert_eq!(budget.reserve(1, 5000).unwrap().bytes(), 1000);
    }

    #[test]
    fn permits_that_were_put_together_are_free_at_once() {
        let budget = budget_of(10, 1000, 100);
        let mut first = claimed(&budget, 1, 100, 60);
        let second = claimed(&budget, 1, 100, 5000);
        first.absorb(second);
        assert_eq!(budget.in_flight(), 2);
        assert!(budget.reserve(1, 1).is_none());
        drop(first);
        assert_eq!(budget.in_flight(), 0);
        let all = budget.reserve(100, 5000).unwrap();
        assert_eq!((all.messages(), all.bytes()), (10, 1000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_had_to_wait_waits_for_more_room_a_millisecond_at_most() {
        let budget = budget_of(10, 1000, 100);
        let mut permits: Vec<_> = (0..10).map(|_| claimed(&budget, 1, 100, 100)).collect();
        let mut waiting = Box::pin(budget.available(2));
        for freed in [false, true] {
            assert!(waiting.as_mut().now_or_never().is_none(), "{freed}");
            permits.pop();
        }
        assert!(waiting.now_or_never().is_some());
        assert!(budget.available(9).now_or_never().is_some(), "not full");
        let _rest = [claimed(&budget, 1, 100, 100), claimed(&budget, 1, 100, 100)];
        let mut waiting = Box::pin(budget.available(9));
        assert!(waiting.as_mut().now_or_never().is_none());
        permits.pop();
        assert!(waiting.as_mut().now_or_never().is_none());
        let began = Instant::now();
        waiting.await;
        assert!(began.elapsed() <= 2 * GATHER_WAIT);
    }

    #[tokio::test]
    async fn a_waiting_claim_is_notified_of_free_capacity() {
        let budget = budget_of(1, 1000, 100);
        let reservation = budget.reserve(1, 100).unwrap();
        let waiting = budget.available(1);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(reservation);
        assert!(waiting.now_or_never().is_some());
    }
}
