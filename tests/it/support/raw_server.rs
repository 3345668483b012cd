use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
};

/// A TCP server with replies that the test decides. Stopped on drop.
pub struct RawServer {
    port: u16,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl RawServer {
    /// `talk` gets each connection; when it returns, the connection closes.
    pub fn start<F, Talk>(talk: F) -> Self
    where
        F: Fn(TcpStream) -> Talk + Send + 'static,
        Talk: Future<Output = ()> + Send + 'static,
    {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Little waits in the kernel: what was written is about what the client has taken.
        socket.set_send_buffer_size(64 * 1024).expect("a send buffer");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let listener = socket.listen(1024).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(talk(stream));
            }
        });
        Self { port, connections, accepting }
    }

    /// Answers the first request of each connection with these bytes, then closes.
    pub fn answering(reply: impl Into<Vec<u8>>) -> Self {
        let reply: Arc<[u8]> = reply.into().into();
        Self::start(move |mut stream| {
            let reply = Arc::clone(&reply);
            async move {
                if read_request(&mut stream).await.is_some() {
                    // The client may have seen enough before the end.
                    let _ = stream.write_all(&reply).await;
                    let _ = stream.shutdown().await;
                }
            }
        })
    }

    /// Takes connections and never says a word.
    pub fn silent() -> Self {
        Self::start(|stream| async move {
            std::future::pending::<()>().await;
            drop(stream);
        })
    }

    /// Stops listening. Connections stay.
    pub async fn stop(mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections taken so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The head of one HTTP/1.1 request as text, after its body (by Content-Length) was read too; `None` when
/// the connection ended before.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(head)
}
