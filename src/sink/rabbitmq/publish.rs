//! One batch over one channel: published message by message, then every confirm awaited, and only then judged.
//!
//! This order matters. The broker sends an unroutable message back before it confirms it, and lapin hands what came
//! back to whichever confirm comes next: `Ack(None)` may well be the confirm of a message that was returned.
//! But once all confirms of a batch have come, everything that was returned has been handed out too, and can
//! be told by its `Tag`. Until then no message of the batch may count as delivered.

use std::collections::HashSet;

use lapin::{
    Confirmation, Error, ErrorKind,
    options::BasicPublishOptions,
    protocol::{AMQPErrorKind, AMQPSoftError},
};
use tokio::time::{Instant, timeout_at};

use super::{
    link::{Lease, Link},
    message::{Prepared, Tag},
};
use crate::{amqp::text, outcome::Outcome, sink::Report};

/// What one batch needs.
pub struct Batch<'a> {
    pub link: &'a Link,
    pub exchange: &'a str,
    /// Whether all messages of the sink go to this exchange: then what is wrong with it is the sink's trouble.
    pub fixed: bool,
    pub deadline: Instant,
    pub report: &'a Report,
}

/// How publishing ended for a batch, or for its first part.
enum End {
    /// The verdicts, in order, on as many messages as were published. The others were not: the broker blocks.
    Judged(Vec<Verdict>),
    /// The channel or the connection is gone, and nothing can be said about any of the batch.
    Broken(Error),
    /// Nothing can be said about any of the batch in time; perhaps the last ones were not sent.
    Late,
}

enum Verdict {
    Taken,
    Unroutable(String),
    Refused,
}

