//! What a configured sink is to the rest of the program.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Delivery, Sink};

/// The validated settings of a sink.
#[async_trait]
pub trait SinkSettings: Any + fmt::Debug + Send + Sync {
    /// As in the configuration's `type`.
    fn kind(&self) -> &'static str;

    /// Longest time of one batch; the lease of every route to the sink must hold it.
    fn timeout(&self) -> Duration;

    /// The setting that says where a message goes, if that depends on the message: what is there then cannot be checked.
    fn varying(&self) -> Option<&'static str> {
        None
    }

    /// The live sink. It may connect in the background from now on.
    ///
    /// # Errors
    /// Which setting cannot be used.
    fn open(&self) -> Result<OpenSink, String>;

    /// A fact about its deliveries that an operator should compare with other programs: `check --connect` shows it.
    fn remark(&self) -> Option<String> {
        None
    }

    /// What is asked once by a person, beside `Sink::check`, because the other side logs its refusal. `limit` bounds it.
    ///
    /// # Errors
    /// What is wrong, for a person.
    async fn check_rights(&self, _limit: Duration) -> Result<(), String> {
        Ok(())
    }
}

/// A live sink.
#[derive(Clone)]
pub enum OpenSink {
    Sink(Arc<dyn Sink>),
    /// A list on the queue's own Redis: pushed and acknowledged in one step of the store, exactly once.
    List {
        render: Render,
        /// Whether all go into the same list: what keeps it from taking them is then no message's failure.
        one_list: bool,
    },
}

impl OpenSink {
    pub fn new(sink: impl Sink) -> Self {
        Self::Sink(Arc::new(sink))
    }
}

/// An error is about the message: it is rejected.
pub type Render = Arc<dyn Fn(&Delivery) -> Result<Element, String> + Send + Sync>;

/// What one message becomes in a list on the queue's own Redis.
#[derive(Clone, Debug)]
pub struct Element {
    pub list: Arc<str>,
    pub value: Bytes,
}
