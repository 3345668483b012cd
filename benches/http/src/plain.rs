//! The baseline: a number of hyper connections, each with one request at a time.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet};

use crate::{Run, process::Process};

/// The number of connections that the sink opens by default.
const CONNECTIONS: &str = "64";

pub fn measure(messages: u64) -> Run {
    let mut receiver = Process::own(&["receiver"]);
    let address = receiver.hear().concat();
    receiver.say(&format!("expect {messages}"));
    receiver.hear();
    let mut client = Process::own(&["plain", &address, CONNECTIONS, &messages.to_string()]);
    let done = receiver.hear();
    client.hear();
    let cpu = vec![("client", client.cpu()), ("receiver", receiver.cpu())];
    Run::new("plain hyper", messages, &done, cpu, client.peak_rss())
}

#[tokio::main]
pub async fn run(address: &str, connections: u64, requests: u64) {
    let left = Arc::new(AtomicU64::new(requests));
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        tasks.spawn(send(address.to_owned(), Arc::clone(&left)));
    }
    tasks.join_all().await;
    println!("done");
    // Stays alive until its CPU time has been read.
    std::future::pending::<()>().await;
}

async fn send(address: String, left: Arc<AtomicU64>) {
    let stream = TcpStream::connect(&address).await.expect("a connection");
    stream.set_nodelay(true).expect("a socket option");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    let payload = Bytes::from(vec![b'x'; 100]);
    while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
        // The headers that punctual sends.
        let request = Request::post("/due")
            .header("host", &address)
            .header("user-agent", "punctual/0.1.0")
            .header("content-type", "application/json")
            .header("punctual-id", "00000000000000000000000042")
            .header("punctual-route", "orders")
            .header("punctual-attempt", 1)
            .header("punctual-due", 1_795_255_200_000_u64)
            .body(Full::new(payload.clone()))
            .expect("a request");
        sender.ready().await.expect("an open connection");
        let response = sender.send_request(request).await.expect("a reply");
        response.into_body().collect().await.expect("a body");
    }
}
