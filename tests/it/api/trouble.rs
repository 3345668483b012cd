//! Redis down, slow or full; and the end of the process.

use std::{net::SocketAddr, process::Command, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::support::{ApiServer, REQUEST_TIMEOUT, Setup};

const CALLS: [(&str, &str, &str); 9] = [
    ("POST", "/v1/routes/a/messages", r#"{"id":"x","payload":1}"#),
    ("POST", "/v1/routes/a/raw?id=y", "x"),
    ("GET", "/v1/routes/a/messages/x", ""),
    ("PATCH", "/v1/routes/a/messages/x", r#"{"delay":1}"#),
    ("DELETE", "/v1/routes/a/messages/x", ""),
    ("GET", "/v1/routes", ""),
    ("GET", "/v1/routes/b", ""),
    ("POST", "/v1/routes/a/pause", ""),
    ("GET", "/readyz", ""),
];

async fn assert_everything_is_unavailable(server: &ApiServer) {
    for (method, path, body) in CALLS {
        let began = Instant::now();
        let refused = server.call(method, path, body).await;
        refused.problem(503);
        assert_eq!(refused.headers["retry-after"], "1", "{method} {path}");
        assert!(began.elapsed() < REQUEST_TIMEOUT + Duration::from_secs(1), "{method} {path}: {:?}", began.elapsed());
    }
    assert_eq!(server.call("GET", "/livez", "").await.status, 200);
    let began = Instant::now();
    let page = server.call("GET", "/metrics", "").await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("punctual_redis_errors_total"), "{}", page.text);
    assert!(!page.text.contains(r#"punctual_pending_messages{route="away"}"#), "{}", page.text);
    assert!(began.elapsed() < REQUEST_TIMEOUT, "{:?}", began.elapsed());
}

async fn assert_ready_again(server: &ApiServer) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while server.call("GET", "/readyz", "").await.status != 200 {
        assert!(Instant::now() < deadline, "not ready 2 s after redis was back");
        sleep(Duration::from_millis(20)).await;
    }
}

fn routes() -> Vec<(&'static str, u16)> {
    vec![("a", 1), ("b", 2), ("away", 1)]
}

#[tokio::test]
async fn without_redis_calls_answer_503_and_work_again_when_it_is_back() {
    // With `everysec` a server with a busy disk answers before it writes. A kill loses such a write.
    let redis_arguments = vec!["--appendfsync", "always"];
    let mut server = ApiServer::start_with(Setup { routes: routes(), redis_arguments, ..Setup::default() }).await;
    server.schedule("a", r#"{"id":"before","payload":1,"delay":"1h"}"#).await;
    server.redis.kill();
    assert_everything_is_unavailable(&server).await;
    server.redis.restart().await;
    assert_ready_again(&server).await;
    assert_eq!(server.call("GET", "/v1/routes/a/messages/before", "").await.status, 200);
    server.schedule("a", r#"{"payload":1}"#).await;
}

#[tokio::test]
async fn while_redis_stands_still_calls_answer_503_in_time_and_work_again_after() {
    let server = ApiServer::start_with(Setup { routes: routes(), ..Setup::default() }).await;
    server.schedule("a", r#"{"id":"before","payload":1,"delay":"1h"}"#).await;
    signal(server.redis.pid(), "STOP");
    assert_everything_is_unavailable(&server).await;
    signal(server.redis.pid(), "CONT");
    assert_ready_again(&server).await;
    assert_eq!(server.call("GET", "/v1/routes/a/messages/before", "").await.status, 200);
}

#[tokio::test]
async fn a_full_redis_refuses_new_messages_and_lets_old_ones_go() {
    let server = ApiServer::start().await;
    server.schedule("a", r#"{"id":"old","payload":1}"#).await;
    let mut connection = server.redis.connection().await;
    let limit = async |connection: &mut redis::aio::MultiplexedConnection, bytes: &str| {
        let mut set = redis::cmd("CONFIG");
        let _: () = set.arg("SET").arg("maxmemory").arg(bytes).query_async(connection).await.unwrap();
    };
    limit(&mut connection, "1").await;
    let refused = server.call("POST", "/v1/routes/a/messages", r#"{"id":"new","payload":1}"#).await;
    assert_eq!(refused.problem(503), "unavailable");
    assert_eq!(server.call("POST", "/v1/routes/a/pause", "").await.status, 204, "pausing needs no memory");
    assert_eq!(server.call("POST", "/v1/routes/a/resume", "").await.status, 204);
    assert_eq!(server.call("DELETE", "/v1/routes/a/messages/old", "").await.status, 204);
    limit(&mut connection, "0").await;
    server.schedule("a", r#"{"id":"new","payload":1}"#).await;
}

#[tokio::test]
async fn an_evicting_redis_is_not_ready() {
    let setup = Setup { redis_arguments: vec!["--maxmemory-policy", "allkeys-lru"], ..Setup::default() };
    let server = ApiServer::start_with(setup).await;
    assert_eq!(server.call("GET", "/readyz", "").await.problem(503), "not-ready");
    assert_eq!(server.call("GET", "/livez", "").await.status, 200);
}

#[tokio::test]
async fn a_partition_whose_keys_vanished_is_opened_again_by_the_next_call() {
    let server = ApiServer::start().await;
    server.schedule("b", r#"{"id":"before","payload":1}"#).await;
    let mut raw = server.redis.connection().await;
    let both = ["{punctual:b:0/2}:route", "{punctual:b:1/2}:route"];
    let _: u64 = redis::cmd("DEL").arg(both[0]).arg(both[1]).query_async(&mut raw).await.unwrap();
    let batch: Vec<String> = (0..20).map(|n| format!(r#"{{"id":"m{n}","payload":1}}"#)).collect();
    let answer = server.call("POST", "/v1/routes/b/messages", &format!("[{}]", batch.join(","))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    server.schedule("b", r#"{"id":"after","payload":1}"#).await;

    let _: u64 = redis::cmd("DEL").arg(both[1]).query_async(&mut raw).await.unwrap();
    assert_eq!(server.call("GET", "/readyz", "").await.status, 200);
    let open: u64 = redis::cmd("EXISTS").arg(&both).query_async(&mut raw).await.unwrap();
    assert_eq!(open, 2, "what is ready accepts messages");
}

#[tokio::test]
async fn a_replica_is_not_ready_and_reported() {
    let server = ApiServer::start().await;
    assert_eq!(server.call("GET", "/readyz", "").await.status, 200);
    let mut raw = server.redis.connection().await;
    let _: () = redis::cmd("REPLICAOF").arg(&["127.0.0.1", "1"]).query_async(&mut raw).await.unwrap();
    // For a second a probe is answered as the one before.
    let deadline = Instant::now() + Duration::from_secs(2);
    let answer = loop {
        let answer = server.call("GET", "/readyz", "").await;
        if answer.status != 200 || Instant::now() > deadline {
            break answer;
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(answer.problem(503), "not-ready");
    assert!(answer.text.contains("replica"), "{}", answer.text);
    let refused = server.call("POST", "/v1/routes/a/messages", r#"{"payload":1}"#).await;
    assert_eq!(refused.problem(503), "unavailable");
}

#[tokio::test]
async fn stopping_finishes_what_is_under_way_and_closes_what_is_idle() {
    let mut server = ApiServer::start().await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    busy.write_all(b"POST /v1/routes/a/raw?id=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nab")
        .await
        .unwrap();
    // Answered after the head above was sent: by then the server has accepted both connections.
    assert_eq!(server.call("GET", "/livez", "").await.status, 200);

    let address = server.address;
    let finish = async {
        let mut end = [0];
        assert_eq!(idle.read(&mut end).await.unwrap(), 0, "the idle connection is closed");
        assert_eq!(livez(address).await.unwrap_or_default(), "", "nothing new is served");
        busy.write_all(b"c").await.unwrap();
        let mut reply = String::new();
        timeout(Duration::from_secs(5), busy.read_to_string(&mut reply)).await.expect("in time").unwrap();
        reply
    };
    let (reply, stopped) = tokio::join!(finish, server.stop());
    assert!(reply.starts_with("HTTP/1.1 201"), "{reply}");
    assert!(stopped, "the server ended");
    assert_eq!(server.ids_in("a", "pending").await, ["x"]);
}

/// Not `connect` alone: a child that another test forks just now may hold the closed listener open until its exec.
async fn livez(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    Ok(reply)
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.expect("kill runs").success());
}
