//! What the scheduler needs from the store, and nothing more: claim, recover, settle, and a bell to wait for.
//! `store::redis` implements it; the engine's tests run on an in-memory twin.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use crate::{
    message::MessageId,
    outcome::DeadReason,
    time::{ServerClock, UnixMillis},
};

/// One partition of a route's queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    pub route: Arc<str>,
    pub number: u16,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.route, self.number)
    }
}

/// The lease deadline in microseconds on Redis' clock; good for one claim only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The right to settle one claimed message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub id: MessageId,
    pub token: Token,
}

/// Which suspects (messages with two or more crashes) a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspects {
    /// The first that is due, and nothing else with it; none due: ordinary messages.
    One,
    /// None. Those that are due are put off by this and 20 ms more each.
    PutOff(Duration),
}

#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// The instance that claims: another number for each process.
    pub claimant: u64,
    /// Of the claims of an instance on a partition, from 1; larger for each. Repeated with the same number, a claim
    /// returns the same messages and lease: its reply may have been lost.
    pub sequence: u64,
    /// An earlier try got no answer, and may be carried out after this one: where this one takes nothing, that is
    /// recorded, so that the earlier one takes nothing either.
    pub again: bool,
    pub suspects: Suspects,
    /// At most so many messages, 1 to 1000.
    pub limit: u32,
    /// At most so many bytes of bodies; the first message comes whatever its size.
    pub max_bytes: u64,
    pub lease: Duration,
}

/// One claimed message.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub id: MessageId,
    /// The encoded message (`codec`).
    pub body: Bytes,
    /// Failed attempts before this one.
    pub failures: u32,
    /// Its score in `pending`, to give back on release.
    pub not_before: UnixMillis,
    /// Two or more crashes.
    pub suspect: bool,
}

/// The reply of a claim.
#[derive(Clone, Debug)]
pub struct Claim {
    pub clock: ServerClock,
    /// Shared by all that this claim returned.
    pub token: Token,
    pub messages: Vec<Claimed>,
    pub paused: bool,
    /// Score of the earliest message still pending after this claim, also of one that is due already (paused, a
    /// suspect, or beyond the limits): compare with the clock.
    pub next_due: Option<UnixMillis>,
    /// Deadline of the earliest lease, of any instance, in microseconds.
    pub next_lease: Option<u64>,
    /// Due suspects that were put off.
    pub suspects: u32,
    /// Ids without a body that were made dead, reason `orphan`.
    pub orphans: u32,
    /// When another instance last took messages of the partition, in microseconds; `None` when the last was this one.
    pub taken_elsewhere: Option<u64>,
}

/// The reply of a recovery of expired leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Leases that had expired, the dead included.
    pub expired: u32,
    /// Of these, made dead, reason `crash`.
    pub dead: u32,
    /// Whether more expired leases wait.
    pub more: bool,
}

/// Whether a settlement took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Done,
    /// The token is not the current claim's: nothing changed.
    Stale,
}

/// What became of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transferred {
    Done,
    /// The token is not the current claim's: nothing changed.
    Stale,
    /// The list cannot take it, and why: nothing changed, the claim stands.
    Refused(String),
}

/// How a claim of one message ends.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub lease: Lease,
    pub end: End,
}

#[derive(Clone, Debug)]
pub enum End {
    /// Delivered: the message is gone.
    Ack,
    /// The attempt failed and counts; due again after `delay`. `error` is kept, shortened where it is long.
    Retry { delay: Duration, error: String },
    /// Dead. `error` is kept, shortened where it is long.
    Bury { reason: DeadReason, error: String },
    /// As if it had never been claimed, due at this time.
    Release { at: UnixMillis },
    /// No attempt counts; due again after `pause`, from the clock of the store.
    Defer { pause: Duration },
}

impl End {
    /// The name of its kind, in logs and in `punctual_stale_settlements_total`.
    pub fn name(&self) -> &'static str {
        match self {
            End::Ack => "ack",
            End::Retry { .. } => "retry",
            End::Bury { .. } => "bury",
            End::Release { .. } | End::Defer { .. } => "release",
        }
    }
}

/// Into a list on the same Redis: push and ack in one step.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub lease: Lease,
    pub list: Arc<str>,
    pub value: Bytes,
}

/// Why the store did not do it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// Redis cannot be reached, or cannot do it now; whether it did is unknown. `kind` is the label of
    /// `punctual_redis_errors_total`.
    #[error("redis {kind}: {text}")]
    Unavailable { kind: &'static str, text: String },
    /// A foreign value at one of the route's keys: somebody must look.
    #[error("redis wrong_type: {text}")]
    WrongType { text: String },
    /// A script refused the request; nothing was written.
    #[error("refused: {slug}: {text}")]
    Refused { slug: String, text: String },
}

/// Every method answers within the store's own timeout, and is safe to repeat.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn claim(&self, partition: &Partition, request: ClaimRequest) -> Result<Claim, StoreError>;
    /// Moves expired leases back to pending, due now, or to dead after the last crash (`DeadReason::Crash`).
    async fn recover(&self, partition: &Partition) -> Result<Recovered, StoreError>;

    /// One verdict per lease, in order; at most 1000 a call. A settlement, also a stale one, proves that the process
    /// of the claim lives: the crashes of its message are forgotten.
    async fn settle(&self, partition: &Partition, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError>;
    /// Into any lists; what is wrong with one does not hold up another. The caller bounds the bytes of all values.
    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError>;
    /// Makes every instance poll now, however long it would have waited: messages are overdue and this one is full.
    async fn call_all(&self, partition: &Partition) -> Result<(), StoreError>;
}

/// Rings when a partition's head may have become earlier. It carries no data: look again. Who listens to the store
/// rings it; how soon a lost subscription is noticed is theirs to say.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Notify,
    resubscribed: AtomicBool,
    called: AtomicBool,
    listening: AtomicBool,
}

/// Why a bell rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The head became earlier.
    Notify,
    /// Another instance has overdue messages and no capacity (`Store::call_all`).
    Call,
    /// The subscription came back, or was lost: anything may have been missed.
    Resubscribe,
}

impl Bell {
    /// Remembers one ring while nothing waits for it.
    pub fn ring(&self) {
        self.rung.notify_one();
    }

    /// A ring that asks for a poll without delay.
    pub fn call(&self) {
        self.called.store(true, Ordering::SeqCst);
        self.rung.notify_one();
    }

    /// Records whether wake-ups arrive at present, and rings.
    pub fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::SeqCst);
        self.resubscribed.store(true, Ordering::SeqCst);
        self.rung.notify_one();
    }

    /// Whether the subscription behind this bell answers, as far as is known: false until the first one.
    pub fn is_listening(&self) -> bool {
        self.listening.load(Ordering::SeqCst)
    }

    /// Cancel-safe.
    pub async fn heard(&self) -> Ring {
        self.rung.notified().await;
        let called = self.called.swap(false, Ordering::SeqCst);
        if self.resubscribed.swap(false, Ordering::SeqCst) {
            Ring::Resubscribe
        } else if called {
            Ring::Call
        } else {
            Ring::Notify
        }
    }
}
