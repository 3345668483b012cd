use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::HeaderMap,
    routing::any,
};
use punctual::{
    config::{Flag, List, Period, Whole},
    connector::http::{HttpSettings, HttpSink},
    sink::{Sink, template::Allow},
    tls::TlsFiles,
};
use tokio::{sync::watch, task::JoinHandle};

use super::{Arrived, Destination};

/// An axum server that keeps what it gets.
pub struct Endpoint {
    port: u16,
    inbox: Inbox,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Inbox {
    arrived: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    released: watch::Sender<bool>,
}

impl Endpoint {
    pub async fn start() -> Self {
        let inbox = Inbox { arrived: Arc::default(), released: watch::Sender::new(false) };
        let app = Router::new()
            .route("/due", any(take))
            .layer(DefaultBodyLimit::max(16 * 1024 * 1024))
            .with_state(inbox.clone());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("the server runs") });
        Self { port, inbox, task }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn take(State(inbox): State<Inbox>, headers: HeaderMap, body: Bytes) {
    if headers["punctual-id"].as_bytes().starts_with(b"slow") {
        let _ = inbox.released.subscribe().wait_for(|released| *released).await;
    }
    inbox.arrived.lock().unwrap().push((headers, body));
}

#[async_trait]
impl Destination for Endpoint {
    fn name(&self) -> &'static str {
        "http"
    }

    fn sink(&self, port: u16, timeout: Duration) -> Box<dyn Sink> {
        let config = HttpSettings {
            url: format!("http://127.0.0.1:{port}/due").into(),
            allow: Allow::default(),
            allow_slashes: Flag(false),
            timeout: Period(timeout),
            max_connections: Whole(64),
            signing_secrets: List::default(),
            headers: BTreeMap::new(),
            tls: TlsFiles::default(),
        };
        Box::new(HttpSink::new(&config).expect("a valid configuration"))
    }

    fn port(&self) -> u16 {
        self.port
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.inbox.arrived.lock().unwrap().iter().map(|(headers, body)| arrived(headers, body)).collect()
    }

    fn release_slow(&self) -> bool {
        self.inbox.released.send_replace(true);
        true
    }
}

fn arrived(headers: &HeaderMap, body: &Bytes) -> Arrived {
    let text = |name: &str| String::from_utf8(headers[name].as_bytes().to_vec()).expect("UTF-8");
    let user = headers.keys().map(ToString::to_string).filter(|name| name.starts_with("x-"));
    Arrived {
        id: text("punctual-id"),
        route: text("punctual-route"),
        attempt: text("punctual-attempt").parse().expect("a number"),
        due: text("punctual-due").parse().expect("a number"),
        content_type: Some(text("content-type")),
        headers: user.map(|name| (name.clone(), text(&name))).collect(),
        payload: body.to_vec(),
    }
}
