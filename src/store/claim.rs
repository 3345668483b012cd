//! Claims: a lease on due messages, and the recovery of leases that expired.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    message::MessageId,
    time::{ServerClock, UnixMillis},
};

/// The lease deadline in microseconds on Redis' clock; good for one claim only.
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
    /// The first that are due, up to a company, and nothing else with them; one with three or more crashes alone. None due:
    /// ordinary messages.
    Few,
    /// None. Those that are due are put off by this, and 20 ms more each company.
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
    /// Many messages are expected, so that it is worth a call of its own. Others may wait a few milliseconds for those of other
    /// partitions.
    pub backlog: bool,
    pub suspects: Suspects,
    /// Most suspects of one claim, 1 to 1000.
    pub company: usize,
    /// At most so many messages, 1 to 1000. A repeated claim returns those of the earlier try, even if they are more.
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
    pub orphans: Deaths,
    /// When another instance last took messages of the partition, in microseconds; `None` when the last was this one.
    pub taken_elsewhere: Option<u64>,
}

/// Messages that a script made dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    pub count: u32,
    /// The first of them.
    pub sample: Option<MessageId>,
}

impl Deaths {
    pub fn of<'a>(ids: impl IntoIterator<Item = &'a str>) -> Self {
        let mut ids = ids.into_iter().peekable();
        let sample = ids.peek().and_then(|id| MessageId::parse(id).ok());
        Self { count: u32::try_from(ids.count()).unwrap_or(u32::MAX), sample }
    }
}

/// The reply of a look for leases that end too late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutLeases {
    /// Leases that were ended; they have expired now.
    pub cut: u32,
    /// The deadline that other leases exceed, in microseconds; `None` without such leases.
    pub beyond: Option<u64>,
}

/// The reply of a recovery of expired leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Leases that had expired, the dead included.
    pub expired: u32,
    /// Of these, made dead, reason `crash`.
    pub dead: Deaths,
    /// Whether more expired leases wait.
    pub more: bool,
}
