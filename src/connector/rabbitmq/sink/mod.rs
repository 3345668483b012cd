//! An exchange of RabbitMQ. Messages are mandatory and persistent, with publisher confirms.
//!
//! `supervisor` keeps the `connection`. `publish` sends batches of `message`s on its `channel`s. A batch of the scheduler
//! is split by exchange and size, and its parts are sent concurrently. `refusal` classifies the errors of a closed channel.

mod channel;
mod connection;
mod message;
mod publish;
mod refusal;
mod supervisor;

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use self::{
    message::PreparedMessage,
    publish::PublishBatch,
    refusal::Refusals,
    supervisor::{Supervisor, connect_limit},
};
use crate::sink::{Delivery, Domain, Report, Sink};
use crate::{
    connector::rabbitmq::{Broker, RabbitMqSinkSettings, text, with_remedy},
    sink::{
        Outcome,
        template::{Address, Allow},
    },
};

/// Maximum messages that are published before their confirms are awaited. More messages are not faster, and all of them
/// can be sent twice when the connection is lost.
const MAX_BATCH_MESSAGES: usize = 500;

/// Time before the sink's timeout, at most a tenth of it, at which the sink reports unconfirmed messages as
/// unavailable. That costs no attempt. A message that is not reported within the timeout costs one.
const REPORT_MARGIN: Duration = Duration::from_millis(500);

pub struct RabbitMqSink {
    supervisor: Supervisor,
    address: Address,
    allow: Allow,
    timeout: Duration,
    refusals: Refusals,
}

/// Messages by their exchange.
type ByExchange<'a> = BTreeMap<Cow<'a, str>, VecDeque<PreparedMessage>>;

impl RabbitMqSink {
    /// Connects at the first batch.
    ///
    /// # Errors
    /// The setting that is invalid.
    pub fn new(config: &RabbitMqSinkSettings) -> Result<Self, String> {
        let broker = Broker::new(config.server())?;
        Ok(Self {
            supervisor: Supervisor::new(broker, connect_limit(config.timeout.0)),
            address: config.address()?,
            allow: config.allow.clone(),
            timeout: config.timeout.0,
            refusals: Refusals::default(),
        })
    }

    /// Groups messages by exchange. Reports messages with an address that is not allowed, or that AMQP cannot carry.
    /// `frame_max`: maximum frame size in bytes.
    fn prepare(&self, batch: Vec<Delivery>, frame_max: usize, report: &Report) -> ByExchange<'_> {
        let mut prepared = ByExchange::new();
        for (index, delivery) in batch.into_iter().enumerate() {
            match self.prepare_one(index, delivery, frame_max) {
                Ok((exchange, message)) => prepared.entry(exchange).or_default().push_back(message),
                Err(error) => report.outcome(index, Outcome::Unsendable { error }),
            }
        }
        prepared
    }

    fn prepare_one(
        &self,
        index: usize,
        delivery: Delivery,
        frame_max: usize,
    ) -> Result<(Cow<'_, str>, PreparedMessage), String> {
        let address = self.address.render_allowed(&self.allow, &delivery.route, &delivery.metadata)?;
        let (exchange, routing_key) = (address.0, address.1.into_owned());
        let domain = self.domain_of(&exchange, &routing_key);
        Ok((exchange, PreparedMessage::new((index, domain), delivery, &routing_key, frame_max)?))
    }

    fn domain_of(&self, exchange: &str, routing_key: &str) -> Option<Domain> {
        (!self.address.is_constant()).then(|| format!("{exchange}/{routing_key}").into())
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn has_destinations(&self) -> bool {
        !self.address.is_constant()
    }

    fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        let address = self.address.render_allowed(&self.allow, &delivery.route, &delivery.metadata);
        address.ok().and_then(|(exchange, routing_key)| self.domain_of(&exchange, &routing_key))
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let deadline = Instant::now() + self.timeout - REPORT_MARGIN.min(self.timeout / 10);
        let connection = match self.supervisor.connection(deadline).await {
            Ok(connection) => connection,
            Err(error) => {
                let unavailable = Outcome::Unavailable { error };
                return (0..batch.len()).for_each(|index| report.outcome(index, unavailable.clone()));
            }
        };
        let Some(route) = batch.first().map(|delivery| Arc::clone(&delivery.route)) else { return };
        let (connection, report, refusals, route) = (&connection, &report, &self.refusals, &route);
        let is_only_exchange = self.address.constant_exchange().is_some();
        let by_exchange = self.prepare(batch, connection.frame_max(), report);
        let parts = by_exchange.into_iter().flat_map(|(exchange, mut messages)| {
            std::iter::from_fn(move || {
                let part: Vec<_> = messages.drain(..messages.len().min(MAX_BATCH_MESSAGES)).collect();
                (!part.is_empty()).then(|| (exchange.clone(), part))
            })
        });
        join_all(parts.map(|(exchange, messages)| async move {
            let exchange = &*exchange;
            let batch = PublishBatch { connection, route, exchange, is_only_exchange, refusals, deadline, report };
            batch.publish(messages).await;
        }))
        .await;
    }

    /// Connects, and checks that the exchange exists. If the messages name the exchange, checks only the broker.
    async fn check(&self) -> Result<(), String> {
        let deadline = Instant::now() + self.timeout;
        let connection = self.supervisor.connection(deadline).await.map_err(with_remedy)?;
        if let Some(reason) = connection.blocked() {
            return Err(publish::blocked(&reason));
        }
        let exchange = self.address.constant_exchange().unwrap_or_default();
        connection.forget_exchange(exchange);
        match timeout_at(deadline, connection.ensure_exchange(exchange)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(with_remedy(text(&error))),
            Err(_) => Err("the broker does not answer".into()),
        }
    }

    async fn close(&self) {
        self.supervisor.close().await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::message::Metadata;

    fn sink(exchange: &str, routing_key: Option<&str>) -> RabbitMqSink {
        let url = "amqp://127.0.0.1:5672/%2f";
        let mut settings = json!({ "url": url, "exchange": exchange, "allow": ["**"], "tls": {}, "timeout": "3s" });
        if let Some(routing_key) = routing_key {
            settings["routing_key"] = json!(routing_key);
        }
        RabbitMqSink::new(&serde_json::from_value(settings).unwrap()).unwrap()
    }

    #[test]
    fn a_sink_has_a_domain_for_each_destination_unless_there_is_one() {
        let metadata = Metadata { key: Some("k".into()), ..Metadata::default() };
        let delivery = message::tests::delivery("a", metadata);
        for (exchange, routing_key, domain) in
            [("x", Some("always"), None), ("x", None, Some("x/k")), ("{route}", Some("always"), Some("r/always"))]
        {
            let sink = sink(exchange, routing_key);
            assert_eq!(sink.domain(&delivery), domain.map(Domain::from), "{exchange}");
            assert_eq!(sink.has_destinations(), domain.is_some(), "{exchange}");
            assert_eq!(sink.timeout(), Duration::from_secs(3));
        }
    }
}
