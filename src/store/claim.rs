//! Claims: a lease on due messages, and the recovery of leases that expired.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    message::{DeadReason, MessageId},
    time::{ServerClock, UnixMillis},
};

/// The lease deadline in microseconds on Redis' clock; unique to one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The right to settle one claimed message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub id: MessageId,
    pub token: Token,
    /// Size of the stored body, as it was claimed.
    pub bytes: usize,
}

/// Which suspects (messages with two or more crashes) a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspects {
    /// The first due suspects, at most `max_suspects`, and no other messages. A suspect with three or more crashes is
    /// claimed alone. Without due suspects, ordinary messages are claimed.
    Few,
    /// None. Due suspects are deferred by this duration, in groups of `max_suspects` that are 20 ms apart.
    Defer(Duration),
}

#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// The claiming instance: a number that is unique to each process.
    pub claimant: u64,
    /// Number of this claim among those of the instance on the partition: from 1, increasing. A claim that is repeated
    /// with its number, because the reply may be lost, returns the same messages and lease.
    pub sequence: u64,
    /// An earlier try got no answer, and Redis may still run it after this one. If this try takes nothing, its number
    /// is recorded, so that the earlier try takes nothing either.
    pub again: bool,
    /// Many messages are expected, so that the claim is worth a call of its own. Other claims can wait a few
    /// milliseconds to be bundled with those of other partitions.
    pub backlog: bool,
    pub suspects: Suspects,
    /// Maximum number of suspects in one claim, 1 to 1000.
    pub max_suspects: usize,
    /// Maximum number of messages, 1 to 1000. A repeated claim returns the messages of the earlier try, even if they
    /// are more.
    pub limit: u32,
    /// Maximum bytes of bodies. The first message is returned whatever its size.
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
    /// The score in `pending`, restored on release.
    pub not_before: UnixMillis,
    /// How long it waited for its flow after that time. Lateness does not include it.
    pub waited: Duration,
    /// Whether the message has two or more crashes.
    pub suspect: bool,
    /// Whether it failed or crashed before.
    pub tried: bool,
    /// Whether it crashed as often as a message does that dies. Only of the message of a schedule.
    pub crashed_out: bool,
}

/// The reply of a claim.
#[derive(Clone, Debug)]
pub struct Claim {
    pub clock: ServerClock,
    /// Shared by all messages of this claim.
    pub token: Token,
    pub messages: Vec<Claimed>,
    pub paused: bool,
    /// Score of the earliest message that is pending after this claim. It can be due already (the route is paused, or
    /// the message is a suspect or beyond the limits of the claim): compare it with the clock.
    pub next_due: Option<UnixMillis>,
    /// Deadline of the earliest lease, of any instance, in microseconds.
    pub next_lease: Option<u64>,
    /// Due suspects that this claim deferred.
    pub suspects: u32,
    /// Due messages that this claim parked, because their flow was busy.
    pub parked: u32,
    /// Ids without a body that were made dead, reason `orphan`.
    pub orphans: Deaths,
    /// When another instance last took messages of the partition, in microseconds; `None` if this instance was the
    /// last.
    pub taken_elsewhere: Option<u64>,
}

/// How a message is dead from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    pub reason: DeadReason,
    pub failures: u32,
}

impl Death {
    /// The death of a message that could not be read.
    pub const INVALID: Self = Self { reason: DeadReason::Invalid, failures: 0 };
}

/// Messages that a script made dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    pub count: u32,
    /// The id of the first one.
    pub sample: Option<MessageId>,
}

impl Deaths {
    pub fn of<'a>(ids: impl IntoIterator<Item = &'a str>) -> Self {
        let mut ids = ids.into_iter().peekable();
        let sample = ids.peek().and_then(|id| MessageId::stored(id).ok());
        Self { count: u32::try_from(ids.count()).unwrap_or(u32::MAX), sample }
    }
}

/// The reply of `Store::cut_leases`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutLeases {
    /// Leases that this call made expire.
    pub cut: u32,
    /// The deadline that remaining leases exceed, in microseconds; `None` without such leases.
    pub beyond: Option<u64>,
}

/// The reply of a recovery of expired leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Leases that had expired, including those of messages made dead.
    pub expired: u32,
    /// Messages made dead, reason `crash`.
    pub dead: Deaths,
    /// Whether more expired leases remain.
    pub more: bool,
}

#[cfg(test)]
impl Claimed {
    /// A message without a body that was never claimed before.
    pub fn new(id: &str, not_before: UnixMillis) -> Self {
        Self {
            id: MessageId::parse(id).expect("an id"),
            body: Bytes::new(),
            failures: 0,
            not_before,
            waited: Duration::ZERO,
            suspect: false,
            tried: false,
            crashed_out: false,
        }
    }
}

#[cfg(test)]
impl Claim {
    /// The reply for a partition without messages.
    pub fn empty(clock: ServerClock) -> Self {
        Self {
            clock,
            token: Token(1),
            messages: Vec::new(),
            paused: false,
            next_due: None,
            next_lease: None,
            suspects: 0,
            parked: 0,
            orphans: Deaths::default(),
            taken_elsewhere: None,
        }
    }
}
