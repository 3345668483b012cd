//! One attempt to deliver one message: from the request to the outcome.

use std::{sync::Arc, time::Duration};

use http::{Response, StatusCode};
use hyper::body::Body as _;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout_at},
};
use tracing::info;

use super::{
    WallClock,
    alarm::{Alarm, Elapsed},
    body::ReplyBody,
    connection::Connection,
    connector::{ConnectError, Connector},
    errors::{LostReply, SendError},
    http2::Shared,
    outcome, reply,
    request::RequestFactory,
    reuse::Permission,
};
use crate::sink::{Delivery, Domain, Outcome, Reply, Report};

/// Share of `timeout` within which a message must be sent, so that the rest is left for the reply. A later message is
/// not sent.
const SEND_WITHIN: f64 = 0.5;

/// Maximum connections that one message tries when they refuse it without processing it. An HTTP/2 server that ends a
/// shared connection refuses the requests that arrive too late.
const MAX_REFUSALS: u32 = 3;

/// Data that the messages of one batch share.
pub struct Batch {
    pub deadline: Instant,
    pub report: Report,
    /// Dropped with the last message.
    pub _unfinished: oneshot::Sender<()>,
}

/// One message that waits or is being sent.
pub struct Job {
    pub index: usize,
    pub delivery: Delivery,
    pub batch: Arc<Batch>,
}

impl Job {
    pub fn unsent(self, why: &str) {
        let error = format!("not sent: {why}");
        self.batch.report.outcome(self.index, Outcome::Unsent { error });
    }
}

/// Pause after a connect that failed because this machine has no files, ports or memory left.
const LOCAL_PAUSE: Duration = Duration::from_millis(250);

pub struct Sender {
    pub requests: RequestFactory,
    pub connector: Connector,
    pub timeout: Duration,
    pub clock: WallClock,
}

/// Maximum time of the connect that shows whether a lost connection is evidence against the endpoint.
const RECONNECT_WITHIN: Duration = Duration::from_secs(1);

/// A request that ended without a readable reply.
struct Failure {
    domain: Option<Domain>,
    outcome: Outcome,
    /// The status of a reply with an invalid head.
    status: Option<StatusCode>,
}

impl Sender {
    /// Sends a message and reports the outcome. Opens a connection if there is none, and keeps one that can be used
    /// again.
    pub async fn deliver(&self, job: Job, connection: &mut Option<Connection>, alarm: &mut Alarm) {
        let Job { index, delivery, batch } = job;
        let (deadline, report) = (batch.deadline, &batch.report);
        let (domain, mut response) = match self.reply(&delivery, deadline, connection, alarm).await {
            Ok(reply) => reply,
            Err(Failure { domain, outcome, status: None }) => return report.outcome_in(index, domain, outcome),
            Err(Failure { domain, outcome, status: Some(status) }) => {
                let reply = Reply { status: status.as_u16(), text: String::new() };
                return report.replied(index, domain, outcome, reply);
            }
        };
        let (status, outcome) = (response.status(), self.outcome(&response));
        let used = connection.as_mut().expect("the connection of the reply");
        let text = if outcome == Outcome::Confirmed {
            String::new()
        } else if let Some(location) = reply::location(&response, self.requests.secrets()) {
            location
        } else {
            used.run(reply::text(response.body_mut(), deadline, self.requests.secrets())).await
        };
        report.replied(index, domain, outcome, Reply { status: status.as_u16(), text });
        let is_framed = reply::is_framed(&response);
        let is_read = response.body().is_end_stream() || used.run(reply::drain(response.into_body(), deadline)).await;
        if used.shared().is_none() && !(is_framed && is_read) || used.has_ended() {
            *connection = None;
        }
    }

