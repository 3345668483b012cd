//! A span that has ended.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::message::TraceContext;

#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "nothing exports spans"))]
pub struct Span {
    pub context: TraceContext,
    pub parent: Option<TraceContext>,
    pub link: Option<TraceContext>,
    /// `tracestate`
    pub state: Option<String>,
    pub started: SystemTime,
    pub ended: SystemTime,
    pub route: Arc<str>,
    /// The message's id, as consumers see it.
    pub id: String,
    /// Size of the payload.
    pub bytes: usize,
    pub content: Content,
}

#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "nothing exports spans"))]
pub enum Content {
    Create {
        /// `api`, or the name of a source.
        via: Arc<str>,
        outcome: Result<&'static str, String>,
    },
    Send {
        /// From 1.
        attempt: u32,
        /// Time from the due time to the outcome.
        late: Duration,
        outcome: &'static str,
        /// `None` if confirmed.
        error: Option<String>,
    },
}
