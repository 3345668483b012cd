//! Watches the list on the Redis of the queue: when an element is seen first, and what is in it in the end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    payload,
    world::{KEY, World},
};
use crate::support::receiver::wall_clock;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// A frozen server does not answer.
const ANSWER: Duration = Duration::from_secs(2);

/// An element of the list.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    pub id: String,
    /// `None`: the content is not that of any version.
    pub version: Option<u32>,
    /// Epoch milliseconds.
    pub due: u64,
}

/// When elements were seen first on any primary, in epoch milliseconds.
pub struct Watch {
    seen: Arc<Mutex<HashMap<String, (Element, u64)>>>,
    watching: JoinHandle<()>,
}

impl Watch {
    pub fn start(world: &Arc<World>) -> Self {
        let seen: Arc<Mutex<HashMap<String, (Element, u64)>>> = Arc::default();
        let (found, world) = (Arc::clone(&seen), Arc::clone(world));
        let watching = tokio::spawn(async move {
            let mut places = vec![0; world.ports.len()];
            loop {
                for (place, port) in world.ports.iter().enumerate() {
                    let Some(elements) = behind(*port, KEY, places[place]).await else { continue };
                    let at = wall_clock();
                    places[place] += elements.len();
                    let mut found = found.lock().expect("no panic under this lock");
                    for element in elements.iter().map(|text| parse(text)) {
                        found.entry(element.id.clone()).or_insert((element, at));
                    }
                }
                sleep(PAUSE).await;
            }
        });
        Self { seen, watching }
    }

    pub fn finish(self) -> HashMap<String, (Element, u64)> {
        self.watching.abort();
        std::mem::take(&mut self.seen.lock().expect("no panic under this lock"))
    }
}

/// All elements on the server at `port`.
pub async fn all(port: u16) -> Vec<Element> {
    behind(port, KEY, 0).await.expect("it is well").iter().map(|text| parse(text)).collect()
}

/// The elements of the list behind the first ones. `None` while the server does not answer.
pub async fn behind(port: u16, key: &str, first: usize) -> Option<Vec<String>> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/0")).expect("a valid address");
    let asking = async {
        let mut link = client.get_multiplexed_async_connection().await.ok()?;
        redis::cmd("LRANGE").arg(key).arg(first).arg(-1).query_async(&mut link).await.ok()
    };
    timeout(ANSWER, asking).await.ok()?
}

fn parse(text: &str) -> Element {
    let json: Value = serde_json::from_str(text).expect("an envelope is JSON");
    let id = json["id"].as_str().expect("an id").to_owned();
    let payload = json["payload"].as_str().unwrap_or_default();
    let version = payload::version(&id, payload.as_bytes());
    let header = json["headers"]["X-Version"].as_str().map(str::to_owned);
    let is_intact = header == version.map(|version| version.to_string());
    Element { version: version.filter(|_| is_intact), due: json["due"].as_u64().expect("a time"), id }
}
