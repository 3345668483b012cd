//! One batch to one exchange: published message by message on one channel, and each confirm used as it comes.
//!
//! RabbitMQ closes a channel over a message that it refuses (its headers, or a routing key that topic permissions forbid).
//! It has then processed what was published on this channel before that message, and nothing after it; but it does not
//! say which message it was, and confirms that it still owed never come. So what has no confirm is published once more,
//! each message alone on a channel of its own (`alone`), until the refused one is found. What came after it was not
//! processed, and goes on as usual. No message is processed more than twice.

use std::{iter, sync::Arc};

use futures::{
    StreamExt,
    future::{join, join_all},
    stream::FuturesUnordered,
};
use lapin::{Error, ErrorKind};
use tokio::time::{Instant, timeout_at};

use super::{
    channel::{Pending, Verdict},
    link::{Link, MAX_LONE_CHANNELS},
    message::Prepared,
    refusal::{Refusal, Refusals},
};
use crate::{
    connector::rabbitmq::text,
    sink::{Outcome, Report},
};

/// Why a message has no confirm at the end of its time.
const LATE: &str = "no confirm from the broker in time";

/// What one batch needs.
pub struct Batch<'a> {
    pub link: &'a Arc<Link>,
    pub exchange: &'a str,
    /// Whether all messages of the sink go to this exchange: then what is wrong with it is the sink's trouble.
    pub fixed: bool,
    pub refusals: &'a Refusals,
    pub deadline: Instant,
    pub report: &'a Report,
}

/// What one channel left of a batch.
#[derive(Default)]
struct Left {
    /// Published, without a confirm, on a channel that is closed.
    doubtful: Vec<Prepared>,
    /// Not published.
    unsent: Vec<Prepared>,
}

/// What came of a message that was alone on its channel.
enum Lone {
    /// Nothing that concerns others.
    Reported,
    /// The broker closed the channel over this message.
    Culprit,
    /// So it did over the exchange, which concerns all others.
    NoExchange(Error),
}

