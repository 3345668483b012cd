//! The endpoint: a hyper server that reads each request and replies 200.
//!
//! For each `expect N` on standard input, it prints `ready`, and after N requests `done SECONDS CONNECTIONS`: the time
//! from the first to the last of them, and the number of connections opened in that time.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
};

static REQUESTS: AtomicU64 = AtomicU64::new(0);
static EXPECTED: AtomicU64 = AtomicU64::new(u64::MAX);
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
static FIRST: Mutex<Option<Instant>> = Mutex::new(None);

#[tokio::main]
pub async fn run() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    println!("{}", listener.local_addr().expect("an address"));
    tokio::spawn(serve(listener));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let count = line.strip_prefix("expect ").and_then(|count| count.parse().ok()).expect("a number");
        REQUESTS.store(0, Relaxed);
        CONNECTIONS.store(0, Relaxed);
        EXPECTED.store(count, Relaxed);
        println!("ready");
    }
}

async fn serve(listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        CONNECTIONS.fetch_add(1, Relaxed);
        stream.set_nodelay(true).expect("a socket option");
        tokio::spawn(async move {
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(reply)).await;
        });
    }
}

async fn reply(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, hyper::Error> {
    request.into_body().collect().await?;
    count();
    Ok(Response::new(Empty::new()))
}

fn count() {
    let count = REQUESTS.fetch_add(1, Relaxed) + 1;
    if count == 1 {
        *FIRST.lock().expect("no panic") = Some(Instant::now());
    }
    if count == EXPECTED.load(Relaxed) {
        let first = FIRST.lock().expect("no panic").expect("a first request");
        println!("done {} {}", first.elapsed().as_secs_f64(), CONNECTIONS.load(Relaxed));
    }
}
