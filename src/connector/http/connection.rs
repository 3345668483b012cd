//! One connection to the endpoint, over which one request after another is sent.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    target::MessageRequest,
    wire::{Exchange, Stream, Wire},
};

pub type Body = Full<Bytes>;

pub enum Connection {
    Http1(Own),
    /// Shared by all workers; a task of its own drives it.
    Http2(Shared),
}

/// One worker's share of an HTTP/2 connection.
#[derive(Clone)]
pub struct Shared {
    pub sender: http2::SendRequest<Body>,
    /// Whether a request was answered over it. It also tells one connection from the next.
    pub answered: Arc<AtomicBool>,
}

/// A connection of one worker.
pub struct Own {
    sender: http1::SendRequest<Body>,
    driver: Driver,
    exchange: Arc<Exchange>,
    /// The server is asked to close it after one request.
    once: bool,
    /// Whether a request was answered over it.
    answered: bool,
}

/// Reads and writes while it is polled: by the worker, in its own task.
struct Driver {
    /// `None` when it has ended. It is dropped then, so that everything that waits for it ends, too.
    connection: Option<Box<http1::Connection<TokioIo<Wire>, Body>>>,
    /// Of the sink's connections.
    _permit: OwnedSemaphorePermit,
}

impl Driver {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(()) };
        // Dropped, it is closed: a shutdown would wait for a peer that does not read. The error is that of the request, too.
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

/// A request without a reply that can be read.
pub enum SendError {
    /// Nothing of it was sent, or the server has not processed it: it may be sent over another connection.
    NotSent(hyper::Error),
    /// The reply has this status. The rest of its head is not valid HTTP, or is cut.
    Unreadable(StatusCode),
    Lost(hyper::Error),
}

impl Own {
    /// # Errors
    /// Why HTTP/1 cannot be spoken.
    pub async fn open(stream: Box<dyn Stream>, permit: OwnedSemaphorePermit, once: bool) -> Result<Self, hyper::Error> {
        let (wire, exchange) = Wire::new(stream);
        // A reply that is still not valid HTTP counts by its status line; its connection is not used again.
        let mut builder = http1::Builder::new();
        builder
            .allow_spaces_after_header_name_in_responses(true)
            .allow_obsolete_multiline_headers_in_responses(true)
            .ignore_invalid_headers_in_responses(true);
        let (sender, connection) = builder.handshake(TokioIo::new(wire)).await?;
        let driver = Driver { connection: Some(Box::new(connection)), _permit: permit };
        Ok(Self { sender, driver, exchange, once, answered: false })
    }

    async fn send(&mut self, request: MessageRequest) -> Result<Response<Incoming>, SendError> {
        self.exchange.begin();
        self.driver.run(self.sender.ready()).await.map_err(SendError::NotSent)?;
        let sent = self.driver.run(self.sender.try_send_request(request.over_http1(self.once))).await;
        let error = match sent {
            Ok(response) => {
                self.answered = true;
                return Ok(response);
            }
            Err(error) => error,
        };
        // A reset or a timeout is no reply, whatever came before it.
        let is_of_head = error.error().is_parse() || error.error().is_incomplete_message();
        if let (true, Some(status)) = (is_of_head, self.exchange.status()) {
            return Err(SendError::Unreadable(status));
        }
        if !error.error().is_user() && !self.exchange.is_written() {
            return Err(SendError::NotSent(error.into_error()));
        }
        Err(send_error(error))
    }
}

impl Connection {
    /// The head of the reply. Cancel-safe only in that the connection is not used again.
    pub async fn send(&mut self, request: MessageRequest) -> Result<Response<Incoming>, SendError> {
        match self {
            Self::Http1(own) => own.send(request).await,
            Self::Http2(Shared { sender, answered }) => {
                sender.ready().await.map_err(SendError::NotSent)?;
                let response = sender.try_send_request(request.over_http2()).await.map_err(send_error)?;
                answered.store(true, Ordering::Relaxed);
                Ok(response)
            }
        }
    }

    /// Drives the connection while `work` reads a body.
    pub async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        match self {
            Self::Http1(own) => own.driver.run(work).await,
            Self::Http2(_) => work.await,
        }
    }

    /// The connection that other workers use, too.
    pub fn shared(&self) -> Option<&Shared> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(shared) => Some(shared),
        }
    }

    /// Whether a request was answered over it.
    pub fn has_answered(&self) -> bool {
        match self {
            Self::Http1(own) => own.answered,
            Self::Http2(shared) => shared.answered.load(Ordering::Relaxed),
        }
    }

    /// Whether the connection of the worker's own has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Http1(own) if own.driver.connection.is_none())
    }
}

/// Ends when an idle connection of the worker's own is closed. Cancel-safe.
pub async fn closed(connection: &mut Option<Connection>) {
    match connection {
        Some(Connection::Http1(own)) => poll_fn(|context| own.driver.poll(context)).await,
        Some(Connection::Http2(_)) | None => pending().await,
    }
}

fn send_error<T>(mut error: TrySendError<T>) -> SendError {
    let not_sent = error.take_message().is_some() || is_refused(error.error());
    let error = error.into_error();
    if not_sent { SendError::NotSent(error) } else { SendError::Lost(error) }
}

fn h2_cause(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>())
}

/// Whether the connection was lost, rather than one request by itself.
pub fn is_of_connection(error: &hyper::Error) -> bool {
    !error.is_user() && h2_cause(error).is_none_or(|cause| !cause.is_reset())
}

/// Whether the server said, over HTTP/2, that it has not processed the request (RFC 9113, section 8.7).
fn is_refused(error: &hyper::Error) -> bool {
    h2_cause(error).is_some_and(|cause| {
        let reason = cause.reason();
        cause.is_remote()
            && (cause.is_go_away() && reason == Some(h2::Reason::NO_ERROR)
                || cause.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM))
    })
}
