use bytes::Bytes;

use super::*;
use crate::{
    message::{MessageId, Metadata, OnConflict},
    time::{Due, UnixMillis},
};

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn metadata(parent: Option<&str>) -> Metadata {
    let mut metadata = Metadata { headers: [("x".to_owned(), "1".to_owned())].into(), ..Metadata::default() };
    if let Some(parent) = parent {
        metadata.replace_trace(TraceContext::parse(parent).unwrap(), Some("k=v".to_owned()));
    }
    metadata
}

fn message(parent: Option<&str>) -> NewMessage {
    NewMessage {
        id: MessageId::parse("m").unwrap(),
        due: Due::NOW,
        payload: Bytes::from_static(b"payload"),
        metadata: metadata(parent),
        on_conflict: OnConflict::Keep,
        debounce: None,
        record: None,
    }
}

fn delivery(parent: Option<&str>) -> Delivery {
    Delivery {
        id: MessageId::parse("m").unwrap(),
        route: "r".into(),
        attempt: 2,
        due: UnixMillis::default(),
        metadata: metadata(parent),
        payload: Bytes::from_static(b"payload"),
        send_until: None,
    }
}

fn created(sample: f64, parent: Option<&str>) -> (Metadata, Option<Span>) {
    let (spans, mut ended) = Spans::new(sample, DeliverySpan::Link);
    let mut messages = [message(parent)];
    spans.creating(&mut messages).end("r", "api", |_| Ok("scheduled"));
    let [message] = messages;
    (message.metadata, ended.try_recv().ok())
}

#[test]
fn the_caller_decides_about_its_traces_and_chance_about_others() {
    for (sample, parent) in [(0.0, None), (0.0, Some(UNSAMPLED)), (1.0, Some(UNSAMPLED))] {
        let (kept, span) = created(sample, parent);
        assert_eq!((kept, span.is_none()), (metadata(parent), true), "{sample} {parent:?}");
    }
    let (kept, span) = created(1.0, None);
    let span = span.expect("sampled");
    assert_eq!((kept.headers.trace(), kept.headers.trace_state()), (Some(span.context), None));
    assert!(span.parent.is_none() && span.link.is_none() && span.context.is_sampled && span.bytes == 7);
    let (kept, span) = created(0.0, Some(SAMPLED));
    let (span, parent) = (span.expect("sampled"), TraceContext::parse(SAMPLED).unwrap());
    assert_eq!((kept.headers.trace(), kept.headers.trace_state()), (Some(span.context), Some("k=v")));
    assert_eq!((span.parent, span.context.trace), (Some(parent), parent.trace));
    assert_ne!(span.context.span, parent.span);
}

#[test]
fn chance_samples_the_share() {
    let (spans, mut ended) = Spans::new(0.25, DeliverySpan::Link);
    for _ in 0..4000 {
        spans.creating(&mut [message(None)]).end("r", "api", |_| Ok("scheduled"));
    }
    let count = std::iter::from_fn(|| ended.try_recv().ok()).count();
    assert!((800..1200).contains(&count), "{count}");
}

#[test]
fn an_attempt_is_linked_or_a_child_and_sends_its_own_context() {
    let creation = TraceContext::parse(SAMPLED).unwrap();
    for delivering in [DeliverySpan::Link, DeliverySpan::Parent] {
        let (spans, mut ended) = Spans::new(0.0, delivering);
        let mut delivery = delivery(Some(SAMPLED));
        let span = spans.sending(&mut delivery).expect("sampled");
        span.end(&Outcome::Rejected { error: "no".into() }, Duration::from_millis(3));
        let span = ended.try_recv().expect("ended");
        let sent = &delivery.metadata.headers;
        assert_eq!(sent.trace(), Some(span.context));
        match delivering {
            DeliverySpan::Link => {
                assert_eq!((span.parent, span.link, sent.trace_state()), (None, Some(creation), None));
                assert_ne!(span.context.trace, creation.trace);
            }
            DeliverySpan::Parent => {
                assert_eq!((span.parent, span.link, sent.trace_state()), (Some(creation), None, Some("k=v")));
                assert_eq!(span.context.trace, creation.trace);
            }
        }
        let Content::Send { attempt, late, outcome, error } = span.content else { panic!("a span of an attempt") };
        assert_eq!((attempt, late, outcome), (2, Duration::from_millis(3), "rejected"));
        assert_eq!(error.as_deref(), Some("no"));
    }
}

#[test]
fn an_attempt_of_a_message_that_is_not_sampled_has_no_span_and_its_context_stays() {
    let (spans, _ended) = Spans::new(1.0, DeliverySpan::Link);
    for spans in [spans, Spans::default()] {
        for parent in [None, Some(UNSAMPLED)] {
            let mut delivery = delivery(parent);
            assert!(spans.sending(&mut delivery).is_none());
            assert_eq!(delivery.metadata, metadata(parent));
        }
    }
    let mut delivery = delivery(Some(SAMPLED));
    assert!(Spans::default().sending(&mut delivery).is_none());
    assert_eq!(delivery.metadata, metadata(Some(SAMPLED)));
}

#[test]
fn a_span_that_was_not_ended_is_not_recorded() {
    let (spans, mut ended) = Spans::new(1.0, DeliverySpan::Link);
    drop(spans.creating(&mut [message(None)]));
    drop(spans.sending(&mut delivery(Some(SAMPLED))));
    assert!(ended.try_recv().is_err());
}

#[test]
fn spans_beyond_the_queue_are_dropped_and_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    ::metrics::with_local_recorder(&recorder, || {
        let (spans, ended) = Spans::new(1.0, DeliverySpan::Link);
        for _ in 0..MAX_QUEUED + 5 {
            spans.creating(&mut [message(None)]).end("r", "api", |_| Ok("scheduled"));
        }
        assert_eq!(ended.len(), MAX_QUEUED);
    });
    let page = recorder.handle().render();
    assert!(page.contains("punctual_spans_dropped_total{reason=\"queue\"} 5\n"), "{page}");
}
