//! An exchange of RabbitMQ: mandatory, persistent, with publisher confirms.
//!
//! `amqp::Broker` connects, `supervisor` keeps the connection as a `link`, on whose `channel`s `publish`
//! sends batches of `message`s. A batch of the scheduler is cut by exchange and size; its parts travel at once.
//! `refusal` says what it means that the broker closed a channel.

mod channel;
mod link;
mod message;
mod publish;
mod refusal;
mod supervisor;

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use self::{
    message::Prepared,
    publish::Batch,
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

/// Messages that are published before their confirms are awaited. More would not be faster, and all of them are
/// in doubt when the connection is lost.
const MAX_BATCH_MESSAGES: usize = 500;

/// How much before its timeout the sink gives up, or a tenth of it if that is less: what the sink reports in time as the
/// broker's silence costs no attempt, what it does not report does.
const REPORT_MARGIN: Duration = Duration::from_millis(500);

pub struct RabbitMqSink {
    supervisor: Supervisor,
    address: Address,
    allow: Allow,
    timeout: Duration,
    refusals: Refusals,
}

/// Messages by their exchange.
type ByExchange<'a> = BTreeMap<Cow<'a, str>, VecDeque<Prepared>>;

impl RabbitMqSink {
    /// # Errors
    /// Which setting cannot be used; nothing is connected yet.
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

    /// What may not go where it names, or AMQP cannot carry, is reported. `frame_max`: bytes of the largest frame.
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
    ) -> Result<(Cow<'_, str>, Prepared), String> {
        let address = self.address.render_allowed(&self.allow, &delivery.route, &delivery.metadata)?;
        let (exchange, routing_key) = (address.0, address.1.into_owned());
        let place = (index, self.domain_of(&exchange, &routing_key));
        Ok((exchange, Prepared::new(place, delivery, &routing_key, frame_max)?))
    }

    fn domain_of(&self, exchange: &str, routing_key: &str) -> Option<Domain> {
        (!self.address.is_constant()).then(|| format!("{exchange}/{routing_key}").into())
    }

    async fn look(&self, deadline: Instant) -> Result<(), String> {
        let link = self.supervisor.link(deadline).await.map_err(with_remedy)?;
        if let Some(reason) = link.blocked() {
            return Err(publish::blocked(&reason));
        }
        let exchange = self.address.constant_exchange().unwrap_or_default();
        link.forget(exchange);
        match timeout_at(deadline, link.see(exchange)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(with_remedy(text(&error))),
            Err(_) => Err("the broker does not answer".into()),
        }
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        let address = self.address.render_allowed(&self.allow, &delivery.route, &delivery.metadata);
        address.ok().and_then(|(exchange, routing_key)| self.domain_of(&exchange, &routing_key))
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let deadline = Instant::now() + self.timeout - REPORT_MARGIN.min(self.timeout / 10);
        let link = match self.supervisor.link(deadline).await {
            Ok(link) => link,
            Err(error) => {
                let unavailable = Outcome::Unavailable { error };
                return (0..batch.len()).for_each(|index| report.outcome(index, unavailable.clone()));
            }
        };
        let (link, report, fixed) = (&link, &report, self.address.constant_exchange().is_some());
        let parts = self.prepare(batch, link.frame_max(), report).into_iter().flat_map(|(exchange, mut messages)| {
            std::iter::from_fn(move || {
                let part: Vec<_> = messages.drain(..messages.len().min(MAX_BATCH_MESSAGES)).collect();
                (!part.is_empty()).then(|| (exchange.clone(), part))
            })
        });
        join_all(parts.map(|(exchange, messages)| async move {
            let batch = Batch { link, exchange: &exchange, fixed, refusals: &self.refusals, deadline, report };
            batch.publish(messages).await;
        }))
        .await;
    }

    /// Connects (and stays connected), and asks whether the exchange exists. Where the messages name it, only the broker is asked.
    async fn check(&self) -> Result<(), String> {
        self.look(Instant::now() + self.timeout).await
    }

    async fn close(&self) {
        self.supervisor.close().await;
    }
}
