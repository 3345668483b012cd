//! Replies that are odd behind their status line. The status line decides. A connection is not used again if its
//! framing is in doubt.

use std::{sync::Arc, time::Duration};

use punctual::{
    config::Whole,
    connector::http::HttpSink,
    sink::{Delivery, Outcome, Report, Reported, Sink},
};
use tokio::{io::AsyncWriteExt, time::Instant};

use super::config;
use crate::support::{RawServer, delivery, read_request, send};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Far below `TIMEOUT`, on a busy machine too.
const SOON: Duration = Duration::from_secs(8);

fn sink(port: u16) -> HttpSink {
    let mut config = config(format!("http://127.0.0.1:{port}/due"), TIMEOUT);
    config.max_connections = Whole(1);
    HttpSink::new(&config).expect("a valid configuration")
}

fn two() -> Vec<Delivery> {
    vec![delivery("m1", "x"), delivery("m2", "x")]
}

/// Answers every request so, and keeps the connection open.
fn keeping(reply: impl Into<Vec<u8>>) -> RawServer {
    let reply: Arc<[u8]> = reply.into().into();
    RawServer::start(move |mut stream| {
        let reply = Arc::clone(&reply);
        async move { while read_request(&mut stream).await.is_some() && stream.write_all(&reply).await.is_ok() {} }
    })
}

