use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use lapin::types::AMQPValue;
use punctual::{
    config::Period,
    connector::rabbitmq::{RabbitMqSinkSettings, sink::RabbitMqSink},
    sink::Sink,
};
use tokio::sync::Mutex;

use super::{Arrived, Destination};
use crate::support::{
    RabbitMq,
    rabbitmq::{Got, config},
};

/// A durable queue behind an exchange of its own.
pub struct Queue {
    server: &'static RabbitMq,
    name: String,
    taken: Mutex<Vec<Got>>,
}

impl Queue {
    pub async fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("contract-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let server = RabbitMq::shared().await;
        server.declare(&name, "customer 7").await;
        Self { server, name, taken: Mutex::default() }
    }
}

#[async_trait]
impl Destination for Queue {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn sink(&self, port: u16, timeout: Duration) -> Box<dyn Sink> {
        let config = RabbitMqSinkSettings { timeout: Period(timeout), ..config(port, &self.name) };
        Box::new(RabbitMqSink::new(&config).expect("a valid configuration"))
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let mut taken = self.taken.lock().await;
        taken.extend(self.server.drain(&self.name).await);
        taken.iter().map(arrived).collect()
    }

    fn release_slow(&self) -> bool {
        false
    }
}

fn arrived(got: &Got) -> Arrived {
    let headers = got.properties.headers().as_ref().expect("headers").inner();
    let text = |name: &str| match &headers[name] {
        AMQPValue::LongString(text) => text.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    let number = |name: &str| match headers[name] {
        AMQPValue::LongLongInt(number) => number,
        ref other => panic!("{name}: {other:?}"),
    };
    let users: BTreeMap<_, _> = headers
        .keys()
        .map(ToString::to_string)
        .filter(|name| name.starts_with("X-"))
        .map(|name| (name.to_lowercase(), text(&name)))
        .collect();
    assert_eq!(text("punctual-id"), got.id);
    Arrived {
        id: got.id.clone(),
        route: text("punctual-route"),
        attempt: number("punctual-attempt").try_into().expect("small"),
        due: number("punctual-due").try_into().expect("positive"),
        content_type: got.properties.content_type().as_ref().map(ToString::to_string),
        headers: users,
        payload: got.payload.clone(),
    }
}
