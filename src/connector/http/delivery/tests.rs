//! Deliveries over connections in memory, and to servers on the loopback interface.

use std::fs;

use h2::{Reason, server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    task::{spawn_blocking, yield_now},
};
use tokio_rustls::TlsAcceptor;

use super::{
    super::{HttpSettings, HttpSink, connection::Own, permits::ConnectionPermit},
    *,
};
use crate::{
    config::{Flag, Period, Whole},
    message::{MessageId, Metadata},
    sink::template::Allow,
    time::UnixMillis,
    tls::{self, TlsFiles},
};

const TIMEOUT: Duration = Duration::from_secs(10);

fn sender(url: &str, tls: TlsFiles) -> Arc<Sender> {
    let config = HttpSettings {
        url: url.into(),
        allow: Allow::default(),
        allow_slashes: Flag(false),
        timeout: Period(TIMEOUT),
        max_connections: Whole(64),
        signing_secrets: [].into_iter().collect(),
        headers: [].into(),
        tls,
    };
    Arc::clone(&HttpSink::new(&config).expect("valid settings").sender)
}

fn delivery() -> Delivery {
    Delivery {
        id: MessageId::parse("m").unwrap(),
        route: "r".into(),
        attempt: 1,
        due: UnixMillis::default(),
        metadata: Metadata::default(),
        payload: "x".into(),
        send_until: None,
    }
}

/// The outcome of a message that is sent over `connection`, or over a new one.
async fn delivered(sender: &Sender, connection: &mut Option<Connection>, deadline: Instant) -> Outcome {
    let (report, mut outcomes) = Report::channel();
    let batch = Arc::new(Batch { deadline, report, _unfinished: oneshot::channel().0 });
    let job = Job { index: 0, delivery: delivery(), batch };
    sender.deliver(job, connection, &mut Alarm::default()).await;
    outcomes.try_recv().expect("an outcome").outcome
}

async fn permit() -> ConnectionPermit {
    ConnectionPermit::acquire(&Arc::new(Semaphore::new(1))).await
}

/// A connection in memory to a server that is not there.
fn nowhere() -> Arc<Sender> {
    sender("http://127.0.0.1:1/", TlsFiles::default())
}

async fn http1(stream: DuplexStream) -> Option<Connection> {
    Own::open(Box::new(stream), permit().await, false).await.ok().map(Connection::Http1)
}

/// An HTTP/2 server that never replies, and allows this many requests at once.
async fn http2(streams: u32) -> Shared {
    let (ours, theirs) = duplex(64 * 1024);
    tokio::spawn(async move {
        let mut connection =
            server::Builder::new().max_concurrent_streams(streams).handshake::<_, &[u8]>(theirs).await.unwrap();
        let mut kept = Vec::new();
        while let Some(Ok(request)) = connection.accept().await {
            kept.push(request);
        }
    });
    Shared::open(Box::new(ours), permit().await).await.expect("the settings of the server")
}

#[tokio::test(start_paused = true)]
async fn a_message_is_not_sent_if_its_connection_takes_no_request() {
    let (mut ours, _theirs) = duplex(1);
    ours.write_all(b"x").await.expect("capacity for one byte");
    let outcome = delivered(&nowhere(), &mut http1(ours).await, Instant::now() + TIMEOUT).await;
    let error = "127.0.0.1:1: the connection took no request in time".to_owned();
    assert_eq!(outcome, Outcome::Unsent { error });
}

#[tokio::test(start_paused = true)]
async fn a_shared_connection_is_kept_unless_it_allows_no_stream() {
    for (streams, is_kept) in [(1, true), (0, false)] {
        let (sender, shared) = (nowhere(), http2(streams).await);
        let mut first = Some(Connection::Http2(shared.clone()));
        let mut second = Some(Connection::Http2(shared));
        let deadline = Instant::now() + TIMEOUT;
        let late = async {
            // The other one has the stream.
            yield_now().await;
            delivered(&sender, &mut second, deadline).await
        };
        let (_, outcome) = tokio::join!(delivered(&sender, &mut first, deadline), late);
        let error = "127.0.0.1:1: no HTTP/2 stream was free in time".to_owned();
        assert_eq!((outcome, second.is_some()), (Outcome::Unsent { error }, is_kept), "{streams} streams");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_kept_if_the_end_of_its_reply_is_clear_and_was_read() {
    for (reply, is_kept) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", true),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no", false),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", false),
    ] {
        let (ours, mut theirs) = duplex(64 * 1024);
        let mut connection = http1(ours).await;
        let replying = async {
            assert!(theirs.read(&mut [0; 4096]).await.unwrap() > 0);
            theirs.write_all(reply.as_bytes()).await.unwrap();
        };
        let sender = nowhere();
        let (outcome, ()) = tokio::join!(delivered(&sender, &mut connection, Instant::now() + TIMEOUT), replying);
        assert_eq!((outcome, connection.is_some()), (Outcome::Confirmed, is_kept), "{reply}");
    }
}

