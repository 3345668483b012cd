//! One attempt to deliver one message: from the request to the outcome.

use std::time::Duration;

use http::Response;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};

use super::{
    WallClock,
    alarm::{Alarm, Elapsed},
    connection::{Connection, SendError},
    connector::Connector,
    outcome, reply,
    request::RequestFactory,
    workers::Job,
};
use crate::sink::{Delivery, Domain, Outcome, Reply};

/// Share of `timeout` within which a message is sent, or not at all: each request has at least the rest for its reply.
const SEND_WITHIN: f64 = 0.5;

/// Most connections, one after the other, that refuse a request without processing it. An HTTP/2 server that ends its
/// connection refuses what came too late, on a connection that others opened.
const MAX_REFUSALS: u32 = 3;

pub struct Sender {
    pub requests: RequestFactory,
    pub connector: Connector,
    pub timeout: Duration,
    pub clock: WallClock,
}

/// What became of a request without a reply.
struct Failure {
    domain: Option<Domain>,
    outcome: Outcome,
}

impl Sender {
    /// Reports the outcome. Opens a connection if there is none, and leaves one that can be used again.
    pub async fn deliver(&self, job: Job, connection: &mut Option<Connection>, alarm: &mut Alarm) {
        let Job { index, delivery, batch } = job;
        let (deadline, report) = (batch.deadline, &batch.report);
        let (domain, mut response) = match self.reply(&delivery, deadline, connection, alarm).await {
            Ok(reply) => reply,
            Err(Failure { domain, outcome }) => return report.outcome_in(index, domain, outcome),
        };
        let (status, outcome) = (response.status().as_u16(), self.outcome(&response));
        let used = connection.as_mut().expect("the connection of the reply");
        let text = if outcome == Outcome::Confirmed {
            String::new()
        } else {
            used.run(reply::text(response.body_mut(), deadline, self.requests.secrets())).await
        };
        report.replied(index, domain, outcome, Reply { status, text });
        if response.body().is_end_stream() {
            return;
        }
        if !used.run(reply::drain(response.into_body(), deadline)).await && used.shared().is_none() {
            *connection = None;
        }
    }

    /// The head of the reply, and the failure domain.
    async fn reply(
        &self,
        delivery: &Delivery,
        deadline: Instant,
        connection: &mut Option<Connection>,
        alarm: &mut Alarm,
    ) -> Result<(Option<Domain>, Response<Incoming>), Failure> {
        let failure = |domain, outcome| Failure { domain, outcome };
        if deadline < Instant::now() + self.timeout.mul_f64(1.0 - SEND_WITHIN) {
            let error = format!("{}: no connection was free in time", self.connector.address());
            return Err(failure(None, Outcome::Unsent { error }));
        }
        let mut refusals = 0;
        loop {
            let request = self.requests.request(delivery, (self.clock)());
            let request = request.map_err(|error| failure(None, Outcome::Unsendable { error }))?;
            let domain = request.domain().cloned();
            // One that was idle may be closed.
            let may_be_closed = connection.is_some();
            if connection.is_none() {
                // A failed connect concerns every path.
                *connection = Some(self.connect(deadline).await.map_err(|outcome| failure(None, outcome))?);
            }
            let used = connection.as_mut().expect("opened");
            let sent = alarm.timeout_at(deadline, used.send(request)).await;
            let error = match sent {
                Ok(Ok(response)) => return Ok((domain, response)),
                Ok(Err(SendError::NotSent(_)))
                    if (may_be_closed || used.shared().is_some()) && refusals < MAX_REFUSALS =>
                {
                    refusals += 1;
                    if let Some(shared) = used.shared() {
                        self.connector.retire(Some(shared));
                    }
                    *connection = None;
                    continue;
                }
                Ok(Err(SendError::NotSent(error) | SendError::Lost(error))) => {
                    outcome::of_error(&error, &self.connector.address())
                }
                Err(Elapsed) => {
                    let error = format!("{}: no reply within {:?}", self.connector.address(), self.timeout);
                    Outcome::Throttled { error, retry_after: None }
                }
            };
            if used.shared().is_none() {
                *connection = None;
            }
            return Err(failure(domain, error));
        }
    }

    async fn connect(&self, deadline: Instant) -> Result<Connection, Outcome> {
        let error = match timeout_at(deadline, self.connector.connect()).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => error,
            Err(_) => "not connected in time".into(),
        };
        Err(Outcome::Unavailable { error: format!("{}: {error}", self.connector.address()) })
    }

    fn outcome(&self, response: &Response<Incoming>) -> Outcome {
        let status = response.status();
        if status.is_success() {
            return Outcome::Confirmed;
        }
        let retry_after = reply::retry_after(response.headers(), (self.clock)());
        outcome::of_status(status, format!("HTTP {}", status.as_u16()), retry_after)
    }
}
