use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use punctual::{
    api::{
        self, Api, BreakerState, ConnectionLimits, DownDomain, Failing, FailingSinks, MetricsPage, SinkStatus,
        SinkStatuses, SourceStatuses, Statuses,
    },
    config::{AuthConfig, Listen, ServerConfig},
    message::{DeadReason, Remember, RouteLimits},
    queue::Queue,
    source::{SourceState, SourceStatus},
    store::{
        ClaimEnd, ClaimRequest, Claimed, Lease, Partition, Store,
        redis::{RedisStore, RouteSettings, connection::Connection},
    },
    time::UnixMillis,
};
use reqwest::{Method, RequestBuilder, Response, header::HeaderMap};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{RedisServer, all, claim_request, http};

/// The largest payload of the server under test, in bytes.
pub const MAX_PAYLOAD: usize = 100_000;
/// Its request timeout. Redis has half of it.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings that differ between tests.
pub struct Setup {
    pub auth: Option<AuthConfig>,
    pub redis_arguments: Vec<&'static str>,
    /// With their number of partitions.
    pub routes: Vec<(&'static str, u16)>,
    pub remember: Option<Remember>,
    pub limits: RouteLimits,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            auth: None,
            redis_arguments: Vec::new(),
            routes: vec![("a", 1), ("b", 2)],
            remember: None,
            limits: RouteLimits::default(),
        }
    }
}

/// The API on a port of its own, over queues on a Redis of its own.
pub struct ApiServer {
    pub redis: RedisServer,
    pub store: Arc<RedisStore>,
    pub address: std::net::SocketAddr,
    client: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

/// An answer, read.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// Null when the text is not JSON.
    pub json: Value,
}

impl Answer {
    /// Checks that it is a problem document of this status, and gives the last part of its type.
    pub fn problem(&self, status: u16) -> &str {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.text);
        assert_eq!(self.json["status"], status);
        assert!(self.json["title"].is_string() && self.json["detail"].is_string(), "{}", self.text);
        self.json["type"].as_str().unwrap().strip_prefix("urn:problem-type:punctual:").unwrap()
    }
}