/// A server on the loopback interface that replies to the first request of each connection, and closes a connection
/// after the second. The receiver gets the number of the connection of each request.
async fn replying_once() -> (Arc<Sender>, mpsc::UnboundedReceiver<u32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sender = sender(&format!("http://{}/", listener.local_addr().unwrap()), TlsFiles::default());
    let (requests, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for connection in 1.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let requests = requests.clone();
            tokio::spawn(async move {
                if read_request(&mut stream).await {
                    requests.send(connection).unwrap();
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                    if read_request(&mut stream).await {
                        requests.send(connection).unwrap();
                    }
                }
            });
        }
    });
    (sender, received)
}

/// Whether a request with the body `x` arrived.
async fn read_request(stream: &mut TcpStream) -> bool {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\nx") {
        if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn a_connection_that_was_opened_after_a_loss_is_used_for_the_next_message() {
    let (sender, mut requests) = replying_once().await;
    let mut connection = None;
    let mut next = async || delivered(&sender, &mut connection, Instant::now() + TIMEOUT).await;
    assert_eq!(next().await, Outcome::Confirmed);
    let lost = next().await;
    assert!(matches!(lost, Outcome::Lost { .. }), "{lost:?}");
    assert_eq!(next().await, Outcome::Confirmed);
    let used: Vec<_> = std::iter::from_fn(|| requests.try_recv().ok()).collect();
    assert_eq!(used, [1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_sent_until_half_of_the_timeout_has_passed() {
    let (sender, _requests) = replying_once().await;
    // The clock does not advance while a blocking task runs.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let blocking = spawn_blocking(move || ended.recv());
    let latest = Instant::now() + TIMEOUT / 2;
    assert_eq!(delivered(&sender, &mut None, latest).await, Outcome::Confirmed);
    let outcome = delivered(&sender, &mut None, latest - Duration::from_millis(1)).await;
    assert!(matches!(outcome, Outcome::Unsent { .. }), "{outcome:?}");
    drop(end);
    blocking.await.unwrap().unwrap_err();
}

/// An HTTP/2 server on the loopback interface that refuses every request. The receiver gets each request.
async fn refusing() -> (Arc<Sender>, mpsc::UnboundedReceiver<()>) {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate", "key"].map(|name| directory.path().join(name));
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(&certificate, certified.cert.pem()).unwrap();
    fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let mut config = tls::server_config(&certificate, &key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let sender = sender(&url, TlsFiles { ca_file: Some(certificate), ..TlsFiles::default() });
    let (requests, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, requests) = (acceptor.clone(), requests.clone());
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.unwrap();
                let mut connection = server::handshake(stream).await.unwrap();
                while let Some(Ok((_, mut reply))) = connection.accept().await {
                    requests.send(()).unwrap();
                    reply.send_reset(Reason::REFUSED_STREAM);
                }
            });
        }
    });
    (sender, received)
}

#[tokio::test]
async fn a_message_that_is_refused_is_tried_over_four_connections() {
    let (sender, mut requests) = refusing().await;
    let outcome = delivered(&sender, &mut None, Instant::now() + TIMEOUT).await;
    assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcome:?}");
    assert_eq!(std::iter::from_fn(|| requests.try_recv().ok()).count(), 4);
    // After a reply the endpoint is known to work.
    sender.connector.answered();
    let outcome = delivered(&sender, &mut None, Instant::now() + TIMEOUT).await;
    assert!(matches!(outcome, Outcome::Unsent { .. }), "{outcome:?}");
}
