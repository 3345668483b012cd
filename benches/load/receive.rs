//! A minimal HTTP receiver that measures how late messages come.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{Result, lateness, message};

#[derive(Default)]
struct Seen {
    connections: usize,
    open: usize,
    most_open: usize,
    /// Lateness of each message that contains its due time, us.
    micros: Vec<i64>,
    requests: usize,
}

/// Prints its URL and serves until it is stopped.
pub async fn run() -> Result<Value> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let seen = Arc::new(Mutex::new(Seen::default()));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let seen = seen.clone();
        tokio::spawn(async move {
            {
                let mut seen = seen.lock().expect("no thread panicked");
                seen.connections += 1;
                seen.open += 1;
                seen.most_open = seen.most_open.max(seen.open);
            }
            let service = service_fn(|request| answer(request, &seen));
            // A client may close its connection at any time.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            seen.lock().expect("no thread panicked").open -= 1;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    seen: &Mutex<Seen>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let is_stats = request.method() == Method::GET;
    // An incomplete body has no due time.
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let now = lateness::now();
    let mut seen = seen.lock().expect("no thread panicked");
    if is_stats {
        return Ok(Response::new(Full::new(stats(&seen).to_string().into())));
    }
    seen.requests += 1;
    if let Some(due) = message::due(&body) {
        seen.micros.push(now.cast_signed() - (due * 1000).cast_signed());
    }
    Ok(Response::new(Full::default()))
}

fn stats(seen: &Seen) -> Value {
    let mut stats = lateness::summary(seen.micros.clone());
    // Without the connection that asks.
    stats["connections"] = json!(seen.connections - 1);
    stats["most_open"] = json!(seen.most_open);
    stats["requests"] = json!(seen.requests);
    stats
}
