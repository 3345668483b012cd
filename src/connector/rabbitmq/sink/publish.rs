//! Publishes a batch to one exchange, message by message on one channel, and reports each confirm as it arrives. While
//! messages of other routes or exchanges wait for a channel, a batch releases its channel after some messages, and
//! waits for its next turn.
//!
//! RabbitMQ closes a channel at a message that it refuses: because of a header, or because topic permissions forbid the
//! routing key. It has processed the messages before that one, and none after it. It does not report which message it
//! refused, and it drops the confirms that are still due. So each unconfirmed message is published once more, alone on
//! its own channel (`publish_alone`), until the refused one is found. The messages after that one were not processed,
//! and are published as usual. No message is processed more than twice.

use std::{iter, sync::Arc};

use futures::{
    StreamExt,
    future::{join, join_all},
    stream::FuturesUnordered,
};
use lapin::{Error, ErrorKind};
use tokio::time::{Instant, timeout_at};

use super::{
    channel::{ConfirmVerdict, PendingConfirm},
    connection::{ChannelPermit, MAX_LONE_CHANNELS, SinkConnection},
    message::PreparedMessage,
    refusal::{Refusal, Refusals},
};
use crate::{
    connector::rabbitmq::text,
    sink::{Domain, Outcome, Report},
};

const NO_CONFIRM: &str = "no confirm from the broker in time";

/// Publishes messages to one exchange until a deadline.
pub struct PublishBatch<'a> {
    pub connection: &'a Arc<SinkConnection>,
    /// Route of all messages.
    pub route: &'a Arc<str>,
    pub exchange: &'a str,
    /// Whether all messages of the sink go to this exchange. Its errors then concern the whole sink.
    pub is_only_exchange: bool,
    pub refusals: &'a Refusals,
    pub deadline: Instant,
    pub report: &'a Report,
}

/// Messages of a batch that a closed channel left without a confirm.
struct Unconfirmed {
    published: Vec<PreparedMessage>,
    unsent: Vec<PreparedMessage>,
}

/// The result of a message that was published alone. The message is reported.
enum LoneResult {
    Done,
    /// The broker closed the channel because of this message.
    Refused,
    /// The broker closed the channel because of the exchange, which concerns all messages.
    NoExchange(Error),
}