    /// Sends a request. Returns the failure domain and the head of the reply.
    async fn reply(
        &self,
        delivery: &Delivery,
        deadline: Instant,
        connection: &mut Option<Connection>,
        alarm: &mut Alarm,
    ) -> Result<(Option<Domain>, Response<ReplyBody>), Failure> {
        let failure = |domain, outcome| Failure { domain, outcome, status: None };
        let closed = || Outcome::Unsent { error: "the window of the route closed before it was sent".to_owned() };
        if delivery.is_too_late() {
            return Err(failure(None, closed()));
        }
        let send_by = self.send_by(deadline);
        let late = |text| failure(None, Outcome::Unsent { error: self.named(text) });
        if Instant::now() > send_by {
            return Err(late(ConnectError::Busy.text()));
        }
        let mut refusals = 0;
        loop {
            let request = self.requests.request(delivery, (self.clock)());
            let request = request.map_err(|error| failure(None, Outcome::Unsendable { error }))?;
            let domain = request.domain().cloned();
            let mut is_trial = false;
            if connection.as_ref().is_some_and(|kept| kept.shared().is_none() && kept.has_answered()) {
                match self.connector.reuse.permission() {
                    Permission::Granted => {}
                    Permission::Trial => is_trial = true,
                    Permission::Refused => *connection = None,
                }
            }
            // The server might have closed an idle connection.
            let may_be_closed = connection.is_some();
            if connection.is_none() {
                // A failed connect concerns every path.
                let opened = self.connect(send_by, deadline).await;
                *connection = Some(opened.map_err(|outcome| failure(None, outcome))?);
                // The connection is kept for the next message.
                if Instant::now() > send_by {
                    return Err(late("the connection was opened too late"));
                }
            }
            // A connect, or a refused request, takes time.
            if delivery.is_too_late() {
                return Err(failure(domain, closed()));
            }
            let used = connection.as_mut().expect("opened");
            let was_answering = used.has_answered();
            let latest = delivery.send_until.map_or(send_by, |until| send_by.min(until));
            let max_wait = latest.saturating_duration_since(Instant::now());
            let sent = alarm.timeout_at(deadline, used.send(request, max_wait)).await;
            if used.shared().is_some_and(Shared::is_unusable)
                && let Some(time) = self.connector.avoid_http2()
            {
                let address = self.connector.address();
                info!(address, "HTTP/2 fails there: connections speak HTTP/1.1 for {time:?}");
            }
            // Behind a balancer, another server might allow streams.
            let is_refused =
                matches!(sent, Ok(Err(SendError::NoStream))) && used.shared().is_some_and(Shared::allows_none);
            let outcome = match sent {
                Ok(Ok(response)) => {
                    self.connector.answered();
                    if is_trial {
                        self.connector.reuse.passed();
                    }
                    return Ok((domain, response));
                }
                Ok(Err(SendError::Unreadable(status))) => {
                    *connection = None;
                    let outcome = outcome_of(status, None);
                    return Err(Failure { domain, outcome, status: Some(status) });
                }
                Ok(Err(SendError::Lost(lost))) if was_answering && lost.is_of_connection => {
                    let outcome = self.lost(&lost, connection, is_trial, deadline).await;
                    return Err(failure(domain, outcome));
                }
                Ok(Err(SendError::NotSent(_)))
                    if (may_be_closed || used.shared().is_some()) && refusals < MAX_REFUSALS =>
                {
                    refusals += 1;
                    self.close(connection);
                    continue;
                }
                Ok(Err(SendError::NotSent(text))) if self.connector.has_answered_within(self.timeout) => {
                    Outcome::Unsent { error: self.named(&text) }
                }
                Ok(Err(SendError::NotSent(text))) => Outcome::Unavailable { error: self.named(&text) },
                Ok(Err(SendError::NoStream)) => {
                    Outcome::Unsent { error: self.named("no HTTP/2 stream was free in time") }
                }
                Ok(Err(SendError::Lost(lost))) => outcome::of_lost(&lost, &self.connector.address()),
                Err(Elapsed) if used.is_unsent() => {
                    Outcome::Unsent { error: self.named("the connection took no request in time") }
                }
                Err(Elapsed) => {
                    let error = self.named(&format!("no reply within {:?}", self.timeout));
                    Outcome::Throttled { error, retry_after: None }
                }
            };
            if is_refused {
                self.close(connection);
            } else if used.shared().is_none_or(Shared::is_ending) {
                *connection = None;
            }
            return Err(failure(domain, outcome));
        }
    }

    /// Latest time to send a message, so that the rest of `timeout` is left for the reply.
    fn send_by(&self, deadline: Instant) -> Instant {
        deadline.checked_sub(self.timeout.mul_f64(1.0 - SEND_WITHIN)).unwrap_or_else(Instant::now)
    }

    fn named(&self, text: &str) -> String {
        format!("{}: {text}", self.connector.address())
    }

    /// Drops a connection that accepts no more requests, or none at present.
    fn close(&self, connection: &mut Option<Connection>) {
        if let Some(shared) = connection.take().as_ref().and_then(Connection::shared) {
            self.connector.retire(Some(shared));
        }
    }

    /// The outcome of a message that was possibly processed: its connection, which was used before, was lost without a
    /// reply. If a new connection can be opened, the loss is not evidence against the endpoint. The new connection is
    /// kept for the next message.
    async fn lost(
        &self,
        lost: &LostReply,
        connection: &mut Option<Connection>,
        is_trial: bool,
        deadline: Instant,
    ) -> Outcome {
        let outcome = outcome::of_lost(lost, &self.connector.address());
        if connection.as_ref().is_some_and(|lost| lost.shared().is_none())
            && let Some(pause) = self.connector.reuse.lost(is_trial)
        {
            let address = self.connector.address();
            info!(address, "a kept connection was lost: connections are used once for {pause:?}");
        }
        self.close(connection);
        let deadline = deadline.min(Instant::now() + RECONNECT_WITHIN);
        let error = outcome.error().unwrap_or_default();
        match self.connect(deadline, deadline).await {
            Ok(opened) => {
                *connection = Some(opened);
                Outcome::Lost { error: format!("{error}; a new connection could be opened") }
            }
            // No connection was tried. The message was sent, nevertheless.
            Err(Outcome::Unsent { error: cause }) => Outcome::Lost { error: format!("{error}; {cause}") },
            Err(outcome) => outcome,
        }
    }

    /// `begin_by`: latest time to begin with a new connection.
    async fn connect(&self, begin_by: Instant, deadline: Instant) -> Result<Connection, Outcome> {
        if let Some(shared) = self.connector.shared() {
            return Ok(shared);
        }
        Err(match timeout_at(deadline, self.connector.connect(begin_by)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error @ ConnectError::Busy)) => Outcome::Unsent { error: self.named(error.text()) },
            Ok(Err(error @ ConnectError::Local(_))) => {
                // Without the pause, the message would be claimed again at once.
                sleep(LOCAL_PAUSE).await;
                Outcome::Unsent { error: self.named(error.text()) }
            }
            Ok(Err(error @ ConnectError::Remote(_))) => Outcome::Unavailable { error: self.named(error.text()) },
            Err(_) => Outcome::Unavailable { error: self.named("not connected in time") },
        })
    }

    fn outcome(&self, response: &Response<ReplyBody>) -> Outcome {
        let status = response.status();
        if status.is_success() {
            return Outcome::Confirmed;
        }
        outcome_of(status, reply::retry_after(response.headers(), (self.clock)()))
    }
}

fn outcome_of(status: StatusCode, retry_after: Option<Duration>) -> Outcome {
    outcome::of_status(status, format!("HTTP {}", status.as_u16()), retry_after)
}

#[cfg(test)]
mod tests;
