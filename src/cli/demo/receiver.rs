//! The HTTP endpoint of the demo.

use std::{
    fmt, io,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{Router, extract::State, http::HeaderMap, routing::post};
use tokio::{net::TcpListener, sync::mpsc};

/// A received request.
#[derive(Debug)]
pub struct Arrival {
    id: String,
    /// Milliseconds from the due time to the arrival.
    pub late: i64,
    payload: String,
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, late, payload } = self;
        write!(f, "http  {id:<10} {late:>+3} ms  {payload}")
    }
}

pub struct Receiver {
    pub url: String,
    /// Unbounded: the demo sends ten messages, its user a few by hand.
    pub arrivals: mpsc::UnboundedReceiver<Arrival>,
}

impl Receiver {
    /// Starts on a free port of the loopback interface; runs until the process ends.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}/due", listener.local_addr()?);
        let (sender, arrivals) = mpsc::unbounded_channel();
        let router = Router::new().route("/due", post(receive)).with_state(sender);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { url, arrivals })
    }
}

async fn receive(State(arrivals): State<mpsc::UnboundedSender<Arrival>>, headers: HeaderMap, payload: String) {
    let arrived = epoch_millis();
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("?").to_owned();
    let due: i64 = header("punctual-due").parse().unwrap_or(arrived);
    let arrival = Arrival { id: header("punctual-id"), late: arrived - due, payload };
    // An error means that the demo has ended.
    let _ = arrivals.send(arrival);
}

#[expect(clippy::disallowed_methods, reason = "compared with the due time, on the machine where Redis runs")]
fn epoch_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