impl Batch<'_> {
    /// Reports every message of `messages`.
    pub async fn publish(&self, messages: Vec<Prepared>) {
        let (known, others): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| self.refusals.contains(message.domain.as_ref()));
        // What was refused before would close the channel of the others.
        join(self.each_alone(known), self.together(others)).await;
    }

    async fn together(&self, messages: Vec<Prepared>) {
        if messages.is_empty() {
            return;
        }
        let Some(Left { doubtful, unsent }) = self.over_one_channel(messages).await else { return };
        let resolving = async {
            let unprocessed = self.find_culprit(doubtful).await;
            Box::pin(self.publish(unprocessed)).await;
        };
        join(resolving, Box::pin(self.publish(unsent))).await;
    }

    /// `None`: all are reported.
    async fn over_one_channel(&self, messages: Vec<Prepared>) -> Option<Left> {
        if let Some(reason) = self.link.blocked() {
            self.report_without_domain(&messages, &self.unavailable(&blocked(&reason)));
            return None;
        }
        let opening = async {
            self.link.see(self.exchange).await?;
            self.link.channel().await
        };
        let lease = match timeout_at(self.deadline, opening).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => {
                self.report_broken(&messages, &error);
                return None;
            }
            Err(_) => {
                self.report_without_domain(&messages, &self.late("no channel in time"));
                return None;
            }
        };
        let channel = Arc::clone(lease.channel());
        let mut open: Vec<Option<Prepared>> = messages.into_iter().map(Some).collect();
        let confirms = FuturesUnordered::new();
        let (mut lost, mut stuck) = (None, false);
        for (place, message) in open.iter().enumerate() {
            if self.link.blocked().is_some() {
                break;
            }
            let message = message.as_ref().expect("none is reported yet");
            match timeout_at(self.deadline, channel.publish(self.exchange, message)).await {
                Ok(Ok(pending)) => confirms.push(confirmed(place, pending)),
                Ok(Err(error)) => {
                    lost = Some(error);
                    break;
                }
                Err(_) => {
                    stuck = true;
                    break;
                }
            }
        }
        let published = confirms.len();
        if stuck {
            // What was dropped half-way would still be sent, and mixed up with what follows.
            drop(lease);
            if self.link.blocked().is_none() {
                self.link.cut();
            }
        } else {
            lease.give_back();
        }
        let is_late = !self.take_confirms(confirms, &mut open, &mut lost).await;
        if is_late {
            channel.retire();
        }
        let unsent = open.split_off(published).into_iter().flatten().collect();
        let left = Left { doubtful: open.into_iter().flatten().collect(), unsent };
        match &lost {
            _ if is_late || stuck => self.report_all(left.doubtful.iter().chain(&left.unsent), &self.late(LATE)),
            Some(error) if is_of_channel(error) && self.link.is_connected() => {
                // It may be gone.
                self.link.forget(self.exchange);
                return Some(left);
            }
            Some(error) => self.report_broken(left.doubtful.iter().chain(&left.unsent), error),
            // All that were published are reported.
            None => {
                let reason = self.link.blocked().unwrap_or_default();
                self.report_without_domain(&left.unsent, &self.unavailable(&blocked(&reason)));
            }
        }
        None
    }

    /// Reports each message as its confirm comes, and takes it from `open`. `lost`: the first error instead of a confirm.
    /// Returns whether all of them resolved in time.
    async fn take_confirms(
        &self,
        mut confirms: FuturesUnordered<impl Future<Output = (usize, Result<Verdict, Error>)>>,
        open: &mut [Option<Prepared>],
        lost: &mut Option<Error>,
    ) -> bool {
        loop {
            match timeout_at(self.deadline, confirms.next()).await {
                Ok(Some((place, Ok(verdict)))) => {
                    let message = open[place].take().expect("one confirm for each");
                    self.report_verdict(&message, verdict);
                }
                // It knows better than what was published after it why the channel is closed.
                Ok(Some((_, Err(error)))) => *lost = Some(lost.take().filter(tells_why).unwrap_or(error)),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Publishes each alone, in order, until the broker closes the channel over one. Returns those that were published
    /// after that one the first time: the broker did not process them.
    async fn find_culprit(&self, doubtful: Vec<Prepared>) -> Vec<Prepared> {
        let mut rest = doubtful.into_iter();
        // The first by itself: where the exchange is in trouble, that is enough to know.
        for size in iter::once(1).chain(iter::repeat(MAX_LONE_CHANNELS)) {
            let some: Vec<Prepared> = rest.by_ref().take(size).collect();
            if some.is_empty() {
                break;
            }
            let mut is_found = false;
            for end in join_all(some.iter().map(|message| self.alone(message))).await {
                match end {
                    Lone::Reported => {}
                    Lone::Culprit => is_found = true,
                    Lone::NoExchange(error) => {
                        self.report_broken(&rest.collect::<Vec<_>>(), &error);
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

    async fn each_alone(&self, messages: Vec<Prepared>) {
        join_all(messages.iter().map(|message| self.alone(message))).await;
    }

    /// Reports it.
    async fn alone(&self, message: &Prepared) -> Lone {
        if let Some(reason) = self.link.blocked() {
            self.report_without_domain([message], &self.unavailable(&blocked(&reason)));
            return Lone::Reported;
        }
        let publishing = async {
            self.link.see(self.exchange).await?;
            let lease = self.link.lone_channel().await?;
            lease.channel().publish(self.exchange, message).await?.verdict().await
        };
        let error = match timeout_at(self.deadline, publishing).await {
            Ok(Ok(verdict)) => {
                self.refusals.remove(message.domain.as_ref());
                self.report_verdict(message, verdict);
                return Lone::Reported;
            }
            Ok(Err(error)) => error,
            Err(_) => {
                self.report_one(message, self.late(LATE));
                return Lone::Reported;
            }
        };
        match Refusal::of(&error) {
            Some(Refusal::Exchange) => {
                self.link.forget(self.exchange);
                self.report_broken([message], &error);
                Lone::NoExchange(error)
            }
            Some(refusal) => {
                if refusal == Refusal::RoutingKey {
                    self.refusals.insert(message.domain.clone());
                }
                self.report_one(message, Outcome::Rejected { error: self.about(&text(&error)) });
                Lone::Culprit
            }
            None => {
                self.report_broken([message], &error);
                Lone::Reported
            }
        }
    }

    fn report_verdict(&self, message: &Prepared, verdict: Verdict) {
        let failed = |error| Outcome::Failed { error, retry_after: None };
        let outcome = match verdict {
            Verdict::Taken => Outcome::Confirmed,
            Verdict::Returned => {
                let (exchange, key) = (self.exchange, &message.routing_key);
                failed(format!("exchange `{exchange}` has no queue for the routing key `{key}`"))
            }
            Verdict::Refused => failed("refused by the broker (nack)".into()),
        };
        self.report_one(message, outcome);
    }

    /// By an error of the channel or the connection; nothing else is known of these messages.
    fn report_broken<'m>(&self, messages: impl IntoIterator<Item = &'m Prepared>, error: &Error) {
        match (Refusal::of(error) == Some(Refusal::Exchange), self.fixed) {
            (true, false) => {
                let error = self.about(&text(error));
                self.report_all(messages, &Outcome::Failed { error, retry_after: None });
            }
            (false, _) if is_of_channel(error) && self.link.is_connected() => {
                self.report_all(messages, &self.unavailable(&text(error)));
            }
            _ => self.report_without_domain(messages, &self.unavailable(&text(error))),
        }
    }

    /// Nothing came in time. The broker's silence says nothing about any message: no attempt counts.
    fn late(&self, what: &str) -> Outcome {
        if let Some(reason) = self.link.blocked() {
            return self.unavailable(&blocked(&reason));
        }
        self.link.examine();
        self.unavailable(what)
    }

    fn unavailable(&self, error: &str) -> Outcome {
        Outcome::Unavailable { error: self.about(error) }
    }

    fn about(&self, error: &str) -> String {
        format!("exchange `{}`: {error}", self.exchange)
    }

    fn report_all<'m>(&self, messages: impl IntoIterator<Item = &'m Prepared>, outcome: &Outcome) {
        messages.into_iter().for_each(|message| self.report_one(message, outcome.clone()));
    }

    /// The trouble is that of the whole sink.
    fn report_without_domain<'m>(&self, messages: impl IntoIterator<Item = &'m Prepared>, outcome: &Outcome) {
        messages.into_iter().for_each(|message| self.report.outcome(message.index, outcome.clone()));
    }

    fn report_one(&self, message: &Prepared, outcome: Outcome) {
        self.report.outcome_in(message.index, message.domain.clone(), outcome);
    }
}

async fn confirmed(place: usize, pending: Pending) -> (usize, Result<Verdict, Error>) {
    (place, pending.verdict().await)
}

/// To be shown.
pub fn blocked(reason: &str) -> String {
    format!("the broker takes nothing: {reason}")
}

/// Whether the broker closed the channel, or it was closed before.
fn is_of_channel(error: &Error) -> bool {
    Refusal::of(error).is_some() || matches!(error.kind(), ErrorKind::InvalidChannelState(..))
}

fn tells_why(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::InvalidChannelState(..))
}
