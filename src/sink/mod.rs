//! The interface of sinks. A sink takes a batch and reports an outcome for each message as soon as the external system
//! confirmed or refused it, or the attempt failed. A sink does not use the scheduler, and of the store uses only the
//! connection to a Redis.
//!
//! The sinks are in `connector`; docs/writing-a-connector.md shows how to add one.

pub mod envelope;
pub mod headers;
pub mod inbox;
mod outcome;
mod settings;
pub mod template;
pub mod turns;

pub use self::{
    outcome::{CONFIRMED, FAILURE_KINDS, Outcome, UNSENT},
    settings::{Element, OpenSink, Render, SinkSettings},
};

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    message::{MessageId, Metadata, shown_occurrence},
    time::UnixMillis,
};

/// One attempt to deliver one message.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: MessageId,
    pub route: Arc<str>,
    /// Counts from 1.
    pub attempt: u32,
    /// The original due time.
    pub due: UnixMillis,
    pub metadata: Metadata,
    pub payload: Bytes,
    /// When the window of the route closes. A sink that still has the message then reports it as unsent. `None`: no
    /// limit.
    pub send_until: Option<Instant>,
}

impl Delivery {
    /// Whether the window of the route has closed.
    pub fn is_too_late(&self) -> bool {
        self.send_until.is_some_and(|until| until <= Instant::now())
    }

    /// An id that no other message of the route has: the stored one. That of a schedule is the same for all occurrences,
    /// so the one that consumers see takes its place.
    pub fn unique_id(&self) -> &str {
        shown_occurrence(&self.id, &self.metadata).unwrap_or(self.id.as_str())
    }

    /// The id that consumers see.
    pub fn shown_id(&self) -> &str {
        self.metadata.shown_id(&self.id)
    }
}

/// The smallest part of the external system that fails alone: a Kafka partition, a RabbitMQ exchange and routing key,
/// an HTTP endpoint, a Redis server. The text is shown to operators, and has no secrets.
pub type Domain = Arc<str>;

/// The outcome of one message of a batch.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The message's place in the batch.
    pub index: usize,
    /// The failure domain, if the sink has more than one and the message reached a domain.
    pub domain: Option<Domain>,
    pub outcome: Outcome,
    pub reply: Option<Reply>,
}

/// The reply of an HTTP endpoint, in addition to the outcome.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    /// The beginning of an error's text, or empty. It can repeat the payload, so it is stored as `last_error` of the
    /// message and never logged.
    pub text: String,
}

/// Receives the outcomes of one batch: in any order, one for each index of the batch.
#[derive(Clone, Debug)]
pub struct Report {
    outcomes: mpsc::UnboundedSender<Reported>,
}

impl Report {
    /// The receiver ends when all clones of the report are dropped. It holds at most one outcome per message.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Reported>) {
        let (outcomes, receiver) = mpsc::unbounded_channel();
        (Self { outcomes }, receiver)
    }

    /// Reports an outcome. `index` is the message's place in the batch. A second outcome for the same index is ignored.
    pub fn outcome(&self, index: usize, outcome: Outcome) {
        self.outcome_in(index, None, outcome);
    }

    /// Like `outcome`, with the failure domain if the sink has more than one.
    pub fn outcome_in(&self, index: usize, domain: Option<Domain>, outcome: Outcome) {
        self.send(Reported { index, domain, outcome, reply: None });
    }

    /// Like `outcome_in`, with the reply.
    pub fn replied(&self, index: usize, domain: Option<Domain>, outcome: Outcome, reply: Reply) {
        self.send(Reported { index, domain, outcome, reply: Some(reply) });
    }

    fn send(&self, reported: Reported) {
        // The receiver is closed after the batch's timeout.
        let _ = self.outcomes.send(reported);
    }
}

#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Maximum time from `send` to the last outcome. The caller drops `send` soon after it. Messages without an outcome
    /// by then count as timed out after sending.
    fn timeout(&self) -> Duration;

    /// Whether each message names its target. If so, one slow target leaves a part of `max_in_flight` to the other
    /// targets.
    fn has_destinations(&self) -> bool {
        false
    }

    /// The failure domain of the message, as in reports, if it is known before sending; `None` if the whole sink is one
    /// domain. Called for each message if messages name their target, otherwise only while a domain of the sink is
    /// down.
    fn domain(&self, _delivery: &Delivery) -> Option<Domain> {
        None
    }

    /// Delivers `batch` concurrently and returns once every outcome is reported.
    async fn send(&self, batch: Vec<Delivery>, report: Report);

    /// Checks that the external system is reachable and usable, without a delivery.
    ///
    /// # Errors
    /// The error as text for operators.
    async fn check(&self) -> Result<(), String>;

    /// A route stops: the sink reports its waiting messages as unsent, and completes those in progress.
    fn give_back(&self, _route: &Arc<str>) {}

    /// The program stops: the sink reports waiting messages as unsent, and completes those in progress.
    fn stop(&self) {}

    /// Closes the connections. Called once, after the last `send`.
    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn delivery(send_until: Option<Instant>) -> Delivery {
        Delivery {
            id: MessageId::parse("a").unwrap(),
            route: "r".into(),
            attempt: 1,
            due: UnixMillis::default(),
            metadata: Metadata::default(),
            payload: Bytes::new(),
            send_until,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_too_late_from_the_closing_of_the_window_on() {
        let now = Instant::now();
        for (send_until, expected) in [(None, false), (Some(now), true), (Some(now + Duration::from_millis(1)), false)]
        {
            assert_eq!(delivery(send_until).is_too_late(), expected, "{send_until:?}");
        }
    }

    #[test]
    fn a_sink_is_one_failure_domain_and_its_messages_name_no_target_unless_it_says_so() {
        struct Plain;

        #[async_trait]
        impl Sink for Plain {
            fn timeout(&self) -> Duration {
                Duration::ZERO
            }

            async fn send(&self, _: Vec<Delivery>, _: Report) {}

            async fn check(&self) -> Result<(), String> {
                Ok(())
            }
        }

        assert_eq!((Plain.domain(&delivery(None)), Plain.has_destinations()), (None, false));
    }
}
