//! The transport below the parsers. Its observer notes facts that a parser does not report when it fails. The observer
//! of HTTP/1 notes whether anything of a request was written, and the status line of the reply.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::StatusCode;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A TCP connection, with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Sees the bytes that pass.
pub trait Observer: Send + Unpin {
    fn read(&mut self, bytes: &[u8]);
    fn written(&mut self, bytes: &[u8]);
}

/// A connection with an observer.
///
/// A peer that closes without reading all of a request resets the connection. Its reply, or its GOAWAY, can lie in the
/// receive buffer when a write fails. So the parser sees the error of a write only after it has read everything.
pub struct Wire<O> {
    stream: Box<dyn Stream>,
    observer: O,
    /// The error of a write. Bytes after it are dropped.
    failed: Option<io::Error>,
}

/// The request under way on a connection, and its reply.
#[derive(Default)]
pub struct Exchange(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    written: bool,
    line: StatusLine,
}

impl Exchange {
    /// Resets the notes for the next request.
    pub fn begin(&self) {
        *self.lock() = Noted::default();
    }

    /// Whether a byte of the request was written.
    pub fn is_written(&self) -> bool {
        self.lock().written
    }

    /// The status of the final reply, if its whole status line was read.
    pub fn status(&self) -> Option<StatusCode> {
        match self.lock().line {
            StatusLine::Complete(code) => StatusCode::from_u16(code).ok(),
            _ => None,
        }
    }

    /// A panic cannot leave the notes half-changed.
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock()
    }
}

impl Observer for Arc<Exchange> {
    fn read(&mut self, bytes: &[u8]) {
        self.lock().line.read(bytes);
    }

    fn written(&mut self, bytes: &[u8]) {
        self.lock().written |= !bytes.is_empty();
    }
}

impl<O: Observer> Wire<O> {
    pub fn new(stream: Box<dyn Stream>, observer: O) -> Self {
        Self { stream, observer, failed: None }
    }

    /// The result that the parser sees of a write of up to `length` bytes.
    fn deferred<T>(&mut self, result: io::Result<T>, length: T) -> Poll<io::Result<T>> {
        Poll::Ready(result.or_else(|error| {
            self.failed = Some(error);
            Ok(length)
        }))
    }
}

impl<O: Observer> AsyncRead for Wire<O> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if buffer.filled().len() == before
            && let Some(error) = self.failed.take()
        {
            return Poll::Ready(Err(error));
        }
        self.observer.read(&buffer.filled()[before..]);
        Poll::Ready(result)
    }
}

impl<O: Observer> AsyncWrite for Wire<O> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.failed.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let result = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        if let Ok(count) = result {
            self.observer.written(&bytes[..count]);
        }
        self.deferred(result, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        if self.failed.is_some() {
            return Poll::Ready(Ok(length));
        }
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices));
        let mut left = *result.as_ref().unwrap_or(&0);
        for slice in slices {
            let taken = left.min(slice.len());
            self.observer.written(&slice[..taken]);
            left -= taken;
        }
        self.deferred(result, length)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.failed.is_some() {
            return Poll::Ready(Ok(()));
        }
        let result = ready!(Pin::new(&mut self.stream).poll_flush(context));
        self.deferred(result, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

const VERSION: &[u8] = b"HTTP/1.";

/// How far the status line of the final reply was read. Later bytes are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusLine {
    /// Number of bytes of `HTTP/1.x` that were read. Empty lines can precede them.
    Version(usize),
    /// Blanks, then digits of the code.
    Code {
        digits: u8,
        code: u16,
    },
    /// The rest of the line.
    Reason(u16),
    /// The header lines of an interim reply (1xx).
    Interim {
        is_line_empty: bool,
    },
    Complete(u16),
    /// The reply is not HTTP/1.
    Invalid,
}

impl Default for StatusLine {
    fn default() -> Self {
        Self::Version(0)
    }
}

