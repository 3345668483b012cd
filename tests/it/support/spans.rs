//! Spans as a collector gets them.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message;
use tokio::time::{Instant, sleep};

use super::receiver::Receiver;

/// A span, with its ids as text.
#[derive(Clone, Debug)]
pub struct SeenSpan {
    pub name: String,
    pub trace: String,
    pub span: String,
    /// Empty: a root.
    pub parent: String,
    /// Trace and span.
    pub links: Vec<(String, String)>,
    pub state: String,
    pub attributes: BTreeMap<String, String>,
    /// Attributes of the service.
    pub resource: BTreeMap<String, String>,
    /// Code and text of the status; 2 is an error.
    pub status: (i32, String),
    pub millis: u64,
}

impl SeenSpan {
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or_else(|| panic!("no attribute `{name}` in {self:?}"), String::as_str)
    }

    pub fn id(&self) -> &str {
        self.attribute("messaging.message.id")
    }

    /// Its context, as a sampled parent.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.span)
    }
}

/// All spans that were exported to `collector`.
///
/// # Panics
/// When a request is not an export over HTTP with protobuf.
pub fn exported(collector: &Receiver) -> Vec<SeenSpan> {
    let mut all = Vec::new();
    for request in collector.requests() {
        assert_eq!(request.header("content-type"), "application/x-protobuf");
        let export = ExportTraceServiceRequest::decode(request.body).expect("protobuf of OTLP");
        for of_resource in export.resource_spans {
            let resource = attributes(of_resource.resource.expect("a resource").attributes);
            let spans = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            all.extend(spans.map(|span| seen(span, resource.clone())));
        }
    }
    all
}

/// The spans with this name, as soon as there are `count`.
///
/// # Panics
/// When there are fewer after `max_wait`.
pub async fn wait_for(collector: &Receiver, name: &str, count: usize, max_wait: Duration) -> Vec<SeenSpan> {
    let deadline = Instant::now() + max_wait;
    loop {
        let mut spans = exported(collector);
        spans.retain(|span| span.name == name);
        if spans.len() >= count {
            return spans;
        }
        assert!(Instant::now() < deadline, "{} of {count} spans `{name}` after {max_wait:?}", spans.len());
        sleep(Duration::from_millis(50)).await;
    }
}

fn seen(span: Span, resource: BTreeMap<String, String>) -> SeenSpan {
    let status = span.status.unwrap_or_default();
    SeenSpan {
        name: span.name,
        trace: hex(&span.trace_id),
        span: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
        state: span.trace_state,
        attributes: attributes(span.attributes),
        resource,
        status: (status.code, status.message),
        millis: span.end_time_unix_nano.checked_sub(span.start_time_unix_nano).expect("an end after the start")
            / 1_000_000,
    }
}

fn attributes(given: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<Value>| match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    given.into_iter().map(|one| (one.key, text(one.value.and_then(|value| value.value)))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}
