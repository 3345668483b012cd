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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimMode {
    /// Due messages in due order, passing over suspects (two or more crashes), which may use up the limit.
    Ordinary,
    /// One due message: among those that are no suspects, in due order, the one in place `skip` (from 0), or the
    /// first where there are fewer.
    Probe { skip: u32 },
    /// The first suspect among the due, alone.
    Suspect,
}

#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    pub mode: ClaimMode,
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
    /// Due suspects that an ordinary claim or probe passed over, or at least 1 of them; 0 while paused.
    pub suspects: u32,
    /// Ids without a body that were made dead, reason `orphan`.
    pub orphans: u32,
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

#[derive(Clone, Debug)]
pub struct Retry {
    pub lease: Lease,
    pub delay: Duration,
    /// Kept with the message, shortened where it is long.
    pub error: String,
}

#[derive(Clone, Debug)]
pub struct Burial {
    pub lease: Lease,
    pub reason: DeadReason,
    /// Kept with the message, shortened where it is long.
    pub error: String,
}

#[derive(Clone, Debug)]
pub struct Release {
    pub lease: Lease,
    pub not_before: UnixMillis,
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

    // Settlements: one verdict per lease, in order. At most 1000 leases a call.
    async fn ack(&self, partition: &Partition, leases: &[Lease]) -> Result<Vec<Settled>, StoreError>;
    async fn retry(&self, partition: &Partition, retries: &[Retry]) -> Result<Vec<Settled>, StoreError>;
    async fn bury(&self, partition: &Partition, burials: &[Burial]) -> Result<Vec<Settled>, StoreError>;
    async fn release(&self, partition: &Partition, releases: &[Release]) -> Result<Vec<Settled>, StoreError>;
    /// Into any lists; what is wrong with one does not hold up another. The caller bounds the bytes of all values.
    async fn transfer(&self, partition: &Partition, transfers: &[Transfer]) -> Result<Vec<Transferred>, StoreError>;
}

/// Rings when a partition's head may have become earlier. It carries no data: look again. Who listens to the store
/// rings it; how soon a lost subscription is noticed is theirs to say.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Notify,
    resubscribed: AtomicBool,
    listening: AtomicBool,
}

/// Why a bell rang; a label of `punctual_wakeups_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    Notify,
    /// The subscription came back, or was lost: anything may have been missed.
    Resubscribe,
}

impl Bell {
    /// Remembers one ring while nobody waits.
    pub fn ring(&self) {
        self.rung.notify_one();
    }

    /// Tells whether wake-ups arrive at present, and rings.
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
        if self.resubscribed.swap(false, Ordering::SeqCst) { Ring::Resubscribe } else { Ring::Notify }
    }
}
