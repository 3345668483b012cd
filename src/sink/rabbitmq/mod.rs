//! An exchange of RabbitMQ: mandatory, persistent, with publisher confirms.
//!
//! `amqp::Broker` connects, `supervisor` keeps the connection as a `link`, on whose channels `publish`
//! sends batches of `message`s. A batch of the scheduler is cut by exchange and size; its parts travel at once.

mod link;
mod message;
mod publish;
mod supervisor;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use self::{
    message::Prepared,
    publish::Batch,
    supervisor::{Supervisor, connect_limit},
};
use super::{Delivery, Report, Sink};
use crate::{amqp::Broker, config::RabbitMqConfig, outcome::Outcome};

/// Messages that are published before their confirms are awaited. More would not be faster, and all of them are
/// in doubt when the connection is lost.
const MAX_BATCH_MESSAGES: usize = 500;

pub struct RabbitMqSink {
    broker: Broker,
    supervisor: Supervisor,
    exchange: String,
    routing_key: Option<String>,
    timeout: Duration,
}

impl RabbitMqSink {
    /// # Errors
    /// Which setting cannot be used; nothing is connected yet.
    pub fn new(config: &RabbitMqConfig) -> Result<Self, String> {
        let broker = Broker::new(&config.server)?;
        Ok(Self {
            supervisor: Supervisor::new(broker.clone(), connect_limit(config.timeout)),
            broker,
            exchange: config.exchange.clone(),
            routing_key: config.routing_key.clone(),
            timeout: config.timeout,
        })
    }

    /// Where this message goes.
    fn exchange(&self, _delivery: &Delivery) -> String {
        self.exchange.clone()
    }

    fn routing_key(&self, delivery: &Delivery) -> String {
        let metadata = &delivery.metadata;
        let odd = || metadata.origin.as_ref().and_then(|origin| origin.odd_key());
        self.routing_key.clone().or_else(|| metadata.key.clone()).or_else(odd).unwrap_or_default()
    }

    /// By exchange; what AMQP cannot carry is reported.
    fn prepare(&self, batch: Vec<Delivery>, report: &Report) -> BTreeMap<String, VecDeque<Prepared>> {
        let mut prepared: BTreeMap<String, VecDeque<Prepared>> = BTreeMap::new();
        for (index, delivery) in batch.into_iter().enumerate() {
            let (exchange, routing_key) = (self.exchange(&delivery), self.routing_key(&delivery));
            match Prepared::new(index, delivery, &routing_key) {
                Ok(message) => prepared.entry(exchange).or_default().push_back(message),
                Err(error) => report.outcome(index, Outcome::Rejected { error }),
            }
        }
        prepared
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let deadline = Instant::now() + self.timeout;
        let link = match self.supervisor.link(deadline).await {
            Ok(link) => link,
            Err(error) => {
                let unavailable = Outcome::Unavailable { error };
                return (0..batch.len()).for_each(|index| report.outcome(index, unavailable.clone()));
            }
        };
        let (link, report) = (&*link, &report);
        let parts = self.prepare(batch, report).into_iter().flat_map(|(exchange, mut messages)| {
            std::iter::from_fn(move || {
                let part: Vec<_> = messages.drain(..messages.len().min(MAX_BATCH_MESSAGES)).collect();
                (!part.is_empty()).then(|| (exchange.clone(), part))
            })
        });
        stream::iter(parts)
            .for_each_concurrent(link::MAX_CHANNELS, |(exchange, messages)| async move {
                Batch { link, exchange: &exchange, deadline, report }.publish(messages).await;
            })
            .await;
    }

    /// Connects, and asks whether the exchange exists.
    async fn check(&self) -> Result<(), String> {
        let look = async |channel| match &*self.exchange {
            "" => Ok(()),
            exchange => link::see_exchange(&channel, exchange).await,
        };
        self.broker.visit(connect_limit(self.timeout), look).await
    }

    async fn close(&self) {
        self.supervisor.close().await;
    }
}