/// Names of odd replies, their bytes from behind the status line to the end of the body, and whether the connection is
/// allowed to be used again.
fn odd() -> Vec<(&'static str, Vec<u8>, bool)> {
    let lines = |lines: &str| format!("{lines}\r\nContent-Length: 0\r\n\r\n").into_bytes();
    let many: Vec<String> = (0..120).map(|n| format!("X-{n}: y")).collect();
    let long = format!("X: {}", "y".repeat(64 * 1024));
    let with_value = |value: &[u8]| [b"X: a", value, b"b\r\nContent-Length: 0\r\n\r\n"].concat();
    vec![
        ("blank before the colon", lines("X-A : b"), true),
        ("length with a blank before the colon", b"Content-Length : 2\r\n\r\nok".to_vec(), true),
        ("blank in a name", lines("PHP Warning: x"), true),
        ("line without a colon", lines("no colon"), true),
        ("line without a name", lines(": x"), true),
        ("folded", lines("X: a\r\n b"), true),
        ("folded first", lines(" b"), true),
        ("control character", with_value(b"\x01"), true),
        ("not ASCII", with_value("é\u{ff}".as_bytes()), true),
        ("not UTF-8", with_value(b"\xff\x80"), true),
        ("zero byte", with_value(b"\0"), false),
        ("lone carriage return", with_value(b"\r"), false),
        ("120 headers", lines(&many.join("\r\n")), false),
        ("64 KiB", lines(&long), true),
        ("600 KiB", lines(&long.repeat(10)), false),
        ("bare line feeds", b"X: y\nContent-Length: 0\n\n".to_vec(), true),
        ("length that is no number", b"Content-Length: abc\r\n\r\n".to_vec(), false),
        ("negative length", b"Content-Length: -1\r\n\r\n".to_vec(), false),
        ("two lengths", b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello".to_vec(), false),
        ("the same length twice", b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok".to_vec(), true),
        ("length that is too short", b"Content-Length: 2\r\n\r\nokay".to_vec(), false),
        ("length that is too long", b"Content-Length: 9\r\n\r\nok".to_vec(), false),
        ("chunked with a length", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n".to_vec(), false),
        ("chunks with trailers", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n".to_vec(), true),
        ("chunks that are none", b"Transfer-Encoding: chunked\r\n\r\nzzzz\r\n".to_vec(), false),
        ("unknown transfer encoding", b"Transfer-Encoding: gzip\r\n\r\nx".to_vec(), false),
        ("no length", b"\r\nok".to_vec(), false),
        ("gzip", b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\0".to_vec(), true),
    ]
}

#[tokio::test]
async fn whatever_follows_a_2xx_it_is_a_confirmation() {
    for (name, rest, is_kept) in odd() {
        for line in ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202\r\n"] {
            let server = keeping([line.as_bytes(), &rest].concat());
            let started = Instant::now();
            assert_eq!(send(&sink(server.port()), two()).await, [Outcome::Confirmed, Outcome::Confirmed], "{name}");
            assert!(started.elapsed() < SOON, "{name}: {:?}", started.elapsed());
            assert_eq!(server.connections(), if is_kept { 1 } else { 2 }, "{name}");
        }
    }
}

#[tokio::test]
async fn odd_status_lines_confirm_too() {
    let rest = "Content-Length: 0\r\n\r\n";
    for reply in [
        format!("HTTP/1.1 200\r\n{rest}"),
        format!("HTTP/1.1 200 \x01 O K\r\n{rest}"),
        format!("HTTP/1.1  200 OK\r\n{rest}"),
        format!("\r\n\r\nHTTP/1.1 200 OK\r\n{rest}"),
        format!("HTTP/1.1 299 Ünusual\n{rest}"),
        format!("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n{rest}"),
        format!("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n{rest}"),
        format!("HTTP/1.1 103 Early Hints\r\nPHP Warning: x\r\nX: \x01\r\n\r\nHTTP/1.1 200 OK\r\n{rest}"),
        // With a body that must not be there.
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello".into(),
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(),
        "HTTP/1.1 205 Reset\r\nContent-Length: 5\r\n\r\nhello".into(),
    ] {
        let server = keeping(reply.clone());
        let started = Instant::now();
        assert_eq!(send(&sink(server.port()), two()).await, [Outcome::Confirmed, Outcome::Confirmed], "{reply:?}");
        assert!(started.elapsed() < SOON, "{reply:?}: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_head_that_ends_early_counts_by_its_status_line() {
    for (reply, kind) in [
        ("HTTP/1.1 200 OK\r\n", None),
        ("HTTP/1.1 200 OK\r\nContent-Le", None),
        ("HTTP/1.1 500 Oops\r\nContent-Le", Some("failed")),
        ("HTTP/1.1 200 OK", Some("unavailable")),
        ("HTTP/1.1 2", Some("unavailable")),
    ] {
        let server = RawServer::answering(reply);
        let outcomes = send(&sink(server.port()), two()).await;
        assert!(outcomes.iter().all(|outcome| outcome.failure_kind() == kind), "{reply:?}: {outcomes:?}");
    }
}

#[tokio::test]
async fn other_statuses_count_whatever_follows_them() {
    for (name, rest, _) in odd() {
        for (status, kind) in [(503, "throttled"), (301, "failed")] {
            let server = keeping([format!("HTTP/1.1 {status} X\r\n").as_bytes(), &rest].concat());
            let (report, mut reports) = Report::channel();
            sink(server.port()).send(vec![delivery("m1", "x")], report).await;
            let Some(Reported { outcome, reply: Some(reply), .. }) = reports.recv().await else {
                panic!("{name}: no reply");
            };
            assert_eq!((outcome.failure_kind(), reply.status), (Some(kind), status), "{name}: {outcome:?}");
            assert_eq!(outcome.error(), Some(&*format!("HTTP {status}")), "{name}");
        }
    }
}

#[tokio::test]
async fn retry_after_is_read_from_an_odd_head() {
    let server = keeping("HTTP/1.1 503 Busy\r\nPHP Warning: x\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n");
    let outcomes = send(&sink(server.port()), two()).await;
    let Outcome::Throttled { retry_after, .. } = outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!(retry_after, Some(Duration::from_secs(7)));
}

#[tokio::test]
async fn a_redirect_names_its_location_without_credentials() {
    let long = format!("https://login.example/{}", "x".repeat(2000));
    for (location, named) in [
        ("https://login.example/sso?state=s3cret#part", "Location: https://login.example/sso"),
        ("http://user:s3cret@login.example/a@b", "Location: http://login.example/a@b"),
        ("//user:s3cret@login.example", "Location: //login.example"),
        ("/due/", "Location: /due/"),
        ("a@b/c", "Location: a@b/c"),
        ("https://login.example/\tx\u{e9}", "Location: https://login.example/ xé"),
        ("", "Location: "),
        (&long, &format!("Location: {}", &long[..500])),
    ] {
        let server = keeping(format!("HTTP/1.1 308 Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"));
        let (report, mut reports) = Report::channel();
        sink(server.port()).send(vec![delivery("m1", "x")], report).await;
        let reported = reports.recv().await.expect("a report");
        assert_eq!(reported.outcome.error(), Some("HTTP 308"), "it is logged, and may repeat the payload");
        assert_eq!(reported.reply.expect("a reply").text, named);
    }
}