impl Batch<'_> {
    /// Reports every message of `messages`.
    pub async fn publish(&self, messages: Vec<Prepared>) {
        if let Some(reason) = self.link.blocked() {
            return self.report_all(&messages, &self.unavailable(&blocked(&reason)));
        }
        let lease = match timeout_at(self.deadline, self.link.channel(self.exchange)).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => return self.report_all(&messages, &self.broken(&error)),
            Err(_) => {
                let waited = self.link.blocked().map_or_else(|| "no channel in time".into(), |reason| blocked(&reason));
                return self.report_all(&messages, &self.unavailable(&waited));
            }
        };
        match self.attempt(&lease, &messages).await {
            End::Judged(verdicts) => {
                lease.give_back();
                let (published, unsent) = messages.split_at(verdicts.len());
                for (message, verdict) in published.iter().zip(verdicts) {
                    self.report.outcome(message.index, self.outcome(verdict));
                }
                let reason = self.link.blocked().unwrap_or_default();
                self.report_all(unsent, &self.unavailable(&blocked(&reason)));
            }
            End::Broken(error) if is_precondition(&error) => {
                drop(lease);
                self.isolate(messages, &text(&error)).await;
            }
            End::Broken(error) => self.report_all(&messages, &self.broken(&error)),
            End::Late => {
                if let Some(reason) = self.link.blocked() {
                    // The connection stays: on a new one the broker would take one message more before it says so.
                    return self.report_all(&messages, &self.unavailable(&blocked(&reason)));
                }
                // What was dropped half-way would still be sent, and mixed up with what follows.
                self.link.cut();
                // Whatever came to the broker, its silence says nothing about any message: no attempt counts.
                self.report_all(&messages, &self.unavailable("no confirm from the broker in time"));
            }
        }
    }

    async fn attempt(&self, lease: &Lease<'_>, messages: &[Prepared]) -> End {
        let mut confirms = Vec::with_capacity(messages.len());
        let mut broken = None;
        for message in messages {
            if self.link.blocked().is_some() {
                break;
            }
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let exchange = self.exchange.into();
            let (key, properties) = (message.routing_key.clone(), message.properties.clone());
            let publishing = lease.channel().basic_publish(exchange, key, options, &message.payload, properties);
            // One after the other: lapin mixes up confirms when a channel is used concurrently.
            match timeout_at(self.deadline, publishing).await {
                Ok(Ok(confirm)) => confirms.push(confirm),
                // The confirms that were pending then know better why.
                Ok(Err(error)) => {
                    broken = Some(error);
                    break;
                }
                Err(_) => return End::Late,
            }
        }
        let mut taken = Vec::with_capacity(confirms.len());
        let mut returned = HashSet::new();
        for confirm in confirms {
            let (ack, message) = match timeout_at(self.deadline, confirm).await {
                Ok(Ok(Confirmation::Ack(message))) => (true, message),
                Ok(Ok(Confirmation::Nack(message))) => (false, message),
                Ok(Ok(Confirmation::NotRequested)) => (false, None),
                Ok(Err(error)) => return End::Broken(error),
                Err(_) => return End::Late,
            };
            taken.push(ack);
            if let Some(message) = message {
                returned.insert(Tag::of(&message.properties));
            }
        }
        if let Some(error) = broken {
            return End::Broken(error);
        }
        // Without its headers it cannot be told which message it was, so none may count as delivered.
        let unknown = returned.contains(&None);
        let verdict = |(message, taken): (&Prepared, bool)| match taken {
            false => Verdict::Refused,
            true if unknown => Verdict::Unroutable("one of the batch was returned".into()),
            true if returned.contains(&Some(message.tag.clone())) => {
                Verdict::Unroutable(message.routing_key.to_string())
            }
            true => Verdict::Taken,
        };
        End::Judged(messages.iter().zip(taken).map(verdict).collect())
    }

    /// One of `messages` made the broker close the channel: finds it by halving. What stood before it was taken
    /// already and is delivered again, a few times at most.
    async fn isolate(&self, mut messages: Vec<Prepared>, error: &str) {
        if let [message] = messages.as_slice() {
            return self.report.outcome(message.index, Outcome::Rejected { error: error.to_owned() });
        }
        let second = messages.split_off(messages.len() / 2);
        Box::pin(self.publish(messages)).await;
        Box::pin(self.publish(second)).await;
    }

    fn outcome(&self, verdict: Verdict) -> Outcome {
        let failed = |error| Outcome::Failed { error, retry_after: None };
        match verdict {
            Verdict::Taken => Outcome::Confirmed,
            Verdict::Unroutable(key) => {
                failed(format!("exchange `{}` has no queue for the routing key `{key}`", self.exchange))
            }
            Verdict::Refused => failed("refused by the broker (nack)".into()),
        }
    }

    /// What an error of the channel or the connection means for messages of which nothing else is known.
    fn broken(&self, error: &Error) -> Outcome {
        match self.unavailable(&text(error)) {
            Outcome::Unavailable { error: text } if !self.fixed && concerns_exchange(error) => {
                Outcome::Failed { error: text, retry_after: None }
            }
            outcome => outcome,
        }
    }

    fn unavailable(&self, error: &str) -> Outcome {
        Outcome::Unavailable { error: format!("exchange `{}`: {error}", self.exchange) }
    }

    fn report_all(&self, messages: &[Prepared], outcome: &Outcome) {
        for message in messages {
            self.report.outcome(message.index, outcome.clone());
        }
    }
}

/// To be shown.
pub fn blocked(reason: &str) -> String {
    format!("the broker takes nothing: {reason}")
}

/// Whether the broker closed the channel because of the exchange: it is not there, or not for us.
fn concerns_exchange(error: &Error) -> bool {
    matches!(soft(error), Some(AMQPSoftError::NOTFOUND | AMQPSoftError::ACCESSREFUSED))
}

/// Whether the broker closed the channel because of what a message is, not of who sends it or where to.
fn is_precondition(error: &Error) -> bool {
    matches!(soft(error), Some(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE))
}

/// Why the broker closed the channel, and only that.
fn soft(error: &Error) -> Option<&AMQPSoftError> {
    let ErrorKind::ProtocolError(error) = error.kind() else { return None };
    let AMQPErrorKind::Soft(error) = error.kind() else { return None };
    Some(error)
}
