//! HTTP/2 servers that end connections, allow few streams, or break the protocol. Their frames are written by hand: a library
//! would not do most of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use punctual::{
    connector::http::HttpSink,
    sink::{Delivery, Outcome, Sink},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, WriteHalf, split},
    net::TcpStream,
    task::yield_now,
    time::{Instant, sleep},
};
use tokio_rustls::server::TlsStream;

use super::{
    config,
    tls::{Authority, TIMEOUT},
};
use crate::support::{RawServer, delivery, read_request, send};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const HTTP_1_1_REQUIRED: u32 = 0xd;

/// Status 202 and its place in the table, which a later reply can name instead.
const FIRST_ACCEPTED: &[u8] = b"\x48\x03202";

/// The reply of a server to a whole request, the `number`th of its connection, from 1, and whether the connection ends.
type Act = fn(number: u32, stream: u32) -> (Vec<u8>, bool);

type Writer = Arc<tokio::sync::Mutex<WriteHalf<TlsStream<TcpStream>>>>;

/// A server, and how often each message came.
struct FrameServer {
    server: RawServer,
    seen: Arc<Mutex<BTreeMap<String, u32>>>,
    /// The latest connection.
    writer: Arc<Mutex<Option<Writer>>>,
    /// Requests at once on a new connection.
    streams: Arc<AtomicU32>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Status 200, with `more` header fields, in the code of HPACK.
fn ok(stream: u32, more: &[u8]) -> Vec<u8> {
    reply(stream, &[b"\x88", more].concat())
}

fn reply(stream: u32, fields: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)
}

/// SETTINGS with the requests at once.
fn allow(streams: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, 3][..], &streams.to_be_bytes()].concat())
}

fn goaway(last: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

impl FrameServer {
    /// `streams`: requests at once on a new connection. `act` answers each request after `pause`, and says whether the connection ends.
    fn start(authority: &Authority, streams: u32, pause: Duration, act: Act) -> Self {
        let acceptor = authority.acceptor(&[b"h2", b"http/1.1"], false);
        let seen = Arc::<Mutex<BTreeMap<String, u32>>>::default();
        let latest = Arc::<Mutex<Option<Writer>>>::default();
        let (counted, writers) = (Arc::clone(&seen), Arc::clone(&latest));
        let streams = Arc::new(AtomicU32::new(streams));
        let allowed = Arc::clone(&streams);
        let server = RawServer::start(move |stream| {
            let (acceptor, counted, writers) = (acceptor.clone(), Arc::clone(&counted), Arc::clone(&writers));
            let allowed = Arc::clone(&allowed);
            async move {
                let count = |body: &[u8]| {
                    let body = String::from_utf8_lossy(body).into_owned();
                    *counted.lock().unwrap().entry(body).or_default() += 1;
                };
                // Otherwise a reset can overtake the frames before it, which wait for an ACK.
                stream.set_nodelay(true).unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                    while let Some(request) = read_request(&mut stream).await {
                        let id = request.lines().find_map(|line| line.strip_prefix("punctual-id: m"));
                        count(format!("body {}", id.expect("an id")).as_bytes());
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                    }
                    return;
                }
                let mut preface = [0; 24];
                if stream.read_exact(&mut preface).await.is_err() {
                    return;
                }
                let _ = stream.write_all(&allow(allowed.load(Ordering::Relaxed))).await;
                let (mut stream, writer) = split(stream);
                let writer = Arc::new(tokio::sync::Mutex::new(writer));
                *writers.lock().unwrap() = Some(Arc::clone(&writer));
                let (mut number, mut bodies) = (0, BTreeMap::<u32, Vec<u8>>::new());
                let mut indexes = true;
                loop {
                    let mut head = [0; 9];
                    if stream.read_exact(&mut head).await.is_err() {
                        return;
                    }
                    let [a, b, c, kind, flags, id @ ..] = head;
                    let id = u32::from_be_bytes(id);
                    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
                    if stream.read_exact(&mut payload).await.is_err() {
                        return;
                    }
                    let mut reply = Vec::new();
                    let mut ends = false;
                    match kind {
                        SETTINGS | PING if flags & ACK == 0 => {
                            // The size of the table of HPACK.
                            indexes &= kind != SETTINGS || !payload.chunks(6).any(|one| *one == [0, 1, 0, 0, 0, 0]);
                            reply = frame(kind, ACK, 0, if kind == PING { &payload } else { b"" });
                        }
                        HEADERS => drop(bodies.insert(id, Vec::new())),
                        DATA => {
                            bodies.get_mut(&id).expect("an open stream").extend(&payload);
                            if flags & END_STREAM != 0 {
                                number += 1;
                                sleep(pause).await;
                                (reply, ends) = act(number, id);
                                if indexes && number > 1 && reply[9..].starts_with(FIRST_ACCEPTED) {
                                    reply.splice(9..9 + FIRST_ACCEPTED.len(), *b"\xbe");
                                    reply[2] -= u8::try_from(FIRST_ACCEPTED.len()).unwrap() - 1;
                                }
                                if reply.get(3) != Some(&RST_STREAM) {
                                    count(&bodies.remove(&id).unwrap());
                                }
                                let credit = u32::try_from(payload.len()).unwrap().to_be_bytes();
                                reply.extend(frame(WINDOW_UPDATE, 0, 0, &credit));
                            }
                        }
                        _ => {}
                    }
                    let mut writer = writer.lock().await;
                    if writer.write_all(&reply).await.is_err() {
                        return;
                    }
                    if ends {
                        let _ = writer.flush().await;
                        *writers.lock().unwrap() = None;
                        return;
                    }
                }
            }
        });
        Self { server, seen, writer: latest, streams }
    }

    /// Writes to the latest connection.
    async fn write(&self, frames: &[u8]) {
        let writer = self.writer.lock().unwrap().clone().expect("a connection");
        writer.lock().await.write_all(frames).await.expect("an open connection");
    }

    /// The number of messages that came, and how often one of them came at most.
    fn seen(&self) -> (usize, u32) {
        let seen = self.seen.lock().unwrap();
        (seen.len(), seen.values().copied().max().unwrap_or_default())
    }
}

