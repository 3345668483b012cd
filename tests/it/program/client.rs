use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tokio::time::sleep;

use super::{eventually, metrics_page::MetricsPage};
use crate::support::{Answer, answer, http, punctual::Punctual};

/// Calls on the API of a running punctual.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    pub fn of(punctual: &Punctual) -> Self {
        Self { http: http::client(), base: punctual.url("") }
    }

    /// With an HTTP client of the test.
    pub fn with(punctual: &Punctual, http: reqwest::Client) -> Self {
        Self { http, base: punctual.url("") }
    }

    /// With a body, unless it is empty.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.http.request(method, format!("{}{path}", self.base));
        answer(if body.is_empty() { request } else { request.body(body.to_owned()) }).await
    }

    /// The reply of `/readyz` once earlier replies no longer count: each counts for a second.
    pub async fn readiness(&self) -> Answer {
        sleep(Duration::from_millis(1100)).await;
        self.call("GET", "/readyz", "").await
    }

    /// `None`: no answer came.
    pub async fn try_post(&self, route: &str, body: String) -> Option<u16> {
        let request = self.http.post(format!("{}/v1/routes/{route}/messages", self.base)).body(body);
        Some(request.send().await.ok()?.status().as_u16())
    }

    /// One message or an array, as JSON; it must be accepted.
    pub async fn schedule(&self, route: &str, body: &str) -> Value {
        let answer = self.call("POST", &format!("/v1/routes/{route}/messages"), body).await;
        assert!(matches!(answer.status, 200 | 201), "{}: {}", answer.status, answer.text);
        answer.json
    }

    pub async fn stats(&self, route: &str) -> Value {
        let answer = self.call("GET", &format!("/v1/routes/{route}"), "").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json
    }

    /// Waits until the route holds nothing but the dead.
    pub async fn drained(&self, route: &str, max_wait: Duration) -> Value {
        eventually(&format!("`{route}` is drained"), max_wait, async || {
            let stats = self.stats(route).await;
            (stats["pending"] == 0 && stats["unack"] == 0).then_some(stats)
        })
        .await
    }

    /// The one entry of `GET /v1/sinks` with this name.
    pub async fn sink(&self, name: &str) -> Value {
        let answer = self.call("GET", "/v1/sinks", "").await;
        let sinks = answer.json["sinks"].as_array().expect("a list").clone();
        sinks.into_iter().find(|sink| sink["name"] == name).expect("a configured sink")
    }

    pub async fn metrics(&self) -> MetricsPage {
        MetricsPage::parse(&self.call("GET", "/metrics", "").await.text)
    }
}
