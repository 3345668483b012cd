//! The contract of every sink, tested against a real server of each kind. A new sink is one more row.

mod http;
mod kafka;
mod rabbitmq;
mod redis_list;

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use punctual::sink::{Delivery, Outcome, Report, Reported, Sink};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, timeout},
};

use crate::support::{RawServer, delivery, port::Port, send};

/// A real server, and how to send to it.
#[async_trait]
trait Destination: Send + Sync {
    fn name(&self) -> &'static str;
    /// A sink to the same destination as if it were at `port` of this machine.
    fn sink(&self, port: u16, timeout: Duration) -> Box<dyn Sink>;
    fn port(&self) -> u16;
    /// All that has arrived, in any order.
    async fn arrived(&self) -> Vec<Arrived>;
    /// Releases the messages with an id that begins with `slow`, which the server has held back until now. Returns
    /// `false` when it cannot hold back a single message.
    fn release_slow(&self) -> bool;
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrived {
    id: String,
    route: String,
    attempt: u32,
    due: u64,
    content_type: Option<String>,
    /// The user's, by lower-case name.
    headers: BTreeMap<String, String>,
    payload: Vec<u8>,
}

impl Arrived {
    fn expected(delivery: &Delivery) -> Self {
        let headers = delivery.metadata.headers.texts();
        Self {
            id: delivery.id.to_string(),
            route: delivery.route.to_string(),
            attempt: delivery.attempt,
            due: delivery.due.get(),
            content_type: delivery.metadata.content_type.clone(),
            headers: headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect(),
            payload: delivery.payload.to_vec(),
        }
    }
}

async fn destinations() -> Vec<Box<dyn Destination>> {
    vec![
        Box::new(http::Endpoint::start().await),
        Box::new(kafka::Topic::start().await),
        Box::new(redis_list::List::start().await),
        Box::new(rabbitmq::Queue::start().await),
    ]
}

const TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_confirmed_batch_has_arrived_byte_for_byte_with_its_headers() {
    for destination in destinations().await {
        let name = destination.name();
        let every_byte: Vec<u8> = (0..=255).collect();
        let payloads = [Vec::new(), b"text \xc3\xa9 \"quoted\"".to_vec(), every_byte, vec![b'x'; 1024 * 1024]];
        let mut batch: Vec<Delivery> =
            payloads.into_iter().enumerate().map(|(n, payload)| delivery(&format!("m{n}"), payload)).collect();
        batch.extend((0..1200).map(|n| delivery(&format!("many{n}"), format!("payload {n}"))));
        let mut expected: Vec<Arrived> = batch.iter().map(Arrived::expected).collect();

        let sink = destination.sink(destination.port(), Duration::from_secs(30));
        for (index, outcome) in send(&*sink, batch).await.into_iter().enumerate() {
            assert_eq!(outcome, Outcome::Confirmed, "{name}: {index}");
        }
        let mut arrived = destination.arrived().await;
        arrived.sort();
        expected.sort();
        assert!(arrived == expected, "{name}: {} of {} arrived as they were", arrived.len(), expected.len());
    }
}

#[tokio::test]
async fn a_check_sends_nothing_and_distinguishes_a_destination_from_none() {
    for destination in destinations().await {
        let name = destination.name();
        destination.sink(destination.port(), TIMEOUT).check().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(destination.arrived().await.is_empty(), "{name}");
        let error = destination.sink(Port::reserve().number(), TIMEOUT).check().await.expect_err(name);
        assert!(!error.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_slow_message_does_not_hold_the_outcomes_of_the_others() {
    for destination in destinations().await {
        let name = destination.name();
        let sink = destination.sink(destination.port(), Duration::from_secs(30));
        let batch = ["slow", "quick1", "quick2"].map(|id| delivery(id, "x")).to_vec();
        let (report, mut outcomes) = Report::channel();
        let sending = sink.send(batch, report);
        let watching = async {
            let mut first = Vec::new();
            while first.len() < 2 {
                let Reported { index, outcome, .. } = outcomes.recv().await.expect("an outcome");
                first.push((index, outcome));
            }
            first.sort_by_key(|(index, _)| *index);
            if destination.release_slow() {
                assert_eq!(first, [(1, Outcome::Confirmed), (2, Outcome::Confirmed)], "{name}");
            }
            let mut last = 0;
            while outcomes.recv().await.is_some() {
                last += 1;
            }
            assert_eq!(last, 1, "{name}");
        };
        timeout(TIMEOUT, async { tokio::join!(sending, watching) }).await.expect(name);
    }
}

#[tokio::test]
async fn a_destination_that_refuses_connections_is_unavailable() {
    for destination in destinations().await {
        let sink = destination.sink(Port::reserve().number(), TIMEOUT);
        let batch = vec![delivery("m1", "x"), delivery("m2", "x")];
        for outcome in send(&*sink, batch).await {
            assert_eq!(outcome.failure_kind(), Some("unavailable"), "{}: {outcome:?}", destination.name());
        }
    }
}

#[tokio::test]
async fn a_sink_that_takes_no_connection_is_unavailable_within_the_timeout() {
    let full = FullServer::start().await;
    for destination in destinations().await {
        let sink = destination.sink(full.port, Duration::from_millis(500));
        let batch = vec![delivery("m1", "x"), delivery("m2", "x")];
        for outcome in send(&*sink, batch).await {
            assert_eq!(outcome.failure_kind(), Some("unavailable"), "{}: {outcome:?}", destination.name());
        }
    }
}

#[tokio::test]
async fn a_destination_that_hangs_has_its_outcomes_within_the_timeout() {
    let silent = RawServer::silent();
    for destination in destinations().await {
        let sink = destination.sink(silent.port(), Duration::from_millis(500));
        let started = Instant::now();
        let batch = (0..700).map(|n| delivery(&format!("m{n}"), "x")).collect();
        for outcome in send(&*sink, batch).await {
            assert_ne!(outcome, Outcome::Confirmed, "{}", destination.name());
            assert_ne!(outcome.failure_kind(), Some("rejected"), "{}: {outcome:?}", destination.name());
        }
        assert!(started.elapsed() >= Duration::from_millis(400), "{} did not wait", destination.name());
    }
}

/// Its queue of connections is full: the kernel drops further attempts to connect.
struct FullServer {
    port: u16,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl FullServer {
    async fn start() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let listener = socket.listen(1).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut waiting = Vec::new();
        while let Ok(Ok(stream)) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            waiting.push(stream);
        }
        Self { port: address.port(), _listener: listener, _waiting: waiting }
    }
}
