//! How many connections a sink opens, and how it uses them.

use std::{sync::Arc, time::Duration};

use punctual::{
    config::Whole,
    connector::http::HttpSink,
    sink::{Delivery, Outcome, Sink},
};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::config;
use crate::support::{RawServer, delivery, read_request, send};

const TIMEOUT: Duration = Duration::from_secs(5);

fn sink(port: u16, timeout: Duration, max_connections: u64) -> HttpSink {
    let mut config = config(format!("http://127.0.0.1:{port}/due"), timeout);
    config.max_connections = Whole(max_connections);
    HttpSink::new(&config).expect("a valid configuration")
}

fn batch(count: usize) -> Vec<Delivery> {
    (0..count).map(|n| delivery(&format!("m{n}"), "x")).collect()
}

async fn confirm(stream: &mut TcpStream) {
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.expect("an open connection");
}

#[tokio::test]
async fn batches_share_as_many_connections_as_are_allowed_and_use_them_again() {
    let server = RawServer::start(|mut stream| async move {
        while read_request(&mut stream).await.is_some() {
            confirm(&mut stream).await;
        }
    });
    let sink = sink(server.port(), TIMEOUT, 4);
    for _ in 0..5 {
        let (one, other) = tokio::join!(send(&sink, batch(300)), send(&sink, batch(300)));
        for outcome in one.iter().chain(&other) {
            assert_eq!(*outcome, Outcome::Confirmed);
        }
    }
    assert_eq!(server.connections(), 4);
}

#[tokio::test]
async fn what_waits_for_a_connection_when_the_window_closes_is_not_sent() {
    let server = RawServer::start(|mut stream| async move {
        while read_request(&mut stream).await.is_some() {
            tokio::time::sleep(Duration::from_millis(200)).await;
            confirm(&mut stream).await;
        }
    });
    let end = Instant::now() + Duration::from_millis(300);
    let batch = batch(6).into_iter().map(|one| Delivery { send_until: Some(end), ..one }).collect();
    let outcomes = send(&sink(server.port(), TIMEOUT, 1), batch).await;
    let confirmed = outcomes.iter().filter(|outcome| **outcome == Outcome::Confirmed).count();
    assert!((1..=2).contains(&confirmed), "{outcomes:?}");
    let closed = |outcome: &&Outcome| matches!(outcome, Outcome::Unsent { error } if error.contains("window"));
    assert_eq!(outcomes.iter().filter(closed).count(), 6 - confirmed, "{outcomes:?}");
}

#[tokio::test]
async fn a_message_whose_turn_did_not_come_in_time_is_unsent() {
    let server = RawServer::silent();
    let started = Instant::now();
    let outcomes = send(&sink(server.port(), Duration::from_millis(600), 2), batch(10)).await;
    let unsent = |outcome: &&Outcome| matches!(outcome, Outcome::Unsent { .. });
    assert_eq!(outcomes.iter().filter(unsent).count(), 8, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.failure_kind() == Some("throttled")).count(), 2);
    assert_eq!(server.connections(), 2);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_stop_leaves_what_waits_unsent_and_finishes_what_is_under_way() {
    let (arrived, released) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (seen, held) = (Arc::clone(&arrived), Arc::clone(&released));
    let server = RawServer::start(move |mut stream| {
        let (seen, held) = (Arc::clone(&seen), Arc::clone(&held));
        async move {
            while read_request(&mut stream).await.is_some() {
                seen.add_permits(1);
                held.acquire().await.expect("open").forget();
                confirm(&mut stream).await;
            }
        }
    });
    let sink = sink(server.port(), TIMEOUT, 2);
    let stop = async {
        arrived.acquire_many(2).await.expect("open").forget();
        sink.stop();
        released.add_permits(10);
    };
    let (outcomes, ()) = tokio::join!(send(&sink, batch(10)), stop);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Confirmed).count(), 2, "{outcomes:?}");
    assert_eq!(arrived.available_permits(), 0, "nothing was sent after the stop");
    let later = send(&sink, batch(1)).await;
    assert!(matches!(later[0], Outcome::Unsent { .. }), "{later:?}");
}

#[tokio::test]
async fn the_next_message_does_not_wait_for_the_rest_of_its_batch() {
    let released = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&released);
    let server = RawServer::start(move |mut stream| {
        let held = Arc::clone(&held);
        async move {
            while let Some(head) = read_request(&mut stream).await {
                if head.contains("punctual-id: slow") {
                    held.acquire().await.expect("open").forget();
                }
                confirm(&mut stream).await;
            }
        }
    });
    let sink = sink(server.port(), TIMEOUT, 2);
    let slow = send(&sink, vec![delivery("slow", "x")]);
    let others = async {
        let outcomes = timeout(TIMEOUT, send(&sink, batch(100))).await.expect("one connection is free");
        released.add_permits(1);
        outcomes
    };
    let (slow, others) = tokio::join!(slow, others);
    assert!(slow.iter().chain(&others).all(|outcome| *outcome == Outcome::Confirmed));
    assert_eq!(server.connections(), 2);
}
