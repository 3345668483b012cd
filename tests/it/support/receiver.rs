use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use tokio::{
    runtime::Runtime,
    sync::{Notify, watch},
    time::{Instant, sleep, timeout_at},
};

use super::port::Port;

/// The answer to a request, once the request is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Status(u16),
    /// With this status, and the request's headers and body as its own body.
    Echo(u16),
    /// 503 with `Retry-After`, in seconds.
    RetryAfter(u32),
    /// 200, after this time.
    Delay(Duration),
    /// No answer until the behaviour changes; then the new one's.
    Hang,
    /// To first attempts no answer until the behaviour changes; 200 to later ones.
    HangFirst,
}

/// One request, as it came.
#[derive(Clone, Debug)]
pub struct Request {
    /// With the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Epoch milliseconds on this machine's clock, which is also its Redis servers'.
    pub arrived: u64,
}

impl Request {
    pub fn id(&self) -> &str {
        self.header("punctual-id")
    }

    /// Counts from 1.
    pub fn attempt(&self) -> u32 {
        self.header("punctual-attempt").parse().expect("a number")
    }

    /// Epoch milliseconds.
    pub fn due(&self) -> u64 {
        self.header("punctual-due").parse().expect("a number")
    }

    /// # Panics
    /// When it is missing.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no header `{name}` in {:?}", self.headers));
        value.to_str().expect("visible ASCII")
    }
}

/// An HTTP endpoint that records every request, and misbehaves on demand.
///
/// It runs on a thread of its own, so that a busy test does not make it late.
pub struct Receiver {
    port: Port,
    shared: Arc<Shared>,
    /// `None` while it refuses.
    server: Option<Runtime>,
}

struct Shared {
    behaviour: watch::Sender<Behaviour>,
    requests: Mutex<Vec<Request>>,
    arrived: Notify,
}

impl Receiver {
    pub fn start() -> Self {
        let shared = Shared {
            behaviour: watch::Sender::new(Behaviour::Status(200)),
            requests: Mutex::default(),
            arrived: Notify::new(),
        };
        let mut receiver = Self { port: Port::reserve(), shared: Arc::new(shared), server: None };
        receiver.listen();
        receiver
    }

    pub fn url(&self) -> String {
        format!("http://{}/due", self.port.address())
    }

    /// From now on; hanging requests are answered by it, too.
    pub fn behave(&self, behaviour: Behaviour) {
        self.shared.behaviour.send_replace(behaviour);
    }

    /// Closes every connection, unanswered ones included, and refuses new ones.
    pub fn refuse(&mut self) {
        if let Some(server) = self.server.take() {
            // Waits until everything is closed, which may not be done within a test's own runtime.
            std::thread::spawn(|| drop(server)).join().expect("no panic in the server");
        }
    }

    /// (Again), on the same port; what was recorded stays.
    pub fn listen(&mut self) {
        self.refuse();
        let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let server = server.expect("a runtime");
        let router =
            Router::new().fallback(receive).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&self.shared));
        let listener = {
            let _context = server.enter();
            self.port.listen()
        };
        server.spawn(async { axum::serve(listener, router).await });
        self.server = Some(server);
    }

    /// In the order of their arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().expect("no panic under this lock").clone()
    }

    /// Those behind the first `count`.
    pub fn requests_behind(&self, count: usize) -> Vec<Request> {
        self.shared.requests.lock().expect("no panic under this lock")[count..].to_vec()
    }

    pub fn count(&self) -> usize {
        self.shared.requests.lock().expect("no panic under this lock").len()
    }

    /// The requests so far, as soon as there are `count`.
    ///
    /// # Panics
    /// When there are fewer after `max_wait`.
    pub async fn wait_for(&self, count: usize, max_wait: Duration) -> Vec<Request> {
        let deadline = Instant::now() + max_wait;
        loop {
            let mut arrived = pin!(self.shared.arrived.notified());
            // Before the check, or an arrival between check and wait would go unnoticed.
            arrived.as_mut().enable();
            if self.count() >= count {
                return self.requests();
            }
            let in_time = timeout_at(deadline, arrived).await.is_ok();
            assert!(in_time, "{} of {count} requests after {max_wait:?}", self.count());
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.refuse();
    }
}

async fn receive(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let echo = format!("{headers:?} {}", String::from_utf8_lossy(&body));
    let is_first = headers.get("punctual-attempt").is_some_and(|attempt| attempt == "1");
    let request = Request { path: uri.to_string(), headers, body, arrived: wall_clock() };
    shared.requests.lock().expect("no panic under this lock").push(request);
    shared.arrived.notify_waiters();
    let mut behaviours = shared.behaviour.subscribe();
    let answers = |behaviour: &Behaviour| match behaviour {
        Behaviour::Hang => false,
        Behaviour::HangFirst => !is_first,
        _ => true,
    };
    let settled = behaviours.wait_for(answers).await.map(|behaviour| *behaviour);
    match settled.expect("the sender is in `shared`") {
        Behaviour::Status(status) => StatusCode::from_u16(status).expect("a status").into_response(),
        Behaviour::Echo(status) => (StatusCode::from_u16(status).expect("a status"), echo).into_response(),
        Behaviour::RetryAfter(seconds) => {
            (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", seconds.to_string())]).into_response()
        }
        Behaviour::Delay(delay) => {
            sleep(delay).await;
            StatusCode::OK.into_response()
        }
        Behaviour::HangFirst => StatusCode::OK.into_response(),
        Behaviour::Hang => unreachable!("waited for another"),
    }
}

/// Epoch milliseconds.
#[expect(clippy::disallowed_methods, reason = "compared with Redis' clock, on the same machine")]
pub fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("below 2^64 ms")
}
