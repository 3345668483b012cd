//! Exports spans over OTLP: HTTP with protobuf.

mod attributes;
mod collector;
mod convert;

use std::time::Duration;

use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{Resource, trace::SpanExporter as _};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use self::collector::Collector;
use super::{ExportSettings, Spans, span::Span};
use crate::{
    incidents::{Incidents, Subject},
    metrics,
};

/// Maximum spans of one export: the default of the SDKs, about 256 KB.
const MAX_EXPORTED: usize = 512;

/// Maximum time for which a span waits for others.
const GATHER: Duration = Duration::from_secs(1);

const SERVICE_NAME: &str = "service.name";

/// Exports the spans of one instance.
pub struct Exporter {
    spans: mpsc::Receiver<Span>,
    sdk: SpanExporter,
    collector: Collector,
    scope: InstrumentationScope,
    timeout: Duration,
    incidents: Incidents,
}

impl Exporter {
    /// Makes no connection.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn open(settings: &ExportSettings, incidents: &Incidents) -> Result<(Spans, Self), String> {
        let collector = Collector::new(settings)?;
        // The collector's client replaces the endpoint and the headers, which the environment could set here.
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(collector.clone())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(settings.timeout)
            .with_endpoint("http://localhost/v1/traces")
            .build();
        let mut sdk = exporter.map_err(|error| error.to_string())?;
        sdk.set_resource(&resource());
        let scope = InstrumentationScope::builder("punctual").with_version(env!("CARGO_PKG_VERSION")).build();
        let (recorder, spans) = Spans::new(settings.sample, settings.delivery);
        let (timeout, incidents) = (settings.timeout, incidents.clone());
        Ok((recorder, Self { spans, sdk, collector, scope, timeout, incidents }))
    }

    /// Exports until `stop`, then exports the rest. The caller bounds the time of the rest.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let mut batch = Vec::new();
        loop {
            let gathered = tokio::select! {
                gathered = gather(&mut self.spans, &mut batch) => gathered,
                () = &mut stop => false,
            };
            if !gathered {
                break;
            }
            self.export(std::mem::take(&mut batch)).await;
        }
        self.spans.close();
        while !batch.is_empty() || self.spans.recv_many(&mut batch, MAX_EXPORTED).await > 0 {
            self.export(std::mem::take(&mut batch)).await;
        }
    }

    async fn export(&self, batch: Vec<Span>) {
        let count = batch.len() as u64;
        let batch = batch.into_iter().map(|span| convert::span_data(span, &self.scope)).collect();
        let exported = timeout(self.timeout, self.sdk.export(batch)).await;
        let answer = self.collector.take_answer();
        let rejected = answer.rejected.min(count);
        let error = match exported {
            Ok(Ok(())) => {
                metrics::spans_exported(count - rejected);
                metrics::spans_dropped("rejected", rejected);
                answer.error
            }
            Ok(Err(error)) => {
                metrics::spans_dropped("export", count);
                Some(answer.error.unwrap_or_else(|| error.to_string()))
            }
            Err(_) => {
                metrics::spans_dropped("export", count);
                let waited = format!("no answer within {}", humantime::format_duration(self.timeout));
                Some(answer.error.unwrap_or(waited))
            }
        };
        match error {
            Some(error) => self.incidents.failed(&Subject::Collector, &error),
            None => drop(self.incidents.ended(&Subject::Collector)),
        }
    }
}

/// Waits for a span, and gathers others. Cancel-safe: `batch` keeps them. Returns false without a recorder.
async fn gather(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) -> bool {
    let mut until = None;
    while batch.len() < MAX_EXPORTED {
        let free = MAX_EXPORTED - batch.len();
        let received = match until {
            None => spans.recv_many(batch, free).await,
            Some(until) => match timeout_at(until, spans.recv_many(batch, free)).await {
                Ok(received) => received,
                Err(_) => break,
            },
        };
        if received == 0 {
            return !batch.is_empty();
        }
        until = until.or_else(|| Some(Instant::now() + GATHER));
    }
    true
}

/// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` of the environment name the service, otherwise it is `punctual`.
fn resource() -> Resource {
    let is_named = Resource::builder().build().get_ref(&Key::new(SERVICE_NAME)).is_some_and(|name| {
        let name = name.as_str();
        !name.starts_with("unknown_service")
    });
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if is_named { resource.build() } else { resource.with_service_name("punctual").build() }
}