impl ApiServer {
    pub async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    pub async fn start_with(setup: Setup) -> Self {
        let redis = RedisServer::start_with(&setup.redis_arguments).await;
        let client = redis::Client::open(redis.url()).unwrap();
        let connection = || Arc::new(Connection::new(client.clone(), REQUEST_TIMEOUT / 2));
        let settings = |(name, partitions): &(&str, u16)| RouteSettings {
            partitions: *partitions,
            remember: setup.remember,
            limits: setup.limits,
            ..RouteSettings::plain(name, MAX_PAYLOAD)
        };
        let store = RedisStore::new(connection(), "punctual", setup.routes.iter().map(settings));
        let store = Arc::new(store.listing_over(connection()));
        let sinks = setup.routes.iter().map(|(name, _)| ((*name).into(), "out".into())).collect();
        let queue = Arc::new(Queue::new(store.clone(), &sinks, false));

        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = ServerConfig {
            listen: Listen::Tcp(address),
            tls: None,
            health_listen: None,
            max_connections_per_address: None,
            auth: setup.auth,
            max_payload: MAX_PAYLOAD,
            request_timeout: REQUEST_TIMEOUT,
            console: false,
        };
        let sink = SinkStatus {
            name: "out".into(),
            r#type: "http",
            check: Some("answered 500 for acme".into()),
            breaker: BreakerState::HalfOpen,
            since: UnixMillis::new(1_700_000_000_000),
            last_error: Some("HTTP 500".into()),
            last_error_at: UnixMillis::new(1_700_000_001_500),
            last_success_at: None,
            in_flight: 3,
            down_domains: vec![DownDomain { name: "orders/3".into(), error: "HTTP 500 for acme".into(), since: None }],
        };
        let source = SourceStatus {
            name: "in".into(),
            r#type: "sorted_set",
            route: "a".into(),
            state: SourceState::Running,
            since: None,
            last_error: Some("header `X-Tenant: other`".into()),
            last_error_at: None,
            last_success_at: None,
            depth: None,
        };
        let sources: SourceStatuses = Arc::new(move || Box::pin(std::future::ready(vec![source.clone()])));
        let page = MetricsPage::new(queue.clone(), recorder(), sources.clone());
        let sinks: SinkStatuses = Arc::new(move || Box::pin(std::future::ready(vec![sink.clone()])));
        // As the breaker of the sink above.
        let failing: FailingSinks = Arc::new(|name, _, _| (name == "out").then(failed));
        let api = Api::new(queue, &config, Statuses { sinks, failing, sources }, page, api::ulids());
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let serving =
            tokio::spawn(api::serve(listener, api::router(api), ConnectionLimits::of_process(None), shutdown));
        let client = http::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
        Self { redis, store, address, client, stop: Some(stop), serving }
    }

    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    /// With a body, unless it is empty.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        let request = self.request(method, path);
        answer(if body.is_empty() { request } else { request.body(body.to_owned()) }).await
    }

    /// Schedules a message that must be new.
    pub async fn schedule(&self, route: &str, body: &str) -> Value {
        let answer = self.call("POST", &format!("/v1/routes/{route}/messages"), body).await;
        assert_eq!((answer.status, &answer.json["status"]), (201, &"scheduled".into()), "{}", answer.text);
        answer.json
    }

    /// Claims what is due on a route of one partition, for a minute.
    pub async fn claim(&self, route: &str) -> Vec<(Lease, Claimed)> {
        let request = ClaimRequest { max_bytes: 1 << 20, ..claim_request(1000, Duration::from_mins(1)) };
        let claim = self.store.claim(&partition(route), request).await.unwrap();
        let token = claim.token;
        let lease = |one: &Claimed| Lease { id: one.id.clone(), token, bytes: one.body.len() };
        claim.messages.into_iter().map(|claimed| (lease(&claimed), claimed)).collect()
    }

    /// Schedules a message and makes it dead.
    pub async fn bury(&self, route: &str, id: &str) {
        self.bury_as(route, id, DeadReason::Rejected, "HTTP 400").await;
    }

    pub async fn bury_as(&self, route: &str, id: &str, reason: DeadReason, error: &str) {
        self.schedule(route, &format!(r#"{{"id":"{id}","payload":"x"}}"#)).await;
        self.end(route, id, &ClaimEnd::Bury { reason, error: error.into() }).await;
    }

    /// One attempt of a due message fails; the next one is in ten minutes.
    pub async fn fail(&self, route: &str, id: &str) {
        let delay = Duration::from_mins(10);
        self.end(route, id, &ClaimEnd::Retry { delay, error: "HTTP 500".into(), hold: None }).await;
    }

    async fn end(&self, route: &str, id: &str, end: &ClaimEnd) {
        let (lease, _) = self.claim(route).await.into_iter().find(|(lease, _)| lease.id.as_str() == id).unwrap();
        self.store.settle(&partition(route), &all([lease], end)).await.unwrap();
    }

    /// Waits until the clock of Redis shows two milliseconds more.
    pub async fn pass_millisecond(&self) {
        let mut connection = self.redis.connection().await;
        let mut millis = async || {
            let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await.expect("a time");
            seconds * 1000 + micros / 1000
        };
        let from = millis().await;
        while millis().await < from + 2 {}
    }

    /// Makes all due messages of `partitions` dead.
    pub async fn bury_all(&self, route: &str, partitions: u16, reason: DeadReason, error: &str) {
        let end = ClaimEnd::Bury { reason, error: error.into() };
        for partition in Partition::all(&route.into(), partitions) {
            let claim = self.store.claim(&partition, claim_request(1000, Duration::from_mins(1))).await.unwrap();
            let leases = claim.messages.iter().map(|message| Lease {
                id: message.id.clone(),
                token: claim.token,
                bytes: message.body.len(),
            });
            self.store.settle(&partition, &all(leases, &end)).await.unwrap();
        }
    }

    /// Stops as on SIGTERM. Returns whether it was done within 5 s.
    pub async fn stop(&mut self) -> bool {
        let _ = self.stop.take().expect("still serving").send(());
        timeout(Duration::from_secs(5), &mut self.serving).await.is_ok()
    }

    /// The ids in a sorted set of a route's partition 0.
    pub async fn ids_in(&self, route: &str, set: &str) -> Vec<String> {
        let mut connection = self.redis.connection().await;
        let key = format!("{{punctual:{route}:0/1}}:{set}");
        redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).query_async(&mut connection).await.unwrap()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The failure of the sink `out`.
fn failed() -> Failing {
    Failing { domain: None, error: Some("HTTP 500 for acme".into()), since: Instant::now() }
}

pub async fn answer(request: RequestBuilder) -> Answer {
    let response: Response = request.send().await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.expect("a whole answer");
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    Answer { status, headers, text, json }
}

fn partition(route: &str) -> Partition {
    Partition { route: route.into(), index: 0, count: 1 }
}

/// The recorder of the process, which can have only one.
fn recorder() -> PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| PrometheusBuilder::new().install_recorder().expect("the first recorder")).clone()
}
