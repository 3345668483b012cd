//! The ways in which a kept connection ends. None may cost a timeout, and none is evidence against a reachable endpoint.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use punctual::{
    config::Whole,
    connector::http::HttpSink,
    sink::{Delivery, Outcome, Sink},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    time::{Instant, interval, sleep},
};

use super::config;
use crate::support::{RawServer, delivery, read_request, send, send_one};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Far below `TIMEOUT`, on a busy machine too.
const SOON: Duration = Duration::from_secs(8);
/// Messages that show within `SOON` whether connections can be used again.
const TRIALS: u64 = 3;
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn sink(port: u16, max_connections: u64) -> HttpSink {
    let mut config = config(format!("http://127.0.0.1:{port}/due"), TIMEOUT);
    config.max_connections = Whole(max_connections);
    HttpSink::new(&config).expect("a valid configuration")
}

fn batch(count: usize) -> Vec<Delivery> {
    (0..count).map(|n| delivery(&format!("m{n}"), "x")).collect()
}

async fn answer(stream: &mut TcpStream, reply: &str) {
    // The client may have closed it.
    let _ = stream.write_all(reply.as_bytes()).await;
}

fn reset(stream: TcpStream) {
    stream.set_zero_linger().expect("a socket option");
    drop(stream);
}

/// Sends a batch, and again what was lost, as the scheduler does. Returns how many were lost.
async fn send_until_confirmed(sink: &dyn Sink, count: usize) -> usize {
    let (mut rest, mut lost) = (batch(count), 0);
    while !rest.is_empty() {
        let outcomes = send(sink, rest.clone()).await;
        rest = rest.into_iter().zip(&outcomes).filter(|(_, outcome)| is_lost(outcome)).map(|(one, _)| one).collect();
        lost += rest.len();
    }
    lost
}

/// # Panics
/// If it is neither lost nor confirmed.
fn is_lost(outcome: &Outcome) -> bool {
    assert!(matches!(outcome, Outcome::Confirmed | Outcome::Lost { .. }), "{outcome:?}");
    *outcome != Outcome::Confirmed
}

#[tokio::test]
async fn an_announced_close_costs_nothing() {
    for (length, body, closes) in [(0, "", true), (4, "done", true), (0, "", false)] {
        let server = RawServer::start(move |mut stream| async move {
            if read_request(&mut stream).await.is_none() {
                return;
            }
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
            answer(&mut stream, &head).await;
            if !closes {
                // It leaves the close to the client.
                let _ = stream.read_u8().await;
            }
        });
        for (max_connections, count) in [(1, 50), (64, 300)] {
            let (sink, started, before) = (sink(server.port(), max_connections), Instant::now(), server.connections());
            let outcomes = send(&sink, batch(count)).await;
            assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Confirmed), "{outcomes:?}");
            assert!(started.elapsed() < SOON, "{max_connections}, `{body}`: {:?}", started.elapsed());
            assert_eq!(server.connections() - before, count, "none was sent twice");
        }
    }
}