impl PublishBatch<'_> {
    /// Reports every message of `messages`.
    pub async fn publish(&self, messages: Vec<PreparedMessage>) {
        // A message of a domain that was refused before would close the channel of the others.
        let (refused, others): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| self.refusals.contains(message.domain.as_ref()));
        let alone = join_all(refused.iter().map(|message| self.publish_alone(message)));
        join(alone, self.publish_together(others)).await;
    }

    async fn publish_together(&self, messages: Vec<PreparedMessage>) {
        if messages.is_empty() {
            return;
        }
        let Some(Unconfirmed { published, unsent }) = self.publish_on_one_channel(messages).await else { return };
        let resolving = async {
            let unprocessed = self.find_refused(published).await;
            Box::pin(self.publish(unprocessed)).await;
        };
        join(resolving, Box::pin(self.publish(unsent))).await;
    }

    /// `None`: all messages are reported.
    async fn publish_on_one_channel(&self, messages: Vec<PreparedMessage>) -> Option<Unconfirmed> {
        if let Some(reason) = self.connection.blocked() {
            self.report_for_sink(&messages, &self.unavailable(&blocked(&reason)));
            return None;
        }
        let turn: Option<Domain> = (!self.is_only_exchange).then(|| self.exchange.into());
        let opening = async {
            self.connection.ensure_exchange(self.exchange).await?;
            self.connection.channel(self.route, turn.clone()).await
        };
        let permit = match timeout_at(self.deadline, opening).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(error)) => {
                self.report_error(&messages, &error);
                return None;
            }
            Err(_) => {
                self.report_for_sink(&messages, &self.timed_out("no channel in time"));
                return None;
            }
        };
        let mut channels = vec![Arc::clone(permit.channel())];
        let mut permit = Some(permit);
        let mut unreported: Vec<Option<PreparedMessage>> = messages.into_iter().map(Some).collect();
        let confirms = FuturesUnordered::new();
        let (mut error, mut is_publish_stuck, mut is_turn_late) = (None, false, false);
        let mut unpublished = unreported.iter().flatten().peekable();
        while error.is_none() && unpublished.peek().is_some() && self.connection.blocked().is_none() {
            if !confirms.is_empty() && self.connection.others_wait(self.route, turn.as_ref()) {
                // Other messages have their turn before the rest of the batch.
                permit.take().into_iter().for_each(ChannelPermit::release);
                match timeout_at(self.deadline, self.connection.channel(self.route, turn.clone())).await {
                    Ok(Ok(next)) => {
                        channels.push(Arc::clone(next.channel()));
                        permit = Some(next);
                    }
                    Ok(Err(failed)) => error = Some(failed),
                    Err(_) => is_turn_late = true,
                }
            }
            let Some(current) = &permit else { break };
            let publishing = current.channel().publish_some(self.exchange, &mut unpublished);
            let Ok((pending, failed)) = timeout_at(self.deadline, publishing).await else {
                is_publish_stuck = true;
                break;
            };
            for pending in pending {
                confirms.push(confirmed(confirms.len(), pending));
            }
            error = failed;
        }
        let published = confirms.len();
        if is_publish_stuck {
            // lapin would still send the messages of the dropped futures, between later ones.
            drop(permit);
            if self.connection.blocked().is_none() {
                self.connection.abort();
            }
        } else {
            permit.into_iter().for_each(ChannelPermit::release);
        }
        let all_resolved = self.report_confirms(confirms, &mut unreported, &mut error).await;
        if !all_resolved {
            for channel in &channels {
                channel.retire();
            }
        }
        let unsent: Vec<PreparedMessage> = unreported.split_off(published).into_iter().flatten().collect();
        let published: Vec<PreparedMessage> = unreported.into_iter().flatten().collect();
        match &error {
            _ if !all_resolved || is_publish_stuck || is_turn_late => {
                self.report_all(published.iter().chain(&unsent), &self.timed_out(NO_CONFIRM));
            }
            Some(error) if is_of_channel(error) && self.connection.is_connected() => {
                // The exchange might have been deleted.
                self.connection.forget_exchange(self.exchange);
                return Some(Unconfirmed { published, unsent });
            }
            Some(error) => self.report_error(published.iter().chain(&unsent), error),
            // The connection was blocked. All published messages are reported.
            None => {
                let reason = self.connection.blocked().unwrap_or_default();
                self.report_for_sink(&unsent, &self.unavailable(&blocked(&reason)));
            }
        }
        None
    }

    /// Reports each message as its confirm arrives, and takes it from `unreported`. Sets `error` to the first error in
    /// place of a confirm. Returns whether all confirms resolved before the deadline.
    async fn report_confirms(
        &self,
        mut confirms: FuturesUnordered<impl Future<Output = (usize, Result<ConfirmVerdict, Error>)>>,
        unreported: &mut [Option<PreparedMessage>],
        error: &mut Option<Error>,
    ) -> bool {
        let reporting = async {
            while let Some((index, result)) = confirms.next().await {
                match result {
                    Ok(verdict) => {
                        let message = unreported[index].take().expect("one confirm for each message");
                        self.report_verdict(&message, verdict);
                    }
                    // The error of a confirm has the broker's reason; the error of a later publish can lack it.
                    Err(confirm_error) => {
                        *error = Some(error.take().filter(has_reason).unwrap_or(confirm_error));
                    }
                }
            }
        };
        timeout_at(self.deadline, reporting).await.is_ok()
    }

    /// Publishes each message alone, in order, until the broker refuses one. Returns the messages after that one, which
    /// the broker did not process the first time.
    async fn find_refused(&self, published: Vec<PreparedMessage>) -> Vec<PreparedMessage> {
        let mut rest = published.into_iter();
        // The first message goes by itself: it is enough to detect an error of the exchange.
        for size in iter::once(1).chain(iter::repeat(MAX_LONE_CHANNELS)) {
            let group: Vec<PreparedMessage> = rest.by_ref().take(size).collect();
            if group.is_empty() {
                break;
            }
            let mut is_found = false;
            for result in join_all(group.iter().map(|message| self.publish_alone(message))).await {
                match result {
                    LoneResult::Done => {}
                    LoneResult::Refused => is_found = true,
                    LoneResult::NoExchange(error) => {
                        self.report_error(&rest.collect::<Vec<_>>(), &error);
                        return Vec::new();
                    }
                }
            }
            if is_found {
                break;
            }
        }
        rest.collect()
    }

    /// Publishes and reports a message on a channel of its own.
    async fn publish_alone(&self, message: &PreparedMessage) -> LoneResult {
        if let Some(reason) = self.connection.blocked() {
            self.report_for_sink([message], &self.unavailable(&blocked(&reason)));
            return LoneResult::Done;
        }
        let publishing = async {
            self.connection.ensure_exchange(self.exchange).await?;
            let permit = self.connection.lone_channel().await?;
            permit.channel().publish(self.exchange, message).await?.verdict().await
        };
        let error = match timeout_at(self.deadline, publishing).await {
            Ok(Ok(verdict)) => {
                self.refusals.remove(message.domain.as_ref());
                self.report_verdict(message, verdict);
                return LoneResult::Done;
            }
            Ok(Err(error)) => error,
            Err(_) => {
                self.report_one(message, self.timed_out(NO_CONFIRM));
                return LoneResult::Done;
            }
        };
        match Refusal::of(&error) {
            Some(Refusal::Exchange) => {
                self.connection.forget_exchange(self.exchange);
                self.report_error([message], &error);
                LoneResult::NoExchange(error)
            }
            Some(refusal) => {
                if refusal == Refusal::RoutingKey {
                    self.refusals.insert(message.domain.clone());
                }
                self.report_one(message, Outcome::Rejected { error: self.with_exchange(&text(&error)) });
                LoneResult::Refused
            }
            None => {
                self.report_error([message], &error);
                LoneResult::Done
            }
        }
    }

    fn report_verdict(&self, message: &PreparedMessage, verdict: ConfirmVerdict) {
        let failed = |error| Outcome::Failed { error, retry_after: None };
        let outcome = match verdict {
            ConfirmVerdict::Accepted => Outcome::Confirmed,
            ConfirmVerdict::Returned => {
                let (exchange, key) = (self.exchange, &message.routing_key);
                failed(format!("exchange `{exchange}` has no queue for the routing key `{key}`"))
            }
            ConfirmVerdict::Nacked => failed("refused by the broker (nack)".into()),
        };
        self.report_one(message, outcome);
    }

    /// Reports messages with an error of their channel or connection.
    fn report_error<'m>(&self, messages: impl IntoIterator<Item = &'m PreparedMessage>, error: &Error) {
        match (Refusal::of(error) == Some(Refusal::Exchange), self.is_only_exchange) {
            (true, false) => {
                let error = self.with_exchange(&text(error));
                self.report_all(messages, &Outcome::Failed { error, retry_after: None });
            }
            (false, _) if is_of_channel(error) && self.connection.is_connected() => {
                self.report_all(messages, &self.unavailable(&text(error)));
            }
            _ => self.report_for_sink(messages, &self.unavailable(&text(error))),
        }
    }

    /// The outcome of a timeout. The broker did not answer, so no attempt counts.
    fn timed_out(&self, error: &str) -> Outcome {
        if let Some(reason) = self.connection.blocked() {
            return self.unavailable(&blocked(&reason));
        }
        self.connection.probe();
        self.unavailable(error)
    }

    fn unavailable(&self, error: &str) -> Outcome {
        Outcome::Unavailable { error: self.with_exchange(error) }
    }

    fn with_exchange(&self, error: &str) -> String {
        format!("exchange `{}`: {error}", self.exchange)
    }

    fn report_all<'m>(&self, messages: impl IntoIterator<Item = &'m PreparedMessage>, outcome: &Outcome) {
        messages.into_iter().for_each(|message| self.report_one(message, outcome.clone()));
    }

    /// Reports a failure of the whole sink: without a domain.
    fn report_for_sink<'m>(&self, messages: impl IntoIterator<Item = &'m PreparedMessage>, outcome: &Outcome) {
        messages.into_iter().for_each(|message| self.report.outcome(message.index, outcome.clone()));
    }

    fn report_one(&self, message: &PreparedMessage, outcome: Outcome) {
        self.report.outcome_in(message.index, message.domain.clone(), outcome);
    }
}