fn batch(count: usize) -> Vec<Delivery> {
    (0..count).map(|n| delivery(&format!("m{n}"), Bytes::from(format!("body {n}")))).collect()
}

fn sink(authority: &Authority, server: &FrameServer, timeout: Duration) -> HttpSink {
    let mut config = config(format!("https://localhost:{}/due", server.server.port()), timeout);
    config.tls.ca_file = Some(authority.file("ca.pem"));
    HttpSink::new(&config).expect("a valid configuration")
}

/// Sends what is not confirmed again, until `rounds` are over or nothing is left.
async fn send_all(sink: &HttpSink, left: &mut Vec<Delivery>, rounds: usize) {
    for round in 0..rounds {
        if left.is_empty() {
            return;
        }
        let outcomes = send(sink, left.clone()).await;
        assert!(outcomes.iter().all(is_no_failure), "round {round}: {outcomes:?}");
        let mut confirmed = outcomes.iter().map(|outcome| *outcome == Outcome::Confirmed);
        left.retain(|_| !confirmed.next().unwrap());
    }
}

fn is_no_failure(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Confirmed | Outcome::Unsent { .. })
}

#[tokio::test]
async fn a_connection_that_ends_while_requests_wait_for_a_stream_fails_none_of_them() {
    let authority = Authority::new();
    let server = FrameServer::start(&authority, 1, Duration::ZERO, |number, stream| (ok(stream, b""), number == 5));
    let sink = authority.sink("localhost", server.server.port(), false);
    for outcome in send(&sink, batch(60)).await {
        // A request that was written when the connection ended may have been processed.
        assert!(is_no_failure(&outcome) || matches!(outcome, Outcome::Lost { .. }), "{outcome:?}");
    }
    assert!(server.seen().0 > 40, "{:?}", server.seen());
}

