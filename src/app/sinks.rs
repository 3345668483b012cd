//! A live sink, made from its configuration.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    config::{Config, all_or_errors},
    scheduler::{Breaker, Target},
    sink::{Delivery, Domain, OpenSink, SinkSettings},
    store::redis::{check_list, connection::Connection},
};

/// A sink of one or more routes.
#[derive(Clone)]
pub struct RunningSink {
    kind: &'static str,
    breaker: Arc<Breaker>,
    sink: OpenSink,
}

/// The configured sinks with names that `wanted` returns true for, by name. They may connect in the background from now on.
///
/// # Errors
/// Everything that cannot be used, one line each. The checks of the configuration find most errors. Errors that only a
/// library detects, such as a file without a certificate, are found here.
pub fn all(config: &Config, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, RunningSink>, String> {
    let sinks = config.sinks.iter().filter(|(name, _)| wanted(name));
    all_or_errors(sinks.map(|(name, sink)| Ok((name.clone(), RunningSink::new(name, &**sink)?))))
}

impl RunningSink {
    /// # Errors
    /// The sink's name and its error, if the configuration cannot be used.
    pub fn new(name: &str, settings: &dyn SinkSettings) -> Result<Self, String> {
        let sink = settings.open().map_err(|error| format!("sinks.{name}: {error}"))?;
        Ok(Self { kind: settings.kind(), breaker: Breaker::new(name), sink })
    }

    /// The configured `type`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether the sink is on the queue's own Redis.
    pub fn is_on_redis(&self) -> bool {
        matches!(self.sink, OpenSink::List { .. })
    }

    pub fn breaker(&self) -> &Arc<Breaker> {
        &self.breaker
    }

    /// The sink as the scheduler delivers to it.
    pub fn target(&self) -> Target {
        let breaker = self.breaker.clone();
        match &self.sink {
            OpenSink::Sink(sink) => Target::Sink { sink: sink.clone(), breaker },
            OpenSink::List { render, list } => {
                Target::List { render: render.clone(), one_list: list.is_some(), breaker }
            }
        }
    }

    /// The failure domain of a delivery, as `Sink::domain` returns it.
    pub fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        match &self.sink {
            OpenSink::Sink(sink) => sink.domain(delivery),
            OpenSink::List { .. } => None,
        }
    }

    /// Checks that the external system is reachable, or for a list on the queue's own Redis (`own`) that the user can
    /// push into the list.
    ///
    /// # Errors
    /// The error as text for a person.
    pub async fn check(&self, own: Option<&Connection>) -> Result<(), String> {
        match (&self.sink, own) {
            (OpenSink::Sink(sink), _) => sink.check().await,
            (OpenSink::List { list, .. }, Some(own)) => {
                check_list(own, list.as_deref(), true).await.map_err(|error| error.to_string())
            }
            (OpenSink::List { .. }, None) => Ok(()),
        }
    }

    /// The sink starts no further message.
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
