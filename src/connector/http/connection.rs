//! One connection to the endpoint, over which one request after another is sent.

use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::OwnedSemaphorePermit,
};

use super::{connector::Shared, target::MessageRequest};

/// A TCP connection, with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub type BoxedStream = TokioIo<Box<dyn Stream>>;
pub type Body = Full<Bytes>;

pub enum Connection {
    Http1 {
        sender: http1::SendRequest<Body>,
        driver: Driver,
    },
    /// Shared by all workers; a task of its own drives it.
    Http2(Shared),
}

/// Reads and writes while it is polled: by the worker, in its own task.
pub struct Driver {
    connection: Pin<Box<http1::Connection<BoxedStream, Body>>>,
    closed: bool,
    /// Of the sink's connections.
    _permit: OwnedSemaphorePermit,
}

impl Driver {
    pub fn new(connection: http1::Connection<BoxedStream, Body>, permit: OwnedSemaphorePermit) -> Self {
        Self { connection: Box::pin(connection), closed: false, _permit: permit }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.closed {
            // The error is that of the request, too.
            self.closed = self.connection.as_mut().poll(context).is_ready();
        }
        if self.closed { Poll::Ready(()) } else { Poll::Pending }
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

/// A request without a reply.
pub enum SendError {
    /// Nothing of it was sent, as the connection was closed: it may be sent over another one.
    NotSent(hyper::Error),
    Lost(hyper::Error),
}

impl Connection {
    /// The head of the reply. Cancel-safe only in that the connection is not used again.
    pub async fn send(&mut self, request: MessageRequest) -> Result<Response<Incoming>, SendError> {
        let sent = match self {
            Self::Http1 { sender, driver } => {
                driver.run(sender.ready()).await.map_err(SendError::NotSent)?;
                driver.run(sender.try_send_request(request.over_http1())).await
            }
            Self::Http2(Shared { sender, .. }) => {
                sender.ready().await.map_err(SendError::NotSent)?;
                sender.try_send_request(request.over_http2()).await
            }
        };
        sent.map_err(send_error)
    }

    /// Drives the connection while `work` reads a body.
    pub async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        match self {
            Self::Http1 { driver, .. } => driver.run(work).await,
            Self::Http2(_) => work.await,
        }
    }

    /// The connection that other workers use, too.
    pub fn shared(&self) -> Option<&Shared> {
        match self {
            Self::Http1 { .. } => None,
            Self::Http2(shared) => Some(shared),
        }
    }
}

/// Ends when an idle connection of the worker's own is closed. Cancel-safe.
pub async fn closed(connection: &mut Option<Connection>) {
    match connection {
        Some(Connection::Http1 { driver, .. }) => poll_fn(|context| driver.poll(context)).await,
        Some(Connection::Http2(_)) | None => pending().await,
    }
}

fn send_error<T>(mut error: TrySendError<T>) -> SendError {
    let not_sent = error.take_message().is_some() || is_refused(error.error());
    let error = error.into_error();
    if not_sent { SendError::NotSent(error) } else { SendError::Lost(error) }
}

/// Whether the server said, over HTTP/2, that it has not processed the request (RFC 9113, section 8.7).
fn is_refused(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        let reason = cause.reason();
        cause.is_remote()
            && (cause.is_go_away() && reason == Some(h2::Reason::NO_ERROR)
                || cause.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM))
    })
}
