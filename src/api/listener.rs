//! Listeners: TCP, with or without TLS, or a Unix socket.

use std::{
    io,
    net::IpAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

/// Time for a peer to acknowledge sent data, so that a stalled reader does not keep its reply in memory.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Mode of a Unix socket: user and group of the process may connect.
const SOCKET_MODE: u32 = 0o660;

/// Accepts connections.
pub struct Listener(Kind);

enum Kind {
    Tcp(TcpListener),
    /// New connections use the current settings.
    Tls(TcpListener, watch::Receiver<Arc<rustls::ServerConfig>>),
    Unix {
        listener: UnixListener,
        _file: Removed,
    },
}

/// The file of a socket, removed when this is dropped.
struct Removed(PathBuf);

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(Kind::Tcp(listener))
    }
}

impl Listener {
    pub fn tls(listener: TcpListener, settings: watch::Receiver<Arc<rustls::ServerConfig>>) -> Self {
        Self(Kind::Tls(listener, settings))
    }

    /// Binds a Unix socket. Replaces a socket at `path` that no process listens on. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// Includes: a process listens at `path`, or a file of another kind exists there.
    pub fn unix(path: &Path) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "is there, and no socket"));
            }
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            Ok(_) => std::fs::remove_file(path)?,
            Err(_) => {}
        }
        // Until the mode is set, the umask allows at most the same users to connect.
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        Ok(Self(Kind::Unix { listener, _file: Removed(path.to_owned()) }))
    }

    /// The next connection, and the address of its peer if it has one. Cancel-safe.
    pub async fn accept(&self) -> io::Result<(Accepted, Option<IpAddr>)> {
        let (listener, settings) = match &self.0 {
            Kind::Unix { listener, .. } => return Ok((Accepted::Unix(listener.accept().await?.0), None)),
            Kind::Tcp(listener) => (listener, None),
            Kind::Tls(listener, settings) => (listener, Some(settings)),
        };
        let (stream, peer) = listener.accept().await?;
        // Both calls fail on a connection that was reset. The next read reports the reset.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
        let accepted = match settings {
            None => Accepted::Tcp(stream),
            Some(settings) => Accepted::Tls(stream, settings.borrow().clone()),
        };
        Ok((accepted, Some(peer.ip())))
    }
}

/// An accepted connection before the TLS handshake.
pub enum Accepted {
    Tcp(TcpStream),
    Tls(TcpStream, Arc<rustls::ServerConfig>),
    Unix(UnixStream),
}

/// The transport of HTTP.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Accepted {
    /// Does the TLS handshake, if there is one. The caller bounds its time.
    pub async fn open(self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Accepted::Tcp(stream) => Box::new(stream),
            Accepted::Unix(stream) => Box::new(stream),
            Accepted::Tls(stream, settings) => Box::new(TlsAcceptor::from(settings).accept(stream).await?),
        })
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        // Another process may have removed the file.
        let _ = std::fs::remove_file(&self.0);
    }
}
