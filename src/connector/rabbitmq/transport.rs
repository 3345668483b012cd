//! The line to a broker under lapin: TCP, with TLS from our own rustls settings, and a switch that cuts it. What
//! comes over it passes through `frames`.
//!
//! lapin runs a connection on a thread of its own, which ends when its line does. So a line that was cut ends
//! whatever waits on it, and a `Transport` that was dropped tells that the connection is over.

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

use super::{
    frames::{Frames, Notes},
    returns::Returns,
};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 64 * 1024;

type Stream = Compat<Either<TcpStream, tokio_rustls::client::TlsStream<TcpStream>>>;

/// Where a broker listens.
#[derive(Clone)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    pub tls: Option<TlsConnector>,
}

/// Cuts the line, at any time and from anywhere.
#[derive(Clone, Default)]
pub struct Switch(Arc<SwitchState>);

#[derive(Default)]
struct SwitchState {
    cut: AtomicBool,
    reader: AtomicWaker,
}

impl Switch {
    pub fn cut(&self) {
        self.0.cut.store(true, Ordering::SeqCst);
        self.0.reader.wake();
    }

    fn is_cut(&self) -> bool {
        self.0.cut.load(Ordering::SeqCst)
    }
}

pub struct Transport {
    stream: Stream,
    frames: Frames,
    chunk: Box<[u8]>,
    switch: Switch,
    /// Its other end learns that this was dropped.
    _alive: oneshot::Sender<()>,
}

impl Transport {
    /// # Errors
    /// When there is no connection within `limit`, or TLS fails.
    pub async fn connect(
        endpoint: &Endpoint,
        limit: Duration,
        switch: Switch,
        (notes, returns): (Notes, Returns),
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
                frames: Frames::new(notes, returns),
                chunk: vec![0; CHUNK_BYTES].into(),
                switch,
                _alive: alive,
            }),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("not connected within {limit:?}"))),
        }
    }

    fn cut() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionAborted, "given up")
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Registered before the look, or a cut between the two would go unheard.
        this.switch.0.reader.register(cx.waker());
        if this.switch.is_cut() {
            return Poll::Ready(Err(Self::cut()));
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
        if self.switch.is_cut() {
            return Poll::Ready(Err(Self::cut()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.switch.is_cut() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

/// tokio for lapin, with `Transport` for a stream.
#[derive(Clone)]
pub struct Kit(Tokio);

impl Kit {
    /// Must be called within a tokio runtime.
    pub fn current() -> Self {
        Self(Tokio::current())
    }
}

impl fmt::Debug for Kit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kit")
    }
}

impl RuntimeKit for Kit {}

impl Executor for Kit {
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

impl Reactor for Kit {
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

    /// Not used: the connection is made by `Transport::connect`.
    fn tcp_connect_addr(&self, _address: SocketAddr) -> impl Future<Output = io::Result<Transport>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