async fn confirmed(index: usize, pending: PendingConfirm) -> (usize, Result<ConfirmVerdict, Error>) {
    (index, pending.verdict().await)
}

/// The text for a blocked connection.
pub fn blocked(reason: &str) -> String {
    format!("the broker has blocked the connection: {reason}")
}

/// Whether the broker has closed the channel, now or before.
fn is_of_channel(error: &Error) -> bool {
    Refusal::of(error).is_some() || !has_reason(error)
}

/// Whether the error says more than that the channel is closed.
fn has_reason(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::InvalidChannelState(..))
}

#[test]
fn the_error_of_a_closed_channel_is_not_that_of_the_connection() {
    use lapin::{
        ChannelState,
        protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError},
    };
    let answered = |kind| Error::from(ErrorKind::ProtocolError(AMQPError::new(kind, "the reason".into())));
    let closed = Error::from(ErrorKind::InvalidChannelState(ChannelState::Closed, "basic.publish"));
    let refused = answered(AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED));
    let ended = answered(AMQPErrorKind::Hard(AMQPHardError::CONNECTIONFORCED));
    assert_eq!([&closed, &refused, &ended].map(is_of_channel), [true, true, false]);
    assert_eq!([&closed, &refused, &ended].map(has_reason), [false, true, true]);
}
