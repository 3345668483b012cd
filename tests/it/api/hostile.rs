//! Malicious input: only 4xx, no external key, nothing without bound.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::support::{ApiServer, MAX_PAYLOAD, REQUEST_TIMEOUT, answer};

/// Sends bytes as they are and reads what comes back until the server closes.
async fn talk(server: &ApiServer, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // A refused request may be cut while it is still being written.
    let _ = stream.write_all(request).await;
    let mut reply = Vec::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut reply)).await.expect("the server ends it");
    String::from_utf8_lossy(&reply).into_owned()
}

fn status_of(reply: &str) -> u16 {
    reply.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status: {reply:?}"))
}

#[tokio::test]
async fn hostile_names_and_ids_are_refused_and_leave_no_key() {
    let server = ApiServer::start().await;
    let long = "x".repeat(60_000);
    let names = [
        "*",
        "%3F",
        "%5B%5D",
        "%7Bpunctual%3Aa%7D",
        "%0D%0A",
        "%00",
        "%2E%2E%2Fa",
        "%2F",
        "%FF",
        "a%20b",
        "%C3%A9",
        &long,
    ];
    for name in names {
        for (method, path, body) in [
            ("POST", format!("/v1/routes/{name}/messages"), r#"{"payload":1}"#),
            ("POST", format!("/v1/routes/{name}/raw"), "x"),
            ("POST", format!("/v1/routes/{name}/pause"), ""),
            ("GET", format!("/v1/routes/{name}/messages/x"), ""),
            ("GET", format!("/v1/routes/a/messages/{name}"), ""),
            ("PATCH", format!("/v1/routes/a/messages/{name}"), r#"{"delay":1}"#),
            ("DELETE", format!("/v1/routes/a/messages/{name}"), ""),
            ("POST", format!("/v1/routes/a/raw?id={name}"), "x"),
        ] {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let reply = talk(&server, request.as_bytes()).await;
            assert!((400..500).contains(&status_of(&reply)), "{method} {path}: {reply}");
            assert!(reply.len() < 2000, "a long name is not echoed");
        }
    }
    let mut connection = server.redis.connection().await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn hostile_bodies_are_refused() {
    let server = ApiServer::start().await;
    let deep = "[".repeat(1_000_000);
    let control = "x\\r\\nInjected: 1";
    for (body, status) in [
        (r#"{"payload":1,"delay":nan}"#.to_owned(), 400),
        (r#"{"payload":1,"delay":1e400}"#.to_owned(), 422),
        (r#"{"payload":1,"delay":-1}"#.to_owned(), 422),
        (r#"{"payload":1,"delay":9223372036854775808}"#.to_owned(), 422),
        (r#"{"payload":1,"delay":9007199254740992}"#.to_owned(), 422),
        (r#"{"payload":1,"delay":1.5}"#.to_owned(), 422),
        (r#"{"payload":1,"deliver_at":1e400}"#.to_owned(), 422),
        (r#"{"payload":1,"deliver_at":"nan"}"#.to_owned(), 422),
        (r#"{"payload":1,"deliver_at":"-inf"}"#.to_owned(), 422),
        (format!(r#"{{"payload":1,"headers":{{"X":"{control}"}}}}"#), 422),
        (format!(r#"{{"payload":1,"headers":{{"{control}":"x"}}}}"#), 422),
        (format!(r#"{{"payload":1,"key":"{control}"}}"#), 422),
        (format!(r#"{{"payload":1,"content_type":"{control}"}}"#), 422),
        (r#"{"payload":1,"id":"a\u0000b"}"#.to_owned(), 422),
        (format!(r#"{{"payload":1,"id":"{}"}}"#, "x".repeat(1_000_000)), 422),
        (r#"{"payload":"\ud800"}"#.to_owned(), 422),
        (deep.clone(), 400),
        (format!(r#"{{"payload":1,"headers":{deep}"#), 400),
        (format!("[{}1]", "1,".repeat(2_000_000)), 422),
        (format!(r#"{{"payload":"{}"}}"#, "x".repeat(MAX_PAYLOAD + 1)), 413),
    ] {
        let refused = server.call("POST", "/v1/routes/a/messages", &body).await;
        refused.problem(status);
        assert!(refused.text.len() < 1000, "a hostile value is not echoed: {} bytes", refused.text.len());
    }
    let largest = format!(r#"{{"payload":"{}"}}"#, "x".repeat(MAX_PAYLOAD));
    let scheduled = server.call("POST", "/v1/routes/a/messages", &largest).await;
    assert_eq!(scheduled.status, 201, "the limit itself is allowed");
}

#[tokio::test]
async fn hostile_raw_requests_are_refused() {
    let server = ApiServer::start().await;
    for query in [
        "delay=nan",
        "delay=-1",
        "delay=1e400",
        "delay=1.5",
        "deliver_at=9223372036854775808",
        "delay=1&delay=2",
        "delay=1&deliver_at=1",
        "unknown=1",
        "id=",
        "id=a%00b",
        "max_attempts=-1",
        "on_conflict=x",
    ] {
        server.call("POST", &format!("/v1/routes/a/raw?{query}"), "x").await.problem(400);
    }
    server.call("POST", "/v1/routes/a/raw?key=a%0D%0Ab", "x").await.problem(422);
    server.call("POST", "/v1/routes/a/raw?max_attempts=0", "x").await.problem(422);
    for length in [MAX_PAYLOAD, MAX_PAYLOAD + 1, 50 * MAX_PAYLOAD] {
        let status = server.call("POST", "/v1/routes/a/raw?delay=1h", &"x".repeat(length)).await.status;
        assert_eq!(status, if length > MAX_PAYLOAD { 413 } else { 201 }, "{length}");
    }
    let header = |name: &str, value: &str| {
        format!(
            "POST /v1/routes/a/raw HTTP/1.1\r\nHost: localhost\r\n{name}: {value}\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
        )
    };
    for (name, value) in [
        ("Punctual-Forward-Host", "x"),
        ("Punctual-Forward-Punctual-Id", "x"),
        ("Punctual-Forward-X", "a\u{1}b"),
        ("Idempotency-Key", "a b"),
        ("Content-Length", "2"),
        ("Transfer-Encoding", "chunked"),
    ] {
        let reply = talk(&server, header(name, value).as_bytes()).await;
        assert!((400..500).contains(&status_of(&reply)), "{name}: {reply}");
    }
    assert_eq!(server.ids_in("a", "pending").await.len(), 1, "only the one of allowed length");
}

#[tokio::test]
async fn all_mistakes_of_a_raw_call_are_named_at_once() {
    let server = ApiServer::start().await;
    let query = "id=a%00b&delay=soon&deliver_at=never&key=a%0D%0Ab&max_attempts=x&expires_at=late&on_conflict=x";
    let call = server.request("POST", &format!("/v1/routes/a/raw?{query}"));
    let call = call.header("Punctual-Forward-Host", "x").header("Punctual-Forward-X", "1");
    let refused = answer(call.header("Punctual-Forward-X", "2").header("Content-Encoding", "gzip").body("x")).await;
    assert_eq!(refused.problem(400), "bad-request");
    let errors = refused.json["errors"].as_array().expect("errors");
    let named: Vec<&str> = errors.iter().map(|error| error["pointer"].as_str().expect("a name")).collect();
    let expected = [
        "id",
        "delay",
        "delay",
        "deliver_at",
        "on_conflict",
        "expires_at",
        "Punctual-Forward-X",
        "max_attempts",
        "headers",
        "key",
    ];
    assert_eq!(named, expected, "{}", refused.text);
    // Values that can be read and are not allowed.
    let refused = server.call("POST", "/v1/routes/a/raw?key=a%0D%0Ab&max_attempts=0", "x").await;
    assert_eq!(refused.problem(422), "invalid");
    assert_eq!(refused.json["errors"].as_array().map(Vec::len), Some(2), "{}", refused.text);
    assert!(server.ids_in("a", "pending").await.is_empty());
}

#[tokio::test]
async fn a_query_that_is_no_utf8_is_refused() {
    let server = ApiServer::start().await;
    for query in ["key=%ff", "key=a%C3", "id=x&key=%ED%A0%80", "%ff=1"] {
        let refused = server.call("POST", &format!("/v1/routes/a/raw?{query}"), "x").await;
        assert_eq!(refused.problem(400), "bad-request", "{query}");
        assert!(refused.json["detail"].as_str().unwrap().contains("UTF-8"), "{query}: {}", refused.text);
    }
    assert_eq!(server.call("GET", "/v1/routes/a/messages?cursor=%ff", "").await.problem(400), "bad-request");
    assert!(server.ids_in("a", "pending").await.is_empty());
    assert_eq!(server.call("POST", "/v1/routes/a/raw?key=%C3%A9+%25&delay=1h", "x").await.status, 201);
}

#[tokio::test]
async fn framing_and_hosts_that_can_be_read_in_two_ways_are_refused() {
    let server = ApiServer::start().await;
    let post = |lines: &str| {
        format!("POST /v1/routes/a/raw HTTP/1.1\r\n{lines}\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\n\r\n")
    };
    for (lines, status) in [
        ("Host: localhost\r\nTransfer-Encoding: gzip, chunked", 501),
        ("Host: localhost\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked", 501),
        ("Host: localhost\r\nTransfer-Encoding: identity, chunked", 501),
        ("Host: localhost\r\nHost: localhost\r\nTransfer-Encoding: chunked", 400),
        ("Host: localhost\r\nHost: evil.example\r\nTransfer-Encoding: chunked", 400),
    ] {
        let reply = talk(&server, post(lines).as_bytes()).await;
        assert_eq!(status_of(&reply), status, "{lines}: {reply}");
        assert!(reply.contains("application/problem+json"), "{lines}: {reply}");
    }
    assert!(server.ids_in("a", "pending").await.is_empty());
    let twice = "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n";
    assert_eq!(status_of(&talk(&server, twice.as_bytes()).await), 400, "for every path");
    let plain = talk(&server, post("Host: localhost\r\nTransfer-Encoding: Chunked").as_bytes()).await;
    assert_eq!(status_of(&plain), 201, "{plain}");
}

#[tokio::test]
async fn an_endless_chunked_body_is_cut() {
    let server = ApiServer::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = b"POST /v1/routes/a/raw HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 65536, "x".repeat(65536));
    let (mut reader, mut writer) = stream.into_split();
    let mut sent = 0_usize;
    let pump = async {
        while writer.write_all(chunk.as_bytes()).await.is_ok() {
            sent += chunk.len();
        }
    };
    let mut reply = [0; 64];
    let read = async { reader.read(&mut reply).await.unwrap_or(0) };
    let (length, ()) = timeout(Duration::from_secs(10), async { tokio::join!(read, pump) }).await.expect("it is cut");
    assert_eq!(status_of(&String::from_utf8_lossy(&reply[..length])), 413);
    assert!(sent < 80 << 20, "{sent} bytes were taken, those in the kernel's buffers included");
}

#[tokio::test]
async fn a_client_that_sends_its_whole_body_before_it_reads_gets_the_early_reply() {
    const LENGTH: usize = 30 << 20;
    let server = ApiServer::start().await;
    for (path, status) in [("/v1/routes/a/raw", 413), ("/v1/routes/a/messages", 413), ("/v1/nowhere", 404)] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LENGTH}\r\n\r\n");
        let mut reply = String::new();
        let talk = async {
            stream.write_all(head.as_bytes()).await?;
            for _ in 0..LENGTH >> 16 {
                stream.write_all(&vec![b'x'; 1 << 16]).await?;
            }
            stream.read_to_string(&mut reply).await
        };
        let done = timeout(Duration::from_secs(20), talk).await.expect("in time");
        done.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(status_of(&reply), status, "{reply}");
    }
}

#[tokio::test]
async fn a_body_that_trickles_is_given_up_within_the_request_timeout() {
    let server = ApiServer::start().await;
    let began = Instant::now();
    let head = b"POST /v1/routes/a/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
    let reply = talk(&server, head).await;
    assert_eq!(status_of(&reply), 408, "{reply}");
    assert!(began.elapsed() < REQUEST_TIMEOUT + Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn bodies_that_are_announced_and_do_not_come_delay_no_other_request() {
    let server = ApiServer::start().await;
    let head =
        format!("POST /v1/routes/a/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n[", 16 << 20);
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    // Answered after the heads above were sent: by then they are being served.
    assert_eq!(server.call("GET", "/livez", "").await.status, 200);
    let began = Instant::now();
    let scheduled = server.call("POST", "/v1/routes/a/messages", r#"{"payload":1}"#).await;
    assert_eq!(scheduled.status, 201, "{}", scheduled.text);
    assert!(began.elapsed() < REQUEST_TIMEOUT / 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_body_that_breaks_off_schedules_nothing() {
    let server = ApiServer::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(b"POST /v1/routes/a/raw HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    let mut reply = String::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_string(&mut reply)).await.expect("the server ends it");
    assert!(!reply.contains(" 201 "), "{reply}");
    assert!(server.ids_in("a", "pending").await.is_empty());
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let server = ApiServer::start().await;
    let mut request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
    request.resize(request.len() + (1 << 20), b'x');
    let reply = talk(&server, &request).await;
    // The rest of the head may still be in transit when the connection is closed: then no answer is read.
    assert!(reply.is_empty() || status_of(&reply) == 431, "{reply}");
    assert_eq!(server.call("GET", "/livez", "").await.status, 200);
}
