//! Spans of messages: `create ROUTE` for each acceptance, `send ROUTE` for each attempt. The feature `otlp` exports them.
//!
//! The decision is made once, at the acceptance: that of the caller, if the message has a trace context, otherwise by
//! chance. A sampled message is stored with the context of its `create` span. Its attempts have spans, and each sends
//! the context of its own span to the next hop. All other messages, and their contexts, stay as they are.
//!
//! A span that ends is put into a bounded queue; if that is full, it is dropped and counted. So an exporter never
//! delays a message.

#[cfg(not(feature = "otlp"))]
mod absent;
#[cfg(feature = "otlp")]
mod otlp;
mod settings;
mod span;

#[cfg(not(feature = "otlp"))]
pub use absent::Exporter;
#[cfg(feature = "otlp")]
pub use otlp::Exporter;
pub use settings::{DeliverySpan, ExportSettings};

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::mpsc::{self, error::TrySendError};

use self::span::{Content, Span};
use crate::{
    message::{NewMessage, TraceContext, TraceId},
    metrics,
    sink::{Delivery, Outcome},
    time::wall_clock,
};

/// Maximum spans that wait for their export: about 4 MB, and the spans of a second at 8,000 a second.
const MAX_QUEUED: usize = 8192;

/// Makes spans. The default does nothing. Cheap to clone.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<Recorder>>);

struct Recorder {
    queue: mpsc::Sender<Span>,
    sample: f64,
    delivery: DeliverySpan,
}

impl Spans {
    /// The spans to export arrive at the receiver.
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "nothing exports spans"))]
    fn new(sample: f64, delivery: DeliverySpan) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(MAX_QUEUED);
        metrics::begin_spans();
        (Self(Some(Arc::new(Recorder { queue, sample, delivery }))), spans)
    }

    /// Begins the spans of messages that are about to be stored, and gives sampled ones the contexts of their spans.
    pub fn creating(&self, messages: &mut [NewMessage]) -> CreateSpans {
        let Some(recorder) = &self.0 else { return CreateSpans::default() };
        let mut begun = Vec::new();
        for (index, message) in messages.iter_mut().enumerate() {
            let parent = message.metadata.headers.trace();
            let is_sampled = parent.map_or_else(|| rand::random::<f64>() < recorder.sample, |parent| parent.is_sampled);
            if !is_sampled {
                continue;
            }
            let context = below(parent);
            let state = message.metadata.headers.trace_state().map(str::to_owned);
            message.metadata.replace_trace(context, state.clone());
            let (id, bytes) = (message.metadata.shown_id(&message.id).to_owned(), message.payload.len());
            let started = wall_clock();
            begun.push((index, Begun { context, parent, link: None, state, started, id, bytes }));
        }
        CreateSpans { recorder: (!begun.is_empty()).then(|| recorder.clone()), begun }
    }

    /// Begins the span of an attempt, and gives the delivery its context. `None` unless the message is sampled.
    pub fn sending(&self, delivery: &mut Delivery) -> Option<Box<SendSpan>> {
        let recorder = self.0.as_ref()?;
        let creation = delivery.metadata.headers.trace().filter(|context| context.is_sampled)?;
        let (parent, link, state) = match recorder.delivery {
            DeliverySpan::Link => (None, Some(creation), None),
            DeliverySpan::Parent => (Some(creation), None, delivery.metadata.headers.trace_state().map(str::to_owned)),
        };
        let context = below(parent);
        delivery.metadata.replace_trace(context, state.clone());
        let (id, bytes) = (delivery.shown_id().to_owned(), delivery.payload.len());
        let begun = Begun { context, parent, link, state, started: wall_clock(), id, bytes };
        let (route, attempt) = (delivery.route.clone(), delivery.attempt);
        Some(Box::new(SendSpan { recorder: recorder.clone(), begun, route, attempt }))
    }
}

impl Recorder {
    fn record(&self, span: Span) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(span) {
            metrics::spans_dropped("queue", 1);
        }
    }
}

/// A span that has not ended.
struct Begun {
    context: TraceContext,
    parent: Option<TraceContext>,
    link: Option<TraceContext>,
    state: Option<String>,
    started: SystemTime,
    /// The message's id, as consumers see it.
    id: String,
    /// Size of the payload.
    bytes: usize,
}

impl Begun {
    fn end(self, route: &Arc<str>, content: Content) -> Span {
        let Self { context, parent, link, state, started, id, bytes } = self;
        Span { context, parent, link, state, started, ended: wall_clock(), route: route.clone(), id, bytes, content }
    }
}

/// The spans of messages that are being stored. Dropped, they have no effect.
#[derive(Default)]
pub struct CreateSpans {
    recorder: Option<Arc<Recorder>>,
    /// With the indices of the messages.
    begun: Vec<(usize, Begun)>,
}

impl CreateSpans {
    /// Ends the spans. `outcome`: that of the message with an index, or the error. `via`: `api` or the name of a source.
    pub fn end<'a>(self, route: &str, via: &str, outcome: impl Fn(usize) -> Result<&'static str, &'a str>) {
        let Some(recorder) = self.recorder else { return };
        let (route, via): (Arc<str>, Arc<str>) = (route.into(), via.into());
        for (index, begun) in self.begun {
            let outcome = outcome(index).map_err(str::to_owned);
            recorder.record(begun.end(&route, Content::Create { via: via.clone(), outcome }));
        }
    }
}

/// The span of an attempt. Dropped, it has no effect: the message was not sent.
pub struct SendSpan {
    recorder: Arc<Recorder>,
    begun: Begun,
    route: Arc<str>,
    attempt: u32,
}

impl SendSpan {
    /// `late`: time since the message was due.
    pub fn end(self, outcome: &Outcome, late: Duration) {
        let Self { recorder, begun, route, attempt } = self;
        let (outcome, error) = (outcome.kind(), outcome.error().map(str::to_owned));
        recorder.record(begun.end(&route, Content::Send { attempt, late, outcome, error }));
    }
}

/// The context of a new span: in the trace of its parent, or in a new one.
fn below(parent: Option<TraceContext>) -> TraceContext {
    // 0 is not an id.
    let trace = parent.map_or_else(|| TraceId(rand::random::<u128>().max(1)), |parent| parent.trace);
    TraceContext { trace, span: rand::random::<u64>().max(1), is_sampled: true }
}

#[cfg(all(test, feature = "otlp"))]
mod tests;
