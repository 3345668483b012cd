//! The connection that heals, against a server that is killed, stopped or away.

use std::{
    fmt::Write,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use punctual::{
    store::{
        StoreError,
        redis::connection::{Cluster, Connection, RedisEndpoint, client},
    },
    tls::TlsFiles,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    RawServer, RedisServer,
    proxy::{DroppedReply, Proxy},
};

const TIMEOUT: Duration = Duration::from_millis(500);
/// Additional time on a busy machine.
const SLACK: Duration = Duration::from_millis(400);

fn endpoint(url: &str) -> RedisEndpoint {
    RedisEndpoint { url: url.into(), username: None, password: None, tls: TlsFiles::default() }
}

fn connection(url: &str, timeout: Duration) -> Connection {
    Connection::new(client(&endpoint(url)).expect("a valid URL"), timeout)
}

async fn ping(connection: &Connection) -> Result<String, StoreError> {
    connection.run(&redis::cmd("PING")).await
}

fn signal(server: &RedisServer, name: &str) {
    let status = Command::new("kill").args([name, &server.pid().to_string()]).status().expect("kill");
    assert!(status.success());
}

#[tokio::test]
async fn a_server_that_was_killed_and_restarted_answers_the_next_command() {
    let mut server = RedisServer::start().await;
    let connection = connection(&server.url(), Duration::from_secs(5));
    let mut generations = connection.generations();
    ping(&connection).await.expect("the server runs");
    assert_eq!(*generations.borrow_and_update(), 1);

    server.kill();
    let error = ping(&connection).await.expect_err("the server is gone");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");

    server.restart().await;
    // One attempt in 100 ms: the last failed one may be younger.
    sleep(Duration::from_millis(100)).await;
    ping(&connection).await.expect("the server runs again");
    assert_eq!(*generations.borrow_and_update(), 2);
}

#[tokio::test]
async fn a_restart_between_two_commands_costs_none_of_them() {
    let mut server = RedisServer::start().await;
    let connection = connection(&server.url(), Duration::from_secs(5));
    ping(&connection).await.expect("the server runs");
    server.restart().await;
    ping(&connection).await.expect("its end was noticed");
}

#[tokio::test]
async fn a_link_that_was_closed_while_it_was_idle_is_replaced_by_the_next_commands_without_an_error() {
    let server = RedisServer::start().await;
    let mut raw = server.connection().await;
    let connection = connection(&server.url(), Duration::from_secs(5));
    let generations = connection.generations();
    for round in 1..=20 {
        for result in join_all((0..10).map(|_| ping(&connection))).await {
            result.unwrap_or_else(|error| panic!("{round}: {error}"));
        }
        assert_eq!(*generations.borrow(), round, "one link for all of them");
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).exec_async(&mut raw).await.expect("cut");
        // Its end arrives; a link is made at most ten times a second.
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_command_whose_answer_is_lost_is_not_sent_again() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let connection = connection(&proxy.redis_url(), Duration::from_secs(5));
    ping(&connection).await.expect("the server runs");
    let dropped = proxy.drop_next_reply(b"INCR", DroppedReply::Closes);
    let error = connection.run::<u64>(redis::cmd("INCR").arg("n")).await.expect_err("its answer is lost");
    assert!(matches!(error, StoreError::Unavailable { kind: "io", .. }), "{error}");
    dropped.await.expect("it was dropped");
    let count: u64 = connection.run(redis::cmd("INCR").arg("n")).await.expect("a new link");
    assert_eq!(count, 2);
}

#[tokio::test]
async fn a_stopped_server_costs_each_caller_its_timeout_and_no_more() {
    let server = RedisServer::start().await;
    let connection = connection(&server.url(), TIMEOUT);
    ping(&connection).await.expect("the server runs");

    signal(&server, "-STOP");
    // Some find the silent link, those behind them find somebody connecting.
    let callers = (0..20_u64).map(async |n| {
        sleep(Duration::from_millis(n * 50)).await;
        let began = Instant::now();
        let error = ping(&connection).await.expect_err("the server is stopped");
        (began.elapsed(), error)
    });
    for (took, error) in join_all(callers).await {
        assert!(matches!(error, StoreError::Unavailable { kind: "timeout" | "connect", .. }), "{error}");
        assert!(took < TIMEOUT + SLACK, "an answer after {took:?}");
    }

    signal(&server, "-CONT");
    timeout(Duration::from_secs(5), async {
        while ping(&connection).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the server runs again");
}

#[tokio::test]
async fn the_kernel_asks_a_silent_peer_every_two_seconds_whether_it_is_there() {
    let server = RedisServer::start().await;
    let connection = connection(&server.url(), Duration::from_secs(5));
    let info: String = connection.run(redis::cmd("CLIENT").arg("INFO")).await.expect("the server runs");
    let port: u16 =
        info.split_once(" addr=127.0.0.1:").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok()).unwrap();
    // proc(5), tcp: the addresses in hexadecimal are the second and third column, the timer the sixth: 02 is keepalive, then
    // hundredths of a second. A connection of another test to another server may have the same local port.
    let ends = [format!("0100007F:{port:04X}"), format!("0100007F:{:04X}", server.port())];
    let timer = timeout(Duration::from_secs(5), async {
        loop {
            let table = std::fs::read_to_string("/proc/net/tcp").expect("linux");
            let row: Vec<&str> = table
                .lines()
                .map(|line| line.split_whitespace().collect())
                .find(|row: &Vec<_>| row[1..3] == ends)
                .unwrap();
            if let Some(due) = row[5].strip_prefix("02:") {
                return u32::from_str_radix(due, 16).unwrap();
            }
            // One of our segments is still in transit.
            sleep(Duration::from_millis(10)).await;
        }
    });
    let due = timer.await.expect("a keepalive timer");
    assert!(due <= 200, "{due} hundredths");
}

#[tokio::test]
async fn a_server_that_refuses_everyone_sees_at_most_ten_attempts_a_second() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    let connection = connection(&url, TIMEOUT);
    let began = Instant::now();
    let mut failures = 0;
    while began.elapsed() < Duration::from_secs(1) {
        for result in join_all((0..10).map(|_| ping(&connection))).await {
            result.expect_err("no server is there");
            failures += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    serving.abort();
    let attempts = attempts.load(Ordering::SeqCst);
    assert!((2..=11).contains(&attempts), "{attempts} attempts to connect within a second");
    assert!(failures > 100, "callers waited for a server that is away: {failures}");
}

#[tokio::test]
async fn a_link_to_a_replica_is_replaced_once_a_second_until_it_is_a_master() {
    let (replica, master) = (RedisServer::start().await, RedisServer::start().await);
    redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", "1"])
        .exec_async(&mut replica.connection().await)
        .await
        .expect("demoted");
    let proxy = Proxy::start(replica.port());
    let connection = connection(&proxy.redis_url(), TIMEOUT);
    let write = async || connection.run::<u64>(redis::cmd("HDEL").arg("key").arg("field")).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        let error = write().await.expect_err("a replica takes no writes");
        assert!(matches!(error, StoreError::Unavailable { kind: "readonly", .. }), "{error}");
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(proxy.accepted(), 3, "at first, and after one and two seconds");
    proxy.lead_to(master.port());
    timeout(Duration::from_secs(2), async {
        while write().await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the master is found");
    sleep(Duration::from_millis(1500)).await;
    write().await.expect("it is still there");
    assert_eq!(proxy.accepted(), 4);
}

#[tokio::test]
async fn a_replica_that_lost_its_master_is_left() {
    let replica = RedisServer::start_with(&["--replica-serve-stale-data", "no"]).await;
    let proxy = Proxy::start(replica.port());
    let connection = connection(&proxy.redis_url(), TIMEOUT);
    let read = async || connection.run::<Option<String>>(redis::cmd("GET").arg("key")).await;
    read().await.expect("a master");
    redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", "1"])
        .exec_async(&mut replica.connection().await)
        .await
        .expect("demoted");
    sleep(Duration::from_secs(1)).await;
    for _ in 0..2 {
        let error = read().await.expect_err("it has no data to show");
        assert!(matches!(error, StoreError::Unavailable { kind: "masterdown", .. }), "{error}");
    }
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn a_server_that_is_loading_is_left() {
    // A millisecond for each key.
    let slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let server = RedisServer::start_with(&slow).await;
    let proxy = Proxy::start(server.port());
    let connection = connection(&proxy.redis_url(), TIMEOUT);
    let read = async || connection.run::<Option<String>>(redis::cmd("GET").arg("key")).await;
    read().await.expect("it has nothing to load");
    let mut raw = server.connection().await;
    redis::cmd("DEBUG").arg("POPULATE").arg(3000).exec_async(&mut raw).await.expect("populated");
    sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    let reloading = tokio::spawn(async move { redis::cmd("DEBUG").arg("RELOAD").exec_async(&mut raw).await });
    let mut refused = 0;
    while !reloading.is_finished() {
        match read().await {
            Err(StoreError::Unavailable { kind: "loading", .. }) => refused += 1,
            // Between two looks at its clients it stands still.
            Ok(_) | Err(StoreError::Unavailable { kind: "timeout" | "connect", .. }) => {}
            other => panic!("{other:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
    reloading.await.expect("no panic").expect("reloaded");
    assert!(refused > 0);
    // One a second.
    let most = 2 + begun.elapsed().as_secs();
    assert!((2..=most).contains(&(proxy.accepted() as u64)), "{} connections, at most {most}", proxy.accepted());
}

/// A server of a cluster that says after `delay` that the one at `port` has all slots.
fn naming(port: u16, delay: Duration) -> RawServer {
    RawServer::start(move |mut stream| async move {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            // The client tells its name and version first.
            let mut reply = "+OK\r\n".repeat(text.matches("SETINFO").count());
            if text.contains("SLOTS") {
                sleep(delay).await;
                write!(reply, "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n").expect("a text");
            }
            if stream.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    })
}

#[tokio::test]
async fn the_map_of_a_cluster_is_that_of_most_servers_and_not_of_the_fastest() {
    let servers = [(1, 0), (2, 100), (2, 200)].map(|(port, delay)| naming(port, Duration::from_millis(delay)));
    let endpoints = servers.each_ref().map(|server| endpoint(&format!("redis://127.0.0.1:{}", server.port())));
    let cluster = Cluster::new(&endpoints).expect("valid addresses");
    assert_eq!(cluster.owner(0).await.expect("an answer").port, 2);
}
