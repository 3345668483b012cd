use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use punctual::{
    config::Period,
    connector::redis_list::{RedisListSettings, RedisListSink},
    sink::{
        Sink,
        envelope::ListFormat,
        template::{Allow, Place, Template},
    },
    tls::TlsFiles,
};
use redis::AsyncCommands;
use serde::Deserialize;

use super::{Arrived, Destination};
use crate::support::RedisServer;

/// A list of envelopes on a Redis of its own.
pub struct List {
    server: RedisServer,
}

impl List {
    pub async fn start() -> Self {
        Self { server: RedisServer::start().await }
    }
}

/// As a consumer reads it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    id: String,
    route: String,
    attempt: u32,
    due: u64,
    key: String,
    content_type: Option<String>,
    headers: BTreeMap<String, String>,
    payload: Option<String>,
    payload_base64: Option<String>,
}

#[async_trait]
impl Destination for List {
    fn name(&self) -> &'static str {
        "redis_list"
    }

    fn sink(&self, port: u16, timeout: Duration) -> Box<dyn Sink> {
        let place = Place::ListKey { key_prefix: "punctual".into() };
        let config = RedisListSettings {
            key: Template::parse("jobs", place).expect("a valid key"),
            allow: Allow::default(),
            format: ListFormat::Envelope,
            timeout: Period(timeout),
            url: Some(format!("redis://127.0.0.1:{port}/0").into()),
            username: None,
            password: None,
            tls: TlsFiles::default(),
        };
        Box::new(RedisListSink::new(&config).expect("a valid configuration"))
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let elements: Vec<Vec<u8>> = self.server.connection().await.lrange("jobs", 0, -1).await.expect("a list");
        elements.iter().map(|element| arrived(serde_json::from_slice(element).expect("an envelope"))).collect()
    }

    fn release_slow(&self) -> bool {
        false
    }
}

fn arrived(envelope: Envelope) -> Arrived {
    assert_eq!(envelope.key, "customer 7");
    let payload = match (envelope.payload, envelope.payload_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => STANDARD.decode(text).expect("base64"),
        both => panic!("one form of the payload, not {both:?}"),
    };
    Arrived {
        id: envelope.id,
        route: envelope.route,
        attempt: envelope.attempt,
        due: envelope.due,
        content_type: envelope.content_type,
        headers: envelope.headers.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect(),
        payload,
    }
}
