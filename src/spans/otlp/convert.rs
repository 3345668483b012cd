//! Spans as the SDK of OpenTelemetry has them.

use opentelemetry::{
    InstrumentationScope, KeyValue, Value,
    trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::attributes::{
    ATTEMPT, BODY_SIZE, DESTINATION, ERROR_TYPE, LATENESS, MESSAGE_ID, OPERATION, OPERATION_TYPE, OUTCOME, SYSTEM, VIA,
};
use crate::{
    message::TraceContext,
    sink::CONFIRMED,
    spans::span::{Content, Span},
};

/// `error.type` of a call that failed.
const FAILED: &str = "failed";

pub fn span_data(span: Span, scope: &InstrumentationScope) -> SpanData {
    let Span { context, parent, link, state, started, ended, route, id, bytes, content } = span;
    let operation = match content {
        Content::Create { .. } => "create",
        Content::Send { .. } => "send",
    };
    let name = format!("{operation} {route}");
    let mut attributes = vec![
        KeyValue::new(SYSTEM, "punctual"),
        KeyValue::new(DESTINATION, route),
        KeyValue::new(OPERATION, operation),
        KeyValue::new(OPERATION_TYPE, operation),
        KeyValue::new(MESSAGE_ID, id),
        KeyValue::new(BODY_SIZE, integer(bytes)),
    ];
    let status = match content {
        Content::Create { via, outcome } => {
            attributes.push(KeyValue::new(VIA, via));
            attributes.push(KeyValue::new(OUTCOME, *outcome.as_ref().unwrap_or(&FAILED)));
            outcome.err().map(|error| (FAILED, error))
        }
        Content::Send { attempt, late, outcome, error } => {
            attributes.push(KeyValue::new(ATTEMPT, i64::from(attempt)));
            attributes.push(KeyValue::new(OUTCOME, outcome));
            attributes.push(KeyValue::new(LATENESS, integer(late.as_millis())));
            (outcome != CONFIRMED).then(|| (outcome, error.unwrap_or_default()))
        }
    };
    let status = status.map_or(Status::Unset, |(kind, text)| {
        attributes.push(KeyValue::new(ERROR_TYPE, kind));
        Status::error(text)
    });
    let state = state.and_then(|state| state.parse().ok()).unwrap_or_default();
    let mut links = SpanLinks::default();
    links.links.extend(link.map(|link| Link::with_context(span_context(link, true, TraceState::default()))));
    SpanData {
        span_context: span_context(context, false, state),
        parent_span_id: parent.map_or(SpanId::INVALID, |parent| SpanId::from(parent.span)),
        parent_span_is_remote: parent.is_some(),
        span_kind: SpanKind::Producer,
        name: name.into(),
        start_time: started,
        end_time: ended.max(started),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links,
        status,
        instrumentation_scope: scope.clone(),
    }
}

fn span_context(context: TraceContext, is_remote: bool, state: TraceState) -> SpanContext {
    let flags = if context.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    SpanContext::new(TraceId::from(context.trace.0), SpanId::from(context.span), flags, is_remote, state)
}

fn integer(number: impl TryInto<i64>) -> Value {
    Value::I64(number.try_into().unwrap_or(i64::MAX))
}