#[tokio::test]
async fn messages_at_short_intervals_do_not_wait_for_connections_that_end() {
    let server = RawServer::start(|mut stream| async move {
        while read_request(&mut stream).await.is_some() {
            sleep(Duration::from_millis(20)).await;
            answer(&mut stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let sink = Arc::new(sink(server.port(), 64));
    let mut pace = interval(Duration::from_millis(2));
    let mut sends = Vec::new();
    for _ in 0..500 {
        pace.tick().await;
        let sink = Arc::clone(&sink);
        sends.push(tokio::spawn(async move {
            let started = Instant::now();
            (send_one(&*sink).await, started.elapsed())
        }));
    }
    for sent in sends {
        let (outcome, took) = sent.await.expect("no panic");
        assert_eq!(outcome, Outcome::Confirmed);
        assert!(took < SOON, "{took:?}");
    }
}

#[tokio::test]
async fn a_silent_close_after_each_reply_loses_few_messages() {
    for (max_connections, count) in [(1, 50), (64, 500)] {
        let server = RawServer::start(|mut stream| async move {
            if read_request(&mut stream).await.is_some() {
                answer(&mut stream, OK).await;
            }
        });
        let (sink, started) = (sink(server.port(), max_connections), Instant::now());
        let lost = send_until_confirmed(&sink, count).await;
        // Those that were under way at once, and the trials.
        assert!(lost as u64 <= max_connections + TRIALS, "{lost} of {count}");
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_close_or_reset_between_two_messages_is_no_timeout() {
    for end in [drop as fn(TcpStream), reset] {
        let (closed, mut was_closed) = mpsc::unbounded_channel();
        let server = RawServer::start(move |mut stream| {
            let closed = closed.clone();
            async move {
                if read_request(&mut stream).await.is_some() {
                    answer(&mut stream, OK).await;
                    end(stream);
                    let _ = closed.send(());
                }
            }
        });
        let (sink, started) = (sink(server.port(), 1), Instant::now());
        for _ in 0..20 {
            // The end may cross the request.
            is_lost(&send_one(&sink).await);
            was_closed.recv().await;
        }
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    }
}

/// Answers the first request of a connection and resets it at the second one. Keeps the heads of the requests that
/// it answered.
fn resetting_reused(is_polite: &Arc<AtomicBool>) -> (RawServer, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let (answered, is_polite) = (Arc::clone(&heads), Arc::clone(is_polite));
    let server = RawServer::start(move |mut stream| {
        let (answered, is_polite) = (Arc::clone(&answered), Arc::clone(&is_polite));
        async move {
            let mut is_reused = false;
            while let Some(head) = read_request(&mut stream).await {
                if is_reused && !is_polite.load(Ordering::SeqCst) {
                    return reset(stream);
                }
                is_reused = true;
                let is_last = head.contains("connection: close");
                answered.lock().unwrap().push(head);
                answer(&mut stream, OK).await;
                if is_last {
                    return;
                }
            }
        }
    });
    (server, heads)
}

#[tokio::test]
async fn an_endpoint_that_resets_reused_connections_gets_new_ones_for_a_while() {
    let is_polite = Arc::default();
    let (server, heads) = resetting_reused(&is_polite);
    let (sink, started) = (sink(server.port(), 64), Instant::now());
    let lost = send_until_confirmed(&sink, 800).await;
    assert!(lost as u64 <= 64 + TRIALS, "{lost}");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    let once = heads.lock().unwrap().iter().filter(|head| head.contains("connection: close")).count();
    assert_eq!(heads.lock().unwrap().len(), 800);
    assert!(once > 600, "{once}");
    // It has mended. A pause later one message shows this.
    is_polite.store(true, Ordering::SeqCst);
    while heads.lock().unwrap().last().unwrap().contains("connection: close") {
        assert!(started.elapsed() < 2 * SOON);
        assert_eq!(send_one(&sink).await, Outcome::Confirmed);
        sleep(Duration::from_millis(50)).await;
    }
    let before = server.connections();
    for _ in 0..20 {
        assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    }
    assert!(server.connections() <= before + 1);
}

#[tokio::test]
async fn a_loss_is_evidence_where_no_new_connection_can_be_opened() {
    let refusing = Arc::new(Mutex::new(None::<RawServer>));
    let gone = Arc::clone(&refusing);
    let server = RawServer::start(move |mut stream| {
        let gone = Arc::clone(&gone);
        async move {
            read_request(&mut stream).await;
            answer(&mut stream, OK).await;
            read_request(&mut stream).await;
            // It stops listening.
            let server = gone.lock().unwrap().take().expect("once");
            server.stop().await;
            reset(stream);
        }
    });
    let sink = sink(server.port(), 1);
    *refusing.lock().unwrap() = Some(server);
    let outcomes = send(&sink, batch(2)).await;
    assert_eq!(outcomes[0], Outcome::Confirmed);
    assert!(matches!(outcomes[1], Outcome::Unavailable { .. }), "{outcomes:?}");
}
