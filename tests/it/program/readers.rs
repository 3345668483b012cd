//! Readers that ask for much at once, or take it slowly: others keep their service, and memory has its bound.

use std::{fs, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{alone, client::Client};
use crate::support::{RedisServer, http, punctual::Punctual, receiver::Receiver, scale::rounds};

/// Slow readers: more than the memory for readers serves at once.
const TOO_MANY: usize = 80;
/// Messages of the largest payload that make one page of the listing.
const PAGE: usize = 7;
const MIB: usize = 1 << 20;
/// Maximum memory that readers add to the process, in MiB: 64 for parts of listings, and the bytes in transit.
const READERS_MEMORY_MIB: usize = 160;

/// Nothing is due while a test runs.
async fn punctual(redis: &RedisServer, receiver: &Receiver) -> Punctual {
    Punctual::start(&format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\n\
         routes: {{ full: {{ sink: hook }}, other: {{ sink: hook }} }}\n",
        redis.url(),
        receiver.url()
    ))
    .await
}

async fn fill(punctual: &Punctual, byte: u8) {
    for _ in 0..PAGE {
        let request = http::client().post(punctual.url("/v1/routes/full/raw?delay=1h"));
        assert_eq!(request.body(vec![byte; MIB - 1]).send().await.expect("an answer").status(), 201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_of_large_pages_leave_posts_and_probes_alone() {
    let _alone = alone().await;
    // Listings of 7 MiB each: thirty, too, are three times the limit for parts of listings, 64 MiB.
    let greedy = rounds(30, 250);
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = punctual(&redis, &receiver).await;
    fill(&punctual, b'x').await;
    let patient = http::builder().timeout(Duration::from_mins(1)).build().expect("a client");
    let mut listings = JoinSet::new();
    for _ in 0..greedy {
        let request = patient.get(punctual.url("/v1/routes/full/messages?limit=1000"));
        listings.spawn(async move {
            let mut response = request.send().await.map_err(|error| error.to_string())?;
            let (status, retry) = (response.status().as_u16(), response.headers().contains_key("retry-after"));
            let mut last = 0;
            while let Some(chunk) = response.chunk().await.map_err(|error| error.to_string())? {
                last = *chunk.last().unwrap_or(&last);
            }
            Ok::<_, String>((status, retry, last))
        });
    }
    let client = Client::of(&punctual);
    let (mut refused, mut slowest, mut calls) = (Vec::new(), Duration::ZERO, 0);
    let mut ends = Vec::new();
    while !listings.is_empty() {
        for (method, path, body, expected) in
            [("POST", "/v1/routes/other/messages", r#"{"payload":1,"delay":"1h"}"#, 201), ("GET", "/readyz", "", 200)]
        {
            let began = Instant::now();
            let answer = client.call(method, path, body).await;
            (slowest, calls) = (slowest.max(began.elapsed()), calls + 1);
            if answer.status != expected {
                refused.push((method, answer.status));
            }
        }
        while let Some(end) = listings.try_join_next() {
            ends.push(end.expect("no panic"));
        }
    }
    let whole = ends.iter().filter(|end| matches!(end, Ok((200, _, b'}')))).count();
    println!("{whole} of {greedy} listings; {calls} other calls, slowest {slowest:?}, refused {}", refused.len());
    assert!(refused.is_empty(), "{} of {calls}, the first {:?}", refused.len(), refused.first());
    assert!(slowest < Duration::from_secs(5), "{slowest:?}: within the request timeout on a busy machine");
    assert!(whole > 0, "some are served");
    for end in &ends {
        assert!(matches!(end, Ok((200, _, b'}') | (503, true, _))), "whole, or refused with a time: {end:?}");
    }
}

#[tokio::test]
async fn slow_readers_of_control_characters_take_bounded_memory() {
    let _alone = alone().await;
    // A page of control characters is 42 MiB of JSON: sixteen readers, too, would take four times the bound.
    let slow = rounds(16, 40);
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = punctual(&redis, &receiver).await;
    fill(&punctual, 1).await;
    let address: SocketAddr = punctual.url("").trim_start_matches("http://").parse().expect("an address");
    let before = memory_from_now(&punctual);
    let mut readers = JoinSet::new();
    for _ in 0..slow {
        readers.spawn(async move {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_recv_buffer_size(8 * 1024).expect("a small buffer");
            let mut stream = socket.connect(address).await.expect("a connection");
            let head = b"GET /v1/routes/full/messages?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(head).await.expect("written");
            let mut status = [0; 12];
            // A process under load can answer late. Nevertheless it holds the messages that it read.
            let _ = timeout(Duration::from_secs(20), stream.read_exact(&mut status)).await;
            (stream, status == *b"HTTP/1.1 200")
        });
    }
    let begun = readers.join_all().await;
    let served = begun.iter().filter(|(_, served)| *served).count();
    let grown = memory_mib(&punctual) - before;
    println!("{served} of {slow} slow readers served, {grown} MiB for them");
    assert!(served > 0, "some are served");
    assert!(grown < READERS_MEMORY_MIB, "{grown} MiB");
    assert_eq!(Client::of(&punctual).call("GET", "/readyz", "").await.status, 200);
}

#[tokio::test]
async fn readers_of_one_token_leave_room_for_those_of_another() {
    let _alone = alone().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\n\
         routes: {{ full: {{ sink: hook }} }}\nserver: {{ auth: {{ tokens: [greedy, {{ token: other, rights: [read] }}] }} }}\n",
        redis.url(),
        receiver.url()
    ))
    .await;
    let client = http::client();
    for _ in 0..PAGE {
        let request = client.post(punctual.url("/v1/routes/full/raw?delay=1h")).bearer_auth("greedy");
        assert_eq!(request.body(vec![b'x'; MIB - 1]).send().await.expect("an answer").status(), 201);
    }
    let address: SocketAddr = punctual.url("").trim_start_matches("http://").parse().expect("an address");
    let mut readers = JoinSet::new();
    for _ in 0..TOO_MANY {
        readers.spawn(async move {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_recv_buffer_size(8 * 1024).expect("a small buffer");
            let mut stream = socket.connect(address).await.expect("a connection");
            let head =
                b"GET /v1/routes/full/messages?limit=1000 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer greedy\r\n\r\n";
            stream.write_all(head).await.expect("written");
            let mut status = [0; 12];
            let _ = timeout(Duration::from_secs(20), stream.read_exact(&mut status)).await;
            (stream, status)
        });
    }
    let begun = readers.join_all().await;
    let refused = begun.iter().filter(|(_, status)| status == b"HTTP/1.1 503").count();
    assert!(refused > 0 && refused < TOO_MANY, "{refused} of {TOO_MANY} were refused: they hold all that they may");
    let answer = client.get(punctual.url("/v1/routes/full/messages?limit=1")).bearer_auth("other").send().await;
    assert_eq!(answer.expect("an answer").status(), 200);
}

/// Begins to measure the peak of `memory_mib` again, which is now the present size.
fn memory_from_now(punctual: &Punctual) -> usize {
    fs::write(format!("/proc/{}/clear_refs", punctual.pid().as_raw_nonzero()), "5").expect("the peak is reset");
    memory_mib(punctual)
}

/// The peak of the resident memory of the process.
fn memory_mib(punctual: &Punctual) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", punctual.pid().as_raw_nonzero())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    peak.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") / 1024
}
