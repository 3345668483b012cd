//! The end of a connection with a request that was answered before it was read completely. Closing such a connection at
//! once resets it, and the client may lose the reply. So the server closes its own direction, and reads and discards the
//! rest, within bounds.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Maximum number of bytes that are discarded: four of the largest bodies. A client that sends more is cut off.
const MAX_DISCARDED_BYTES: usize = 64 * 1024 * 1024;

/// Maximum time for discarding: enough for the slowest client to notice the reply, and a slot is not held for long.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of one read.
const READ_BYTES: usize = 16 * 1024;

/// Whether the body of the latest request of a connection was not read to its end.
#[derive(Clone, Default)]
pub struct Unread(Arc<AtomicBool>);

impl Unread {
    /// Observes the body of the next request.
    pub fn watch(&self, body: Incoming) -> Body {
        self.0.store(false, Ordering::Relaxed);
        if body.is_end_stream() {
            Body::empty()
        } else {
            Body::new(Watched { body, is_over: false, unread: self.clone() })
        }
    }
}

struct Watched {
    body: Incoming,
    /// Whether the body ended or broke off.
    is_over: bool,
    unread: Unread,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.is_over = !matches!(frame, Some(Ok(_))) || self.body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.unread.0.store(!self.is_over, Ordering::Relaxed);
    }
}

/// The transport of a connection.
pub struct Lingering<S> {
    stream: S,
    unread: Unread,
    /// Set once the own direction is closed.
    discard: Option<Discard>,
}

struct Discard {
    end: Pin<Box<Sleep>>,
    left: usize,
}

impl<S> Lingering<S> {
    pub fn new(stream: S, unread: Unread) -> Self {
        Self { stream, unread, discard: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Ends when the client has closed its direction too, or at a bound.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, unread, discard } = &mut *self;
        if discard.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
            if !unread.0.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let discard =
            discard.get_or_insert_with(|| Discard { end: Box::pin(sleep(DISCARD_TIMEOUT)), left: MAX_DISCARDED_BYTES });
        let mut bytes = [0; READ_BYTES];
        while discard.left > 0 && discard.end.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    discard.left = discard.left.saturating_sub(buffer.filled().len());
                }
                // The client has closed the connection, or it broke off.
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