#[tokio::test]
async fn what_a_goaway_excludes_is_no_attempt_and_comes_once() {
    let authority = Authority::new();
    let server = FrameServer::start(&authority, 100, Duration::ZERO, |_, stream| {
        ([goaway(stream), ok(stream, b"")].concat(), true)
    });
    let sink = authority.sink("localhost", server.server.port(), false);
    for round in 0..3 {
        for outcome in send(&sink, batch(20)).await {
            assert!(is_no_failure(&outcome), "round {round}: {outcome:?}");
        }
    }
    assert!(server.seen().1 <= 3, "{:?}", server.seen());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_goaway_counts_before_a_close_that_leaves_requests_unread() {
    let authority = Authority::new();
    let server = FrameServer::start(&authority, 100, Duration::from_millis(1), |_, stream| {
        // Requests end in any order. Those before the last stream of a GOAWAY could have been processed.
        let is_first = stream == 1;
        (if is_first { [goaway(stream), ok(stream, b"")].concat() } else { Vec::new() }, is_first)
    });
    let sink = authority.sink("localhost", server.server.port(), false);
    for round in 0..40 {
        for outcome in send(&sink, batch(40)).await {
            assert!(is_no_failure(&outcome), "round {round}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_request_that_waits_for_a_stream_does_not_time_out() {
    let authority = Authority::new();
    let server = FrameServer::start(&authority, 1, TIMEOUT / 20, |_, stream| (ok(stream, b""), false));
    let sink = authority.sink("localhost", server.server.port(), false);
    let outcomes = send(&sink, batch(60)).await;
    assert!(outcomes.iter().all(is_no_failure), "{outcomes:?}");
    let confirmed = outcomes.iter().filter(|outcome| **outcome == Outcome::Confirmed).count();
    assert!(confirmed >= 9, "{confirmed}");
    assert_eq!(server.seen(), (confirmed, 1));
}

#[tokio::test]
async fn messages_without_a_stream_are_unsent_until_a_new_connection_allows_streams() {
    let authority = Authority::new();
    let server = FrameServer::start(&authority, 0, Duration::ZERO, |_, stream| (ok(stream, b""), false));
    let sink = sink(&authority, &server, TIMEOUT / 8);
    let mut left = batch(60);
    send_all(&sink, &mut left, 3).await;
    assert_eq!(left.len(), 60);
    server.streams.store(20, Ordering::Relaxed);
    send_all(&sink, &mut left, 20).await;
    assert_eq!((left.len(), server.seen()), (0, (60, 1)));
    // A new one after each wait for half of the timeout.
    assert!((2..=4).contains(&server.server.connections()), "{}", server.server.connections());
}

#[tokio::test]
async fn a_connection_on_which_the_server_allows_no_more_streams_is_replaced() {
    let authority = Authority::new();
    let server = FrameServer::start(&authority, 20, Duration::ZERO, |number, stream| {
        let settings = if number == 5 { allow(0) } else { Vec::new() };
        ([ok(stream, b""), settings].concat(), false)
    });
    let sink = sink(&authority, &server, TIMEOUT / 8);
    let mut left = batch(60);
    send_all(&sink, &mut left, 20).await;
    assert_eq!((left.len(), server.seen()), (0, (60, 1)));
}

#[tokio::test]
async fn a_message_that_waits_for_a_stream_is_sent_when_the_server_allows_one() {
    let authority = Authority::new();
    let server = FrameServer::start(&authority, 0, Duration::ZERO, |_, stream| (ok(stream, b""), false));
    let sink = sink(&authority, &server, 6 * TIMEOUT);
    assert_eq!(sink.check().await, Ok(()));
    let started = Instant::now();
    let allowed = async {
        while server.writer.lock().unwrap().is_none() {
            yield_now().await;
        }
        server.write(&allow(1)).await;
    };
    let (outcomes, ()) = tokio::join!(send(&sink, batch(1)), allowed);
    assert_eq!(outcomes, [Outcome::Confirmed]);
    assert!(started.elapsed() < TIMEOUT, "{:?}", started.elapsed());
}

/// A name in upper case: the library ends the connection.
const UPPER: &[u8] = b"\x00\x04X-Up\x01y";
/// A header that HTTP/2 forbids: the library ends the stream.
const UPGRADE: &[u8] = b"\x00\x07upgrade\x06h2,h2c";

#[tokio::test]
async fn a_success_with_an_invalid_header_counts_however_its_status_is_written() {
    let authority = Authority::new();
    let acts: [Act; 12] = [
        |_, stream| (ok(stream, UPPER), false),
        |_, stream| (ok(stream, UPGRADE), false),
        |_, stream| (reply(stream, &[b"\x89", UPGRADE].concat()), false),
        // Literal: kept in the table, not kept, never kept.
        |_, stream| (reply(stream, &[FIRST_ACCEPTED, UPGRADE].concat()), false),
        |_, stream| (reply(stream, &[FIRST_ACCEPTED, UPPER].concat()), false),
        |_, stream| (reply(stream, &[b"\x08\x03201", UPGRADE].concat()), false),
        |_, stream| (reply(stream, &[b"\x18\x03299", UPPER].concat()), false),
        // Huffman: 202 and 299.
        |_, stream| (reply(stream, &[b"\x48\x82\x10\x05", UPGRADE].concat()), false),
        |_, stream| (reply(stream, &[b"\x08\x83\x13\xef\xff", UPPER].concat()), false),
        // The name is literal too, or Huffman.
        |_, stream| (reply(stream, &[b"\x00\x07:status\x03200", UPGRADE].concat()), false),
        |_, stream| (reply(stream, &[b"\x10\x85\xb8\x84\x8d\x36\xa3\x82\x10\x05", UPGRADE].concat()), false),
        // After an interim reply.
        |_, stream| {
            let interim = frame(HEADERS, END_HEADERS, stream, b"\x08\x03103");
            ([interim, reply(stream, &[b"\x08\x03201", UPGRADE].concat())].concat(), false)
        },
    ];
    for (index, act) in acts.into_iter().enumerate() {
        let server = FrameServer::start(&authority, 1, Duration::ZERO, act);
        let sink = authority.sink("localhost", server.server.port(), false);
        let mut left = batch(20);
        send_all(&sink, &mut left, 20).await;
        assert_eq!((left.len(), server.seen()), (0, (20, 1)), "{index}");
    }
}

#[tokio::test]
async fn an_endpoint_that_asks_for_http_1_gets_it() {
    let authority = Authority::new();
    let server = FrameServer::start(&authority, 100, Duration::ZERO, |_, stream| {
        (frame(RST_STREAM, 0, stream, &HTTP_1_1_REQUIRED.to_be_bytes()), false)
    });
    let sink = authority.sink("localhost", server.server.port(), false);
    let outcomes = send(&sink, batch(20)).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Confirmed), "{outcomes:?}");
    assert_eq!(server.seen(), (20, 1));
}
