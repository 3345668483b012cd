//! The byte stream below lapin: TCP, and TLS with the rustls settings of this crate. Incoming bytes pass through
//! `frames`. A `ConnectionLink` ends the stream at any time.
//!
//! lapin runs a connection on its own thread, which ends when the stream ends. So an aborted stream fails every call that
//! waits on the connection, and the drop of a `Transport` shows that the connection is closed.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use async_rs::{Tokio, traits::Reactor, util::RuntimeParts};
use futures::io::{AsyncRead, AsyncWrite};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::{
    compat::{Compat, TokioAsyncReadCompatExt},
    either::Either,
    sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned},
};

use super::{frame_notes::FrameNotes, frames::FrameFilter};

/// Size of one read, in bytes.
const READ_BYTES: usize = 64 * 1024;

type BrokerStream = Compat<Either<TcpStream, tokio_rustls::client::TlsStream<TcpStream>>>;

/// The address of a broker.
#[derive(Clone)]
pub struct BrokerEndpoint {
    pub host: String,
    pub port: u16,
    pub tls: Option<TlsConnector>,
}

/// Data that the stream of a connection shares with its users. Clones share it.
#[derive(Clone, Default)]
pub struct ConnectionLink {
    /// Ends the stream without a handshake.
    pub abort: CancellationToken,
    /// Cancelled when the connection is closed.
    pub closed: CancellationToken,
    pub notes: FrameNotes,
}

pub struct Transport {
    stream: BrokerStream,
    frames: FrameFilter,
    chunk: Box<[u8]>,
    abort: CancellationToken,
    aborted: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Cancels `ConnectionLink::closed`.
    _closed: DropGuard,
}

impl Transport {
    /// # Errors
    /// When TCP or TLS does not connect within `limit`, or `link` has had a stream before.
    pub async fn connect(endpoint: &BrokerEndpoint, limit: Duration, link: ConnectionLink) -> io::Result<Self> {
        let ConnectionLink { abort, closed, notes } = link;
        if closed.is_cancelled() {
            return Err(io::Error::other("connects once only"));
        }
        let closed = closed.drop_guard();
        let connecting = async {
            let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
            stream.set_nodelay(true)?;
            let Some(tls) = &endpoint.tls else { return Ok(Either::Left(stream)) };
            let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
            Ok::<_, io::Error>(Either::Right(tls.connect(name, stream).await?))
        };
        match tokio::time::timeout(limit, connecting).await {
            Ok(connected) => Ok(Self {
                stream: connected?.compat(),
                frames: FrameFilter::new(notes),
                chunk: vec![0; READ_BYTES].into(),
                aborted: Box::pin(abort.clone().cancelled_owned()),
                abort,
                _closed: closed,
            }),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("not connected within {limit:?}"))),
        }
    }

    fn aborted() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionAborted, "aborted")
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.aborted.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Self::aborted()));
        }
        loop {
            let read = this.frames.read(buffer);
            if read > 0 {
                return Poll::Ready(Ok(read));
            }
            let got = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut this.chunk))?;
            this.frames.push(&this.chunk[..got]);
            if got == 0 {
                return Poll::Ready(Ok(this.frames.read(buffer)));
            }
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        if self.abort.is_cancelled() {
            return Poll::Ready(Err(Self::aborted()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.abort.is_cancelled() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

/// tokio as lapin's runtime, with `Transport` as its stream.
pub type LapinRuntime = RuntimeParts<Tokio, TransportReactor>;

/// Must be called within a tokio runtime.
pub fn lapin_runtime() -> LapinRuntime {
    RuntimeParts::new(Tokio::current(), TransportReactor(Tokio::current()))
}

#[derive(Clone, Debug)]
pub struct TransportReactor(Tokio);

impl Reactor for TransportReactor {
    type TcpStream = Transport;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + std::os::fd::AsFd + std::os::fd::AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, period: Duration) -> impl futures::Stream<Item = std::time::Instant> + Send + 'static {
        self.0.interval(period)
    }

    /// Not used: `Transport::connect` connects.
    fn tcp_connect_addr(&self, _address: SocketAddr) -> impl Future<Output = io::Result<Transport>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
