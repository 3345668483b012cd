//! One connection to the endpoint, over which a worker sends requests in sequence.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::{
    body::ReplyBody,
    errors::{LostReply, SendError},
    http2::Shared,
    outcome::causes,
    permits::{self, ConnectionPermit, TURN},
    target::MessageRequest,
    wire::{Exchange, Stream, Wire},
};

pub type Body = Full<Bytes>;

pub enum Connection {
    Http1(Own),
    /// Shared by all workers. Its own task drives it.
    Http2(Shared),
}

/// A connection of one worker.
pub struct Own {
    sender: http1::SendRequest<Body>,
    driver: Driver,
    exchange: Arc<Exchange>,
    /// The server is asked to close the connection after one request.
    once: bool,
    /// Whether a request was answered over this connection.
    answered: bool,
    opened: Instant,
}

type Transport = TokioIo<Wire<Arc<Exchange>>>;

/// Reads and writes while it is polled: by the worker, in the worker's task.
struct Driver {
    /// `None` when the connection has ended. It is dropped at its end, so that everything that waits for it also ends.
    connection: Option<Box<http1::Connection<Transport, Body>>>,
    _permit: ConnectionPermit,
}

impl Driver {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(()) };
        // A drop closes the connection. A shutdown would wait for a peer that does not read. The request has the same
        // error.
        if connection.poll_without_shutdown(context).is_pending() {
            return Poll::Pending;
        }
        self.connection = None;
        Poll::Ready(())
    }

    async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(result) = work.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            let _ = self.poll(context);
            work.as_mut().poll(context)
        })
        .await
    }
}

impl Own {
    /// # Errors
    /// Why the endpoint cannot be used over HTTP/1.
    pub async fn open(stream: Box<dyn Stream>, permit: ConnectionPermit, once: bool) -> Result<Self, hyper::Error> {
        let exchange = Arc::<Exchange>::default();
        let wire = Wire::new(stream, Arc::clone(&exchange));
        // A reply that is still not valid HTTP counts by its status line. Its connection is not used again.
        let mut builder = http1::Builder::new();
        builder
            .allow_spaces_after_header_name_in_responses(true)
            .allow_obsolete_multiline_headers_in_responses(true)
            .ignore_invalid_headers_in_responses(true);
        let (sender, connection) = builder.handshake(TokioIo::new(wire)).await?;
        let driver = Driver { connection: Some(Box::new(connection)), _permit: permit };
        Ok(Self { sender, driver, exchange, once, answered: false, opened: Instant::now() })
    }

    async fn send(&mut self, request: MessageRequest) -> Result<Response<ReplyBody>, SendError> {
        self.exchange.begin();
        self.driver.run(self.sender.ready()).await.map_err(|error| SendError::NotSent(causes(&error)))?;
        let sent = self.driver.run(self.sender.try_send_request(request.over_http1(self.once))).await;
        let mut error = match sent {
            Ok(response) => {
                self.answered = true;
                return Ok(response.map(ReplyBody::Http1));
            }
            Err(error) => error,
        };
        // A reset or a timeout is not a reply, whatever was read before.
        let is_of_head = error.error().is_parse() || error.error().is_incomplete_message();
        if let (true, Some(status)) = (is_of_head, self.exchange.status()) {
            return Err(SendError::Unreadable(status));
        }
        let is_returned = error.take_message().is_some();
        let error = error.into_error();
        let text = causes(&error);
        Err(if is_returned || !self.exchange.is_written() {
            SendError::NotSent(text)
        } else {
            SendError::Lost(LostReply { text, is_invalid: error.is_parse(), is_of_connection: true })
        })
    }
}

impl Connection {
    /// Sends a request, and returns the head of the reply. `max_wait`: maximum wait for a stream of a shared
    /// connection. After a cancellation the connection must not be used again.
    pub async fn send(
        &mut self,
        request: MessageRequest,
        max_wait: Duration,
    ) -> Result<Response<ReplyBody>, SendError> {
        match self {
            Self::Http1(own) => own.send(request).await,
            Self::Http2(shared) => shared.send(request.over_http2(), max_wait).await,
        }
    }

    /// Drives the connection while `work` reads a body.
    pub async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        match self {
            Self::Http1(own) => own.driver.run(work).await,
            Self::Http2(_) => work.await,
        }
    }

    /// Whether nothing of the last request was sent, or the server has not processed it.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Http1(own) => !own.exchange.is_written(),
            Self::Http2(shared) => shared.is_unsent(),
        }
    }

    /// The connection, if other workers use it too.
    pub fn shared(&self) -> Option<&Shared> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(shared) => Some(shared),
        }
    }

    /// Whether a request was answered over this connection.
    pub fn has_answered(&self) -> bool {
        match self {
            Self::Http1(own) => own.answered,
            Self::Http2(shared) => shared.has_answered(),
        }
    }

    /// Whether others wait for the permit of a connection of the worker's own, and it was used for its turn.
    pub fn has_had_turn(&self) -> bool {
        matches!(self, Self::Http1(own) if permits::are_wanted() && own.opened.elapsed() >= TURN)
    }

    /// Whether a connection of the worker's own has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Http1(own) if own.driver.connection.is_none())
    }
}

/// Returns when an idle connection of the worker's own is closed. Cancel-safe.
pub async fn closed(connection: &mut Option<Connection>) {
    match connection {
        Some(Connection::Http1(own)) => poll_fn(|context| own.driver.poll(context)).await,
        Some(Connection::Http2(_)) | None => pending().await,
    }
}
