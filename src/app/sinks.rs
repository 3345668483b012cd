//! A configured sink, live.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    config::{Config, all_or_errors},
    scheduler::{Breaker, Target},
    sink::{Delivery, Domain, OpenSink, SinkSettings},
};

/// Where the messages of some routes go.
#[derive(Clone)]
pub struct RunningSink {
    kind: &'static str,
    breaker: Arc<Breaker>,
    sink: OpenSink,
}

/// Every configured sink by its name. They may connect in the background from now on.
///
/// # Errors
/// All that cannot be used, a line each. The checks of the configuration find most of it; what only a library can tell,
/// such as a file that holds no certificate, is found here.
pub fn all(config: &Config) -> Result<BTreeMap<String, RunningSink>, String> {
    all_or_errors(config.sinks.iter().map(|(name, sink)| Ok((name.clone(), RunningSink::new(name, &**sink)?))))
}

impl RunningSink {
    /// # Errors
    /// When the configuration cannot be used, with the sink's name.
    pub fn new(name: &str, settings: &dyn SinkSettings) -> Result<Self, String> {
        let sink = settings.open().map_err(|error| format!("sinks.{name}: {error}"))?;
        Ok(Self { kind: settings.kind(), breaker: Breaker::new(name), sink })
    }

    /// As in the configuration's `type`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether it is on the queue's own Redis.
    pub fn is_on_redis(&self) -> bool {
        matches!(self.sink, OpenSink::List { .. })
    }

    pub fn breaker(&self) -> &Arc<Breaker> {
        &self.breaker
    }

    /// What the scheduler delivers to.
    pub fn target(&self) -> Target {
        let breaker = self.breaker.clone();
        match &self.sink {
            OpenSink::Sink(sink) => Target::Sink { sink: sink.clone(), breaker },
            OpenSink::List { render, one_list } => {
                Target::List { render: render.clone(), one_list: *one_list, breaker }
            }
        }
    }

    /// As of `Sink::domain`.
    pub fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        match &self.sink {
            OpenSink::Sink(sink) => sink.domain(delivery),
            OpenSink::List { .. } => None,
        }
    }

    /// Whether the destination can be reached; a list on the queue's own Redis shares its fate.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub async fn check(&self) -> Result<(), String> {
        match &self.sink {
            OpenSink::Sink(sink) => sink.check().await,
            OpenSink::List { .. } => Ok(()),
        }
    }

    /// Starts no message any more.
    pub fn stop(&self) {
        if let OpenSink::Sink(sink) = &self.sink {
            sink.stop();
        }
    }

    pub async fn close(&self) {
        if let OpenSink::Sink(sink) = &self.sink {
            sink.close().await;
        }
    }
}
