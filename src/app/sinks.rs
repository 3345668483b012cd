//! A configured sink, live. A new kind of sink is one line in `Destination::new`.

use std::{collections::BTreeMap, sync::Arc};

use super::backend::Backend;
use crate::{
    config::{Config, RedisListConfig, RedisUrl, SinkConfig},
    connector::{http::HttpSink, kafka::sink::KafkaSink, rabbitmq::sink::RabbitMqSink, redis_list::RedisListSink},
    scheduler::{Breaker, Element, Render, Target},
    sink::{Sink, envelope},
};

/// Where the messages of some routes go.
#[derive(Clone)]
pub struct Destination {
    kind: &'static str,
    breaker: Arc<Breaker>,
    way: Way,
}

#[derive(Clone)]
enum Way {
    Sink(Arc<dyn Sink>),
    /// A list on the queue's own Redis, filled by the store itself.
    OwnList {
        render: Render,
        one_list: bool,
    },
}

/// Every configured sink by its name. They may connect in the background from now on.
///
/// # Errors
/// All that cannot be used, a line each, the settings of Redis included. The checks of the configuration find most of
/// it; what only a library can tell, such as a file that holds no certificate, is found here.
pub fn all(config: &Config) -> Result<BTreeMap<String, Destination>, String> {
    let (mut live, mut errors) = (BTreeMap::new(), Vec::new());
    if config.redis.url != RedisUrl::Embedded {
        errors.extend(Backend::new(&config.redis, None).err().map(|error| format!("redis: {error}")));
    }
    for (name, sink) in &config.sinks {
        match Destination::new(name, sink) {
            Ok(destination) => drop(live.insert(name.clone(), destination)),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(live) } else { Err(errors.join("\n")) }
}

impl Destination {
    /// # Errors
    /// When the configuration cannot be used, with the sink's name.
    pub fn new(name: &str, config: &SinkConfig) -> Result<Self, String> {
        let (kind, way) = match config {
            SinkConfig::Http(http) => ("http", HttpSink::new(http).map(sink)),
            SinkConfig::Kafka(kafka) => ("kafka", KafkaSink::new(kafka).map(sink)),
            SinkConfig::RedisList(list) => ("redis_list", list_way(list)),
            SinkConfig::RabbitMq(rabbitmq) => ("rabbitmq", RabbitMqSink::new(rabbitmq).map(sink)),
        };
        let way = way.map_err(|error| format!("sinks.{name}: {error}"))?;
        Ok(Self { kind, breaker: Breaker::new(name), way })
    }

    /// As in the configuration's `type`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    pub fn breaker(&self) -> &Arc<Breaker> {
        &self.breaker
    }

    /// What the scheduler delivers to.
    pub fn target(&self) -> Target {
        let breaker = self.breaker.clone();
        match &self.way {
            Way::Sink(sink) => Target::Sink { sink: sink.clone(), breaker },
            Way::OwnList { render, one_list } => Target::List { render: render.clone(), one_list: *one_list, breaker },
        }
    }

    /// Whether the destination can be reached; a list on the queue's own Redis shares its fate.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub async fn check(&self) -> Result<(), String> {
        match &self.way {
            Way::Sink(sink) => sink.check().await,
            Way::OwnList { .. } => Ok(()),
        }
    }

    pub async fn close(&self) {
        if let Way::Sink(sink) = &self.way {
            sink.close().await;
        }
    }
}

fn sink(sink: impl Sink) -> Way {
    Way::Sink(Arc::new(sink))
}

fn list_way(config: &RedisListConfig) -> Result<Way, String> {
    match &config.server {
        None => Ok(Way::OwnList { render: render(config.clone()), one_list: config.key.as_constant().is_some() }),
        Some(_) => RedisListSink::new(config).map(sink),
    }
}

fn render(config: RedisListConfig) -> Render {
    let constant: Option<Arc<str>> = config.key.as_constant().map(Into::into);
    Arc::new(move |delivery| {
        let list = match &constant {
            Some(list) => Arc::clone(list),
            None => config.key.render_allowed(&config.allow, &delivery.route, &delivery.metadata)?.into(),
        };
        Ok(Element { list, value: envelope::render(config.format, delivery) })
    })
}
