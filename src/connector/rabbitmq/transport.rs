//! The byte stream below lapin: TCP, and TLS with the rustls settings of this crate. Incoming bytes pass through
//! `frames`. A `ConnectionAbort` ends the stream at any time.
//!
//! lapin runs a connection on its own thread, which ends when the stream ends. So an aborted stream fails every call that
//! waits on the connection, and the drop of a `Transport` shows that the connection is closed.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use async_rs::{
    Tokio,
    traits::{Executor, Reactor, RuntimeKit},
    util::Task,
};
use futures::{
    io::{AsyncRead, AsyncWrite},
    task::AtomicWaker,
};
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, sync::oneshot};
use tokio_rustls::TlsConnector;
use tokio_util::{
    compat::{Compat, TokioAsyncReadCompatExt},
    either::Either,
};

use super::{frames::FrameFilter, notes::FrameNotes};

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

/// Ends the stream of a connection without a handshake, from any thread.
#[derive(Clone, Default)]
pub struct ConnectionAbort(Arc<AbortState>);

#[derive(Default)]
struct AbortState {
    is_aborted: AtomicBool,
    reader: AtomicWaker,
}

impl ConnectionAbort {
    pub fn abort(&self) {
        self.0.is_aborted.store(true, Ordering::SeqCst);
        self.0.reader.wake();
    }

    fn is_aborted(&self) -> bool {
        self.0.is_aborted.load(Ordering::SeqCst)
    }
}

pub struct Transport {
    stream: BrokerStream,
    frames: FrameFilter,
    chunk: Box<[u8]>,
    abort: ConnectionAbort,
    /// Its drop resolves `BrokerConnection::closed`.
    _alive: oneshot::Sender<()>,
}

impl Transport {
    /// # Errors
    /// When TCP or TLS does not connect within `limit`.
    pub async fn connect(
        endpoint: &BrokerEndpoint,
        limit: Duration,
        abort: ConnectionAbort,
        notes: FrameNotes,
        alive: oneshot::Sender<()>,
    ) -> io::Result<Self> {
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
                abort,
                _alive: alive,
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
        // Registers before the check, so that an abort between the two wakes the task.
        this.abort.0.reader.register(cx.waker());
        if this.abort.is_aborted() {
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
        if self.abort.is_aborted() {
            return Poll::Ready(Err(Self::aborted()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.abort.is_aborted() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

/// tokio as lapin's runtime, with `Transport` as its stream.
#[derive(Clone)]
pub struct LapinRuntime(Tokio);

impl LapinRuntime {
    /// Must be called within a tokio runtime.
    pub fn current() -> Self {
        Self(Tokio::current())
    }
}

impl fmt::Debug for LapinRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LapinRuntime")
    }
}

impl RuntimeKit for LapinRuntime {}

impl Executor for LapinRuntime {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(&self, future: F) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(&self, work: F) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for LapinRuntime {
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
