//! The interface of a configured sink.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Delivery, Sink};

/// The validated settings of a sink.
#[async_trait]
pub trait SinkSettings: Any + fmt::Debug + Send + Sync {
    /// The configured `type`.
    fn kind(&self) -> &'static str;

    /// Maximum time of one batch. The lease of every route to the sink must be longer.
    fn timeout(&self) -> Duration;

    /// The name of the setting that selects the target by message, if there is one. Such targets cannot be checked in
    /// advance.
    fn varying(&self) -> Option<&'static str> {
        None
    }

    /// Makes the live sink, which may connect in the background from now on.
    ///
    /// # Errors
    /// The setting that cannot be used.
    fn open(&self) -> Result<OpenSink, String>;

    /// A fact about the deliveries that an operator should compare with other programs. `check --connect` shows it.
    fn remark(&self) -> Option<String> {
        None
    }

    /// A check in addition to `Sink::check`, which only a person's command makes because the other side logs its
    /// refusal. `limit` bounds its time.
    ///
    /// # Errors
    /// The error as text for a person.
    async fn check_rights(&self, _limit: Duration) -> Result<(), String> {
        Ok(())
    }
}

/// A live sink.
#[derive(Clone)]
pub enum OpenSink {
    Sink(Arc<dyn Sink>),
    /// A list on the queue's own Redis. The store pushes and acknowledges a message in one step, exactly once.
    List {
        render: Render,
        /// The list of all messages; `None` if each message names its list. An error of the only list is not a failure
        /// of a message.
        list: Option<Arc<str>>,
    },
}

impl OpenSink {
    pub fn new(sink: impl Sink) -> Self {
        Self::Sink(Arc::new(sink))
    }
}

/// An error concerns the message, which is rejected.
pub type Render = Arc<dyn Fn(&Delivery) -> Result<Element, String> + Send + Sync>;

/// The element for one message, in a list on the queue's own Redis.
#[derive(Clone, Debug)]
pub struct Element {
    pub list: Arc<str>,
    pub value: Bytes,
}
