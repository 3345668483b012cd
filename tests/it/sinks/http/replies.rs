use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use punctual::{
    config::Whole,
    connector::http::{HttpSink, SigningSecret},
    sink::Outcome,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{config, sink};
use crate::support::{RawServer, delivery, read_request, send, send_one};

const TIMEOUT: Duration = Duration::from_secs(5);
/// For what never ends: the timeout has to.
const SHORT: Duration = Duration::from_millis(600);
/// Maximum bytes that a client reads and keeps for one request.
const MAX_READ: usize = 2 * 1024 * 1024;

async fn outcome_of(reply: impl Into<Vec<u8>>) -> Outcome {
    let server = RawServer::answering(reply);
    let outcome = send_one(&sink(server.port(), TIMEOUT)).await;
    if let Some(error) = outcome.error() {
        assert!(!error.contains("hidden") && !error.contains("payload"), "{error}");
    }
    outcome
}

#[tokio::test]
async fn every_status_has_its_outcome_and_names_itself() {
    for (kind, codes) in [
        (None, &[200, 201, 202, 204, 299][..]),
        (Some("failed"), &[301, 302, 303, 307, 308, 404, 408, 425, 500, 501, 505, 599]),
        (Some("throttled"), &[401, 403, 429, 502, 503, 504]),
        (Some("rejected"), &[300, 304, 305, 400, 405, 409, 410, 413, 422, 499, 600, 999, 101]),
    ] {
        for code in codes {
            let outcome = outcome_of(format!("HTTP/1.1 {code} Whatever\r\ncontent-length: 0\r\n\r\n")).await;
            assert_eq!(outcome.failure_kind(), kind, "{code}: {outcome:?}");
            assert!(outcome.error().is_none_or(|error| error.contains(&code.to_string())), "{code}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn interim_replies_are_passed_over() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    assert_eq!(outcome_of(format!("{interim}HTTP/1.1 204 Done\r\n\r\n")).await, Outcome::Confirmed);
}

#[tokio::test]
async fn a_redirect_has_failed_and_is_not_followed() {
    let target = RawServer::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let local = format!("http://127.0.0.1:{}/", target.port());
    for location in [local.as_str(), "http://169.254.169.254/latest/meta-data/"] {
        for code in [301, 302, 303, 307, 308] {
            let outcome = outcome_of(format!("HTTP/1.1 {code} Moved\r\nlocation: {location}\r\n\r\n")).await;
            assert_eq!(outcome.failure_kind(), Some("failed"), "{code} {location}: {outcome:?}");
        }
    }
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn retry_after_is_understood_or_ignored() {
    let date = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:50:37 GMT";
    for (headers, seconds) in [
        ("retry-after: 7", Some(7)),
        ("Retry-After: 1000000000", Some(1_000_000_000)),
        ("retry-after: 99999999999999999999999999", None),
        ("retry-after: -1", None),
        ("retry-after: garbage", None),
        ("retry-after:", None),
        ("x: y", None),
        (date, Some(60)),
    ] {
        for status in ["429 Too Many Requests", "503 Service Unavailable", "500 Internal Server Error"] {
            let outcome = outcome_of(format!("HTTP/1.1 {status}\r\n{headers}\r\ncontent-length: 0\r\n\r\n")).await;
            let (Outcome::Throttled { retry_after, .. } | Outcome::Failed { retry_after, .. }) = outcome else {
                panic!("{status}: {outcome:?}");
            };
            assert_eq!(retry_after, seconds.map(Duration::from_secs), "{headers}");
        }
    }
}

#[tokio::test]
async fn nothing_of_a_reply_but_its_status_is_kept() {
    // "cGF5bG9hZA==" is the payload in base64: an echo need not be a copy.
    for said in ["payload", "you sent: pay", "cGF5bG9hZA==", "Authorization: hidden", "no such customer"] {
        for status in ["400", "500", "503"] {
            let length = said.len();
            let refusal =
                format!("HTTP/1.1 {status} {said}\r\nx-said: {said}\r\ncontent-length: {length}\r\n\r\n{said}");
            assert_eq!(outcome_of(refusal).await.error(), Some(&*format!("HTTP {status}")));
        }
    }
}

#[tokio::test]
async fn a_connection_closed_or_reset_before_the_reply_is_unavailable() {
    let closing = RawServer::start(|mut stream| async move {
        read_request(&mut stream).await;
    });
    let resetting = RawServer::start(|mut stream| async move {
        read_request(&mut stream).await;
        reset(stream);
    });
    let resetting_within_the_head = RawServer::start(|mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await.unwrap();
        reset(stream);
    });
    for server in [closing, resetting, resetting_within_the_head] {
        let outcome = send_one(&sink(server.port(), TIMEOUT)).await;
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
    }
}

/// Closes with RST instead of FIN.
fn reset(stream: TcpStream) {
    stream.set_zero_linger().expect("a socket option");
    drop(stream);
}

#[tokio::test]
async fn a_reply_lost_after_its_head_counts_by_its_status() {
    for (status, kind) in [("200 OK", None), ("503 Busy", Some("throttled")), ("500 Oops", Some("failed"))] {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: 1000\r\n\r\npart of");
        let server = RawServer::start(move |mut stream| {
            let head = head.clone();
            async move {
                read_request(&mut stream).await;
                stream.write_all(head.as_bytes()).await.unwrap();
                reset(stream);
            }
        });
        let outcome = send_one(&sink(server.port(), TIMEOUT)).await;
        // A reset that overtakes the head is seen as a lost connection.
        let kinds = [kind, Some("unavailable")];
        assert!(kinds.contains(&outcome.failure_kind()), "{status}: {outcome:?}");
    }
}

#[tokio::test]
async fn what_is_not_http_does_not_go_on_for_ever() {
    for reply in ["SSH-2.0-OpenSSH_9.2\r\n", "\0\0\0\0\0\0\0\0\0", "HTTP/1.1 abc\r\n\r\n"] {
        let outcome = outcome_of(reply).await;
        assert_eq!(outcome.failure_kind(), Some("throttled"), "{reply:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_destination_that_does_not_answer_is_throttled() {
    let server = RawServer::silent();
    let outcome = send_one(&sink(server.port(), SHORT)).await;
    assert_eq!(outcome.failure_kind(), Some("throttled"), "{outcome:?}");
}

#[tokio::test]
async fn a_head_that_drips_ends_with_the_timeout() {
    let server = RawServer::start(|mut stream| async move {
        read_request(&mut stream).await;
        for byte in b"HTTP/1.1 200 OK\r\nx: ".iter().chain(std::iter::repeat(&b'y')) {
            if stream.write_all(&[*byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    let outcome = send_one(&sink(server.port(), SHORT)).await;
    assert_eq!(outcome.failure_kind(), Some("throttled"), "{outcome:?}");
}

#[tokio::test]
async fn a_body_that_drips_is_not_waited_for() {
    for (status, kind) in [("200 OK", None), ("500 Oops", Some("failed"))] {
        let server = RawServer::start(move |mut stream| async move {
            read_request(&mut stream).await;
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: 1000000\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            while stream.write_all(b"y").await.is_ok() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        let started = Instant::now();
        let outcome = send_one(&sink(server.port(), TIMEOUT)).await;
        assert_eq!(outcome.failure_kind(), kind, "{outcome:?}");
        assert!(started.elapsed() < Duration::from_secs(2), "{status}: {:?}", started.elapsed());
    }
}

/// Answers with `head`, then `piece` again and again; the bytes that the client took, once it has closed.
async fn taken_of_an_endless(head: &'static str, piece: &'static [u8]) -> (Outcome, usize) {
    let written = Arc::new(AtomicUsize::new(0));
    let (done, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let counter = Arc::clone(&written);
    let server = RawServer::start(move |mut stream| {
        let (counter, done) = (Arc::clone(&counter), done.clone());
        async move {
            read_request(&mut stream).await;
            stream.write_all(head.as_bytes()).await.unwrap();
            while stream.write_all(piece).await.is_ok() {
                counter.fetch_add(piece.len(), Ordering::SeqCst);
            }
            let _ = done.send(());
        }
    });
    let outcome = send_one(&sink(server.port(), TIMEOUT)).await;
    // The client closes the connection: the server's writing ends.
    tokio::time::timeout(TIMEOUT, ended.recv()).await.expect("the connection was closed");
    (outcome, written.load(Ordering::SeqCst))
}

#[tokio::test]
async fn little_is_read_of_an_endless_reply() {
    static CHUNK: [u8; 1024 + 7] = {
        let mut chunk = [b'x'; 1024 + 7];
        let (head, mut at) = (*b"400\r\n", 0);
        while at < head.len() {
            chunk[at] = head[at];
            at += 1;
        }
        chunk[1024 + 5] = b'\r';
        chunk[1024 + 6] = b'\n';
        chunk
    };
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let refusal = "HTTP/1.1 400 No\r\ntransfer-encoding: chunked\r\n\r\n";
    let huge = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n";
    let until_close = "HTTP/1.1 500 Oops\r\n\r\n";
    let many_headers: &[u8] = b"x-header: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";
    for (head, piece, kind) in [
        (chunked, &CHUNK[..], None),
        (refusal, &CHUNK[..], Some("rejected")),
        (huge, &CHUNK[..], None),
        (until_close, &CHUNK[..], Some("failed")),
        ("HTTP/1.1 200 OK\r\n", many_headers, None),
        ("HTTP/1.1 500 Oops\r\nx: ", b"yyyyyyyyyyyyyyyy", Some("failed")),
    ] {
        let (outcome, taken) = taken_of_an_endless(head, piece).await;
        assert_eq!(outcome.failure_kind(), kind, "{head:?}: {outcome:?}");
        assert!(taken <= MAX_READ, "{head:?}: {taken} bytes");
    }
}

#[tokio::test]
async fn connections_are_used_again_also_after_a_reply_with_a_body() {
    let server = RawServer::start(|mut stream| async move {
        let body = "x".repeat(30_000);
        while read_request(&mut stream).await.is_some() {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(body.as_bytes()).await.unwrap();
        }
    });
    let sink = sink(server.port(), TIMEOUT);
    for _ in 0..20 {
        assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_kept_connection_that_the_server_has_closed_costs_nothing() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let server = RawServer::start(move |mut stream| {
        let closed = closed.clone();
        async move {
            read_request(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            drop(stream);
            let _ = closed.send(());
        }
    });
    let sink = sink(server.port(), TIMEOUT);
    for _ in 0..20 {
        let outcome = send_one(&sink).await;
        // Closing may cross the request: then it was not delivered, and nothing counts.
        assert!(matches!(outcome, Outcome::Confirmed | Outcome::Lost { .. }), "{outcome:?}");
        was_closed.recv().await;
    }
    assert!(server.connections() > 10, "{}", server.connections());
}

#[tokio::test]
async fn a_header_that_cannot_be_sent_is_rejected_and_nothing_is_sent() {
    let server = RawServer::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let mut bad = delivery("bad", "x");
    bad.metadata.headers.insert("X-Bad".into(), "a\r\nInjected: 1".into());
    let outcomes = send(&sink(server.port(), TIMEOUT), vec![bad, delivery("good", "x")]).await;
    assert_eq!(outcomes[0].failure_kind(), Some("rejected"));
    assert_eq!(outcomes[1], Outcome::Confirmed);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_request_is_signed_and_carries_the_address_s_user() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    let server = RawServer::start(move |mut stream| {
        let seen = Arc::clone(&seen);
        async move {
            let head = read_request(&mut stream).await.expect("a request");
            seen.lock().unwrap().push(head);
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        }
    });
    let url = format!("http://user:hidden@127.0.0.1:{}/due?a=%20b#part", server.port());
    let mut config = super::config(url, TIMEOUT);
    config.signing_secrets =
        [SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap()].into_iter().collect();
    let clock = || std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_614_265_330);
    let sink = punctual::connector::http::HttpSink::with_clock(&config, clock).unwrap();
    let batch = vec![delivery("msg_p5jXN8AQM9LWM0D4loKWxJek", r#"{"test": 2432232314}"#)];
    assert_eq!(send(&sink, batch).await, [Outcome::Confirmed]);
    let head = heads.lock().unwrap()[0].clone();
    assert!(head.starts_with("POST /due?a=%20b HTTP/1.1\r\n"), "{head}");
    assert_eq!(send(&sink, vec![delivery("a.1614265330", "x")]).await, [Outcome::Confirmed]);
    let dotted = heads.lock().unwrap()[1].clone();
    assert!(dotted.contains("punctual-id: a.1614265330\r\n"), "{dotted}");
    assert!(dotted.contains("webhook-id: ~") && !dotted.contains("webhook-id: a"), "{dotted}");
    for line in [
        "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp: 1614265330",
        "webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "authorization: Basic dXNlcjpoaWRkZW4=",
        "content-length: 20",
    ] {
        assert!(head.contains(&format!("{line}\r\n")), "{line} in {head}");
    }
}

/// A body that is longer than the buffers of both sockets.
const LONG: usize = 8 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_whole_reply_counts_though_its_server_closes_without_reading_the_body() {
    let server = RawServer::start(|mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
    });
    let mut config = config(format!("http://127.0.0.1:{}/due", server.port()), TIMEOUT);
    config.max_connections = Whole(4);
    let sink = HttpSink::new(&config).expect("a valid configuration");
    let body = Bytes::from(vec![b'x'; LONG]);
    let batch = (0..300).map(|n| delivery(&format!("m{n}"), body.clone())).collect();
    let outcomes = send(&sink, batch).await;
    let lost = outcomes.iter().filter(|outcome| **outcome != Outcome::Confirmed).collect::<Vec<_>>();
    assert!(lost.is_empty(), "{} of 300: {:?}", lost.len(), lost[0]);
}
