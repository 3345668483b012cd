//! One connection through the proxy.
//!
//! Each direction reads chunks, decides their fate and puts them on a line, which writes each when it is due.
//! The client's end ends the server's side. The server's end ends the client's side, unless the connection is
//! silent: then it stays open until the client leaves.

use std::{
    future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use super::{Direction, DroppedReply, Mode};

/// Maximum number of bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum number of chunks that one direction holds back: with `CHUNK_BYTES`, 64 MiB.
const LINE_CHUNKS: usize = 1024;
/// Maximum length of a pattern of a request, in bytes.
const MAX_PATTERN_BYTES: usize = 256;

/// State that the handle, the acceptor and all connections share.
pub struct Shared {
    /// Where new connections lead.
    pub server: Mutex<SocketAddr>,
    pub mode: watch::Sender<Mode>,
    /// Connections so far.
    pub accepted: AtomicUsize,
    armed: Mutex<Option<Loss>>,
}

/// A reply that is going to be dropped.
pub struct Loss {
    /// Bytes that its request contains.
    pub pattern: Vec<u8>,
    pub then: DroppedReply,
    pub done: oneshot::Sender<()>,
}

impl Shared {
    pub fn new(server: SocketAddr) -> Self {
        Self {
            server: Mutex::new(server),
            mode: watch::Sender::new(Mode::Pass),
            accepted: AtomicUsize::new(0),
            armed: Mutex::new(None),
        }
    }

    pub fn arm(&self, loss: Loss) {
        assert!(loss.pattern.len() <= MAX_PATTERN_BYTES, "a pattern has at most {MAX_PATTERN_BYTES} bytes");
        *self.armed.lock().expect("no panic under this lock") = Some(loss);
    }

    /// The armed loss, if the request that it waits for ends behind the first `old` bytes of `sent`.
    fn take_armed(&self, sent: &[u8], old: usize) -> Option<Loss> {
        self.armed.lock().expect("no panic under this lock").take_if(|loss| {
            let length = loss.pattern.len();
            length == 0 || sent[old.saturating_sub(length - 1)..].windows(length).any(|part| part == loss.pattern)
        })
    }

    fn mode(&self) -> Mode {
        *self.mode.borrow()
    }
}

pub async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let (mut client_in, client_out) = client.into_split();
    if shared.mode() == Mode::BlackHole {
        return swallow(&mut client_in).await;
    }
    let server = *shared.server.lock().expect("no panic under this lock");
    let Ok(server) = TcpStream::connect(server).await else { return };
    let _ = (server.set_nodelay(true), client_out.as_ref().set_nodelay(true));
    let (server_in, server_out) = server.into_split();
    let (to_server, server_line) = mpsc::channel(LINE_CHUNKS);
    let (to_client, client_line) = mpsc::channel(LINE_CHUNKS);
    let link = Link { shared, silent: AtomicBool::new(false), loss: Mutex::default(), lost: Notify::new() };
    let client_left = Notify::new();
    let up = async {
        tokio::join!(link.upward(client_in, to_server), write_line(server_out, server_line));
        client_left.notify_one();
        future::pending::<()>().await;
    };
    let down = async {
        tokio::join!(link.downward(server_in, to_client, &client_left), write_line(client_out, client_line));
    };
    tokio::select! { () = up => {}, () = down => {} }
}

struct Link {
    shared: Arc<Shared>,
    /// Bytes were lost: nothing may pass any more, or the two sides would misread each other.
    silent: AtomicBool,
    /// Set while the server has a request and the reply to it is going to be dropped.
    loss: Mutex<Option<Loss>>,
    /// The reply was dropped.
    lost: Notify,
}

type Line = mpsc::Sender<(Instant, Bytes)>;

impl Link {
    /// Client to server, until the client leaves.
    async fn upward(&self, mut client: impl AsyncRead + Unpin, line: Line) {
        let mut line = Some(line);
        let mut sent = BytesMut::new();
        loop {
            let chunk = tokio::select! {
                chunk = read_chunk(&mut client) => chunk,
                () = self.lost.notified() => {
                    // The server reads what it was sent to the end, and then sees the end.
                    line = None;
                    continue;
                }
            };
            self.passes(Direction::ToServer).await;
            let Some(chunk) = chunk else { return };
            let Some(due) = self.due() else { continue };
            // A pattern may lie across two reads.
            sent.advance(sent.len().saturating_sub(MAX_PATTERN_BYTES));
            let old = sent.len();
            sent.extend_from_slice(&chunk);
            if let Some(loss) = self.shared.take_armed(&sent, old) {
                *self.loss.lock().expect("no panic under this lock") = Some(loss);
            }
            match &line {
                Some(line) if line.send((due, chunk)).await.is_ok() => {}
                _ => self.silent.store(true, Ordering::SeqCst),
            }
        }
    }

    /// Server to client, until the server leaves or a dropped reply closes the connection.
    async fn downward(&self, mut server: impl AsyncRead + Unpin, line: Line, client_left: &Notify) {
        while let Some(chunk) = read_chunk(&mut server).await {
            let loss = self.loss.lock().expect("no panic under this lock").take();
            if let Some(loss) = loss {
                self.silent.store(true, Ordering::SeqCst);
                self.lost.notify_one();
                swallow(&mut server).await;
                // The test may not wait for it.
                let _ = loss.done.send(());
                if loss.then == DroppedReply::Closes {
                    return;
                }
                break;
            }
            self.passes(Direction::ToClient).await;
            let Some(due) = self.due() else { continue };
            if line.send((due, chunk)).await.is_err() {
                return;
            }
        }
        self.passes(Direction::ToClient).await;
        if self.due().is_none() {
            client_left.notified().await;
        }
    }

    /// Waits until the direction is not held.
    async fn passes(&self, direction: Direction) {
        // The sender lives as long as the link.
        let _ = self.shared.mode.subscribe().wait_for(|mode| !mode.holds(direction)).await;
    }

    /// When a chunk read now is to be written; `None` when it is swallowed.
    fn due(&self) -> Option<Instant> {
        let late = match self.shared.mode() {
            Mode::Delay(late) => late,
            Mode::BlackHole => {
                self.silent.store(true, Ordering::SeqCst);
                return None;
            }
            Mode::Pass | Mode::Cut | Mode::Hold(_) => Duration::ZERO,
        };
        (!self.silent.load(Ordering::SeqCst)).then(|| Instant::now() + late)
    }
}

/// `None` at the end, also when the other side was torn down.
async fn read_chunk(from: &mut (impl AsyncRead + Unpin)) -> Option<Bytes> {
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
    match from.read_buf(&mut chunk).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(chunk.freeze()),
    }
}

/// Reads to the end.
async fn swallow(from: &mut (impl AsyncRead + Unpin)) {
    while read_chunk(from).await.is_some() {}
}

/// Writes each chunk when it is due; closes this direction when the line ends.
async fn write_line(mut to: impl AsyncWrite + Unpin, mut line: mpsc::Receiver<(Instant, Bytes)>) {
    while let Some((due, chunk)) = line.recv().await {
        sleep_until(due).await;
        if to.write_all(&chunk).await.is_err() {
            return;
        }
    }
    // The other side may be closed already.
    let _ = to.shutdown().await;
}
