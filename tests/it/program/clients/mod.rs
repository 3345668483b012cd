//! The producers in `examples/clients`, each on a running punctual, over HTTP and with `produce.lua`.

mod delivery;
mod faults;
mod pages;
mod producer;
mod refusals;

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::eventually;
use crate::support::{RedisServer, answer, http, punctual::Punctual, receiver::Receiver};

const TOKEN: &str = "token-of-the-shop";
/// Maximum wait for a delivery, from the beginning of the wait.
const ARRIVAL: Duration = Duration::from_secs(30);

/// The servers that the producers call.
struct Place {
    redis: RedisServer,
    punctual: Punctual,
    receiver: Receiver,
    environment: Vec<(&'static str, String)>,
}

/// One delivery, as the list sink shows it.
struct Arrived {
    id: String,
    payload: Vec<u8>,
    /// The value of each header by its name.
    headers: Value,
    /// Epoch milliseconds.
    due: u64,
}

impl Place {
    async fn start() -> Self {
        let (redis, receiver) = (RedisServer::start().await, Receiver::start());
        let configuration = format!(
            "redis: {{ url: '{}', key_prefix: shop }}\n\
             server: {{ auth: {{ tokens: ['{TOKEN}'] }} }}\n\
             sinks:\n  jobs: {{ type: redis_list, key: jobs, format: envelope }}\n  \
             hook: {{ type: http, url: '{}', timeout: 60s }}\n\
             route_defaults: {{ remember: {{ for: 1h }}, lease: 2m }}\n\
             routes:\n  nightly: {{ sink: jobs, partitions: 7 }}\n  held: {{ sink: hook }}\n  \
             full: {{ sink: jobs, limits: {{ messages: 1, delay: 1h }} }}\n",
            redis.url(),
            receiver.url()
        );
        let punctual = Punctual::start(&configuration).await;
        let environment = vec![
            ("PUNCTUAL_URL", punctual.url("")),
            ("PUNCTUAL_TOKEN", TOKEN.to_owned()),
            ("PUNCTUAL_KEY_PREFIX", "shop".to_owned()),
            ("REDIS_URL", redis.url()),
        ];
        Self { redis, punctual, receiver, environment }
    }

    /// The environment of a producer, with one variable replaced or added.
    fn environment_with(&self, name: &'static str, value: &str) -> Vec<(&'static str, String)> {
        let others = self.environment.iter().filter(|(other, _)| *other != name).cloned();
        others.chain([(name, value.to_owned())]).collect()
    }

    /// Waits for the next delivery.
    async fn arrived(&self) -> Arrived {
        let mut connection = self.redis.connection().await;
        let mut pop = redis::cmd("BLPOP");
        pop.arg("jobs").arg(1);
        let (_, element): (String, String) = eventually("a delivery", ARRIVAL, async || {
            pop.query_async::<Option<_>>(&mut connection).await.expect("a list")
        })
        .await;
        let element: Value = serde_json::from_str(&element).expect("an envelope");
        let payload = match (element["payload"].as_str(), element["payload_base64"].as_str()) {
            (Some(text), None) => text.into(),
            (None, Some(encoded)) => STANDARD.decode(encoded).expect("base64"),
            _ => panic!("{element}"),
        };
        let id = element["id"].as_str().expect("an id").to_owned();
        Arrived { id, payload, headers: element["headers"].clone(), due: element["due"].as_u64().expect("a time") }
    }

    /// The ids of the next `count` deliveries, sorted.
    async fn arrived_ids(&self, count: usize) -> Vec<String> {
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.arrived().await.id);
        }
        ids.sort();
        ids
    }

    /// Waits until the route holds nothing; then nothing more was delivered.
    async fn assert_drained(&self, route: &str) {
        let url = self.punctual.url(&format!("/v1/routes/{route}"));
        eventually("the route is drained", ARRIVAL, async || {
            let stats = answer(http::client().get(&url).bearer_auth(TOKEN)).await.json;
            (stats["pending"] == 0 && stats["unack"] == 0).then_some(())
        })
        .await;
        let left: usize = redis::cmd("LLEN").arg("jobs").query_async(&mut self.redis.connection().await).await.unwrap();
        assert_eq!(left, 0, "deliveries left");
    }
}
