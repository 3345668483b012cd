//! The HTTP client of the exporter: bounded replies, no redirects, and headers and address from the configuration alone.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode, header::CONTENT_TYPE};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use parking_lot::Mutex;
use prost::Message;
use reqwest::redirect::Policy;

use crate::{
    spans::ExportSettings,
    tls::{self, TlsFiles},
};

/// Maximum bytes of a reply that are read: a reply names rejected spans in one line.
const MAX_REPLY_BYTES: usize = 64 * 1024;

/// Maximum time that an unused connection is kept.
const IDLE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Collector {
    http: reqwest::Client,
    endpoint: String,
    headers: HeaderMap,
    answer: Arc<Mutex<Answer>>,
}

/// The latest answer of the collector.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Without URL and headers.
    pub error: Option<String>,
    /// Spans that the collector refused in an answer that is otherwise a success.
    pub rejected: u64,
}

impl Collector {
    /// # Errors
    /// When no client can be built.
    pub fn new(settings: &ExportSettings) -> Result<Self, String> {
        let endpoint = settings.endpoint.expose().to_owned();
        let tls =
            if endpoint.starts_with("https:") { tls::client_config(&TlsFiles::default())? } else { tls::unused() };
        let http = reqwest::Client::builder().no_proxy().redirect(Policy::none()).pool_idle_timeout(IDLE);
        // The exporter bounds the time of all tries.
        let http = http.tls_backend_preconfigured(tls).build();
        let http = http.map_err(|error| format!("no HTTP client: {error}"))?;
        Ok(Self { http, endpoint, headers: settings.headers.clone(), answer: Arc::default() })
    }

    /// Removes and returns the latest answer.
    pub fn take_answer(&self) -> Answer {
        std::mem::take(&mut *self.answer.lock())
    }

    async fn send(&self, body: Bytes, content_type: Option<&http::HeaderValue>) -> reqwest::Result<Response<Bytes>> {
        let mut headers = self.headers.clone();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, content_type.clone());
        }
        let mut reply = self.http.post(&self.endpoint).headers(headers).body(body).send().await?;
        let (status, headers) = (reply.status(), std::mem::take(reply.headers_mut()));
        let mut body = BytesMut::new();
        // The status decides. A reply that is too long, or breaks off, has nothing else to tell.
        while let Ok(Some(chunk)) = reply.chunk().await {
            if body.len() + chunk.len() > MAX_REPLY_BYTES {
                body.clear();
                break;
            }
            body.extend_from_slice(&chunk);
        }
        let mut response = Response::new(body.freeze());
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        match self.send(body, parts.headers.get(CONTENT_TYPE)).await {
            Ok(response) => {
                *self.answer.lock() = answer(response.status(), response.body());
                Ok(response)
            }
            Err(error) => {
                let text = describe(&error.without_url());
                self.answer.lock().error = Some(text.clone());
                Err(text.into())
            }
        }
    }
}

fn answer(status: StatusCode, body: &Bytes) -> Answer {
    if !status.is_success() {
        return Answer { error: Some(format!("the collector answers {status}")), rejected: 0 };
    }
    let partial = ExportTraceServiceResponse::decode(body.clone()).ok().and_then(|reply| reply.partial_success);
    let rejected = partial.and_then(|partial| u64::try_from(partial.rejected_spans).ok()).unwrap_or(0);
    let error = (rejected > 0).then(|| format!("the collector rejected {rejected} spans"));
    Answer { error, rejected }
}

/// The error with its causes: the first text alone is always the same.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
