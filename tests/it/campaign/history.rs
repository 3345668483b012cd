//! The history of an id: each call with its answer, and each arrival at a sink. A breach prints all of it.

use std::fmt;

use super::payload;

pub const NO_INSTANCE: usize = usize::MAX;

/// The change that a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Schedule,
    Replace,
    Reschedule,
    DeliverNow,
    Cancel,
    /// A dead letter becomes pending again.
    Redrive,
}

impl Operation {
    /// Whether it decides the content of the message.
    pub fn writes(self) -> bool {
        matches!(self, Self::Schedule | Self::Replace)
    }
}

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It was executed; the message is due at that time, in epoch milliseconds. Without meaning for a cancellation.
    Done { due: u64 },
    /// It changed nothing, and never will.
    Nothing(String),
    /// It may have been executed, or be executed later: by an instance that is stopped and has the request already.
    Unknown(String),
}

/// A call for one id.
#[derive(Clone, Debug)]
pub struct Call {
    pub operation: Operation,
    /// The version of the payload, of a call that writes.
    pub version: u32,
    /// No due time that the call asks for is before this one, in epoch milliseconds.
    pub not_before: u64,
    /// `NO_INSTANCE`: made at a server of Redis or at a broker.
    pub instance: usize,
    /// Epoch milliseconds.
    pub called: u64,
    pub answered: u64,
    pub answer: Answer,
}

/// How a sink took a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Before the reply was written completely.
    Open,
    Status(u16),
    /// The connection ended without a reply.
    Dropped,
    /// Written so late that the sender may have given up, or only in part but with its status line.
    Late(u16),
}

/// A message at the endpoint.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub id: String,
    /// `None`: the content is not that of any version.
    pub version: Option<u32>,
    /// As the headers of punctual have it.
    pub attempt: u32,
    pub due: u64,
    /// Epoch milliseconds: between these times. A queue of RabbitMQ is read later than it gets a message.
    pub since: u64,
    pub at: u64,
    /// Right before the reply was written, or when the sender was gone. `None`: neither was observed.
    pub ended: Option<u64>,
    /// The route that its headers name.
    pub route: String,
    pub reply: Reply,
    /// The instance that sent it. `None`: a broker does not know it.
    pub sender: Option<usize>,
    /// A header that differs from what was scheduled.
    pub wrong: Option<String>,
}

impl Arrival {
    /// A message that a sink confirmed. It arrived between the two times of `span`.
    pub fn confirmed(id: String, body: &[u8], span: [u64; 2], header: impl Fn(&str) -> String) -> Self {
        let version = payload::version(&id, body);
        let expected = version.map(|version| version.to_string()).unwrap_or_default();
        let found = header("X-Version");
        let wrong = (found != expected).then(|| format!("X-Version is `{found}`"));
        Self {
            version,
            attempt: header("punctual-attempt").parse().unwrap_or_default(),
            due: header("punctual-due").parse().unwrap_or_default(),
            since: span[0],
            at: span[1],
            ended: None,
            route: header("punctual-route"),
            reply: Reply::Status(200),
            sender: None,
            wrong,
            id,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, version, instance, called, answered, answer, not_before } = self;
        write!(
            f,
            "{called} to {answered}: {operation:?} version {version}, not before {not_before}, at instance {instance}: {answer:?}"
        )
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, attempt, due, since, at, ended, reply, sender, wrong, .. } = self;
        write!(
            f,
            "{at}: arrived from {sender:?}, version {version:?}, attempt {attempt}, due {due}: {reply:?} at {ended:?}"
        )?;
        if since < at {
            write!(f, ", perhaps since {since}")?;
        }
        wrong.as_ref().map_or(Ok(()), |wrong| write!(f, ", {wrong}"))
    }
}