impl StatusLine {
    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if matches!(self, Self::Complete(_) | Self::Invalid) {
                return;
            }
            *self = self.after(*byte);
        }
    }

    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Version(0), b'\r' | b'\n')
            | (Self::Code { digits: 0, .. }, b' ' | b'\t')
            | (Self::Interim { .. }, b'\r') => self,
            (Self::Version(at), _) if VERSION.get(at) == Some(&byte) => Self::Version(at + 1),
            (Self::Version(at), b'0'..=b'9') if at == VERSION.len() => Self::Version(at + 1),
            (Self::Version(at), b' ' | b'\t') if at > VERSION.len() => Self::Code { digits: 0, code: 0 },
            (Self::Code { digits: digits @ 0..3, code }, b'0'..=b'9') => {
                Self::Code { digits: digits + 1, code: code * 10 + u16::from(byte - b'0') }
            }
            // 101 is final, because the request asked for no other protocol.
            (Self::Code { digits: 3, code } | Self::Reason(code), b'\n') => match code {
                100 | 102..=199 => Self::Interim { is_line_empty: true },
                _ => Self::Complete(code),
            },
            (Self::Code { digits: 3, code }, b' ' | b'\t' | b'\r') | (Self::Reason(code), _) => Self::Reason(code),
            (Self::Interim { is_line_empty: true }, b'\n') => Self::default(),
            (Self::Interim { .. }, b'\n') => Self::Interim { is_line_empty: true },
            (Self::Interim { .. }, _) => Self::Interim { is_line_empty: false },
            _ => Self::Invalid,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A reply in the receive buffer of a connection that the peer has reset.
    struct ResetByPeer(&'static [u8]);

    impl AsyncRead for ResetByPeer {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            buffer.put_slice(std::mem::take(&mut self.0));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for ResetByPeer {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_reply_is_read_before_the_error_of_a_write() {
        let exchange = Arc::<Exchange>::default();
        let mut wire = Wire::new(Box::new(ResetByPeer(b"HTTP/1.1 200 OK\r\n")), Arc::clone(&exchange));
        wire.write_all(b"POST").await.expect("the error comes later");
        assert!(!exchange.is_written());
        let mut reply = Vec::new();
        let error = wire.read_to_end(&mut reply).await.expect_err("the error of the write");
        assert_eq!((error.kind(), &reply[..]), (io::ErrorKind::ConnectionReset, &b"HTTP/1.1 200 OK\r\n"[..]));
        assert_eq!(exchange.status(), Some(StatusCode::OK));
    }

    fn status(bytes: &[u8]) -> Option<u16> {
        let exchange = Exchange::default();
        exchange.lock().line.read(bytes);
        // The result does not depend on the sizes of the reads.
        let cut = Exchange::default();
        bytes.chunks(1).for_each(|byte| cut.lock().line.read(byte));
        assert_eq!(cut.status(), exchange.status());
        exchange.status().map(|status| status.as_u16())
    }

    #[test]
    fn the_status_is_known_from_the_end_of_its_line() {
        for (bytes, expected) in [
            (&b"HTTP/1.1 200 OK\r\n"[..], Some(200)),
            (b"HTTP/1.0 503\nx: y", Some(503)),
            (b"\r\nHTTP/1.1  204 \x01\xff\n", Some(204)),
            (b"HTTP/1.1 101 Switching\r\n", Some(101)),
            (b"HTTP/1.1 100 Continue\r\nPHP Warning: x\r\n\r\nHTTP/1.1 103\n\nHTTP/1.1 202 Accepted\r\n", Some(202)),
            (b"HTTP/1.1 100 Continue\r\nHTTP/1.1 200 OK\r\n", None),
            (b"HTTP/1.1 200 OK", None),
            (b"HTTP/1.1 20", None),
            (b"HTTP/1.1 2000\r\n", None),
            (b"HTTP/1.1 20 OK\r\n", None),
            (b"HTTP/1.1 000 OK\r\n", None),
            (b"HTTP/1.1200 OK\r\n", None),
            (b"HTTP/2 200\r\n", None),
            (b"lo\r\nHTTP/1.1 200 OK\r\n", None),
            (b"SSH-2.0-OpenSSH\r\n", None),
            (b"", None),
        ] {
            assert_eq!(status(bytes), expected, "{}", String::from_utf8_lossy(bytes));
        }
    }
}
