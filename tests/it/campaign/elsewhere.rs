//! A list on a Redis of its own, and its elements.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::Value;
use tokio::{sync::Mutex as Turn, task::JoinHandle, time::sleep};

use super::{caused::Faults, history::Arrival, list, nemesis::Planned};
use crate::{
    program::eventually,
    support::{RedisServer, proxy::Proxy, receiver::wall_clock},
};

/// The key, the sink and the route.
pub const NAME: &str = "elsewhere";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum time until all elements were seen.
const MAX_READ: Duration = Duration::from_secs(10);

pub struct Elsewhere {
    server: Turn<RedisServer>,
    port: u16,
    /// Between the instances and it.
    pub path: Proxy,
    taken: Arc<Mutex<Vec<Arrival>>>,
    taking: JoinHandle<()>,
}

impl Elsewhere {
    pub async fn start() -> Self {
        let server = RedisServer::start_with(&["--appendfsync", "no"]).await;
        let (port, taken) = (server.port(), Arc::<Mutex<Vec<Arrival>>>::default());
        let taking = tokio::spawn(take(port, Arc::clone(&taken)));
        Self { server: Turn::new(server), port, path: Proxy::start(port), taken, taking }
    }

    /// The sink, as YAML.
    pub fn sink(&self) -> String {
        format!(
            "  {NAME}: {{ type: redis_list, url: 'redis://127.0.0.1:{}/0', key: {NAME}, format: envelope, timeout: 2s }}\n",
            self.path.port()
        )
    }

    /// All that arrived so far, of the ids with this prefix.
    pub async fn arrivals(&self, prefix: &str) -> Vec<Arrival> {
        eventually("the list is read", MAX_READ, async || {
            let seen = self.taken.lock().expect("no panic under this lock").len();
            let left = list::behind(self.port, NAME, seen).await?;
            left.is_empty().then_some(())
        })
        .await;
        let mut arrivals = self.taken.lock().expect("no panic under this lock").clone();
        arrivals.retain(|arrival| arrival.id.starts_with(prefix));
        arrivals
    }

    /// Killed or frozen, and then itself again. Its append-only file has all that it confirmed: by default Redis postpones writes
    /// to the file for up to two seconds while the disk is slow, and a kill loses them.
    pub async fn interrupt(&self, planned: &Planned, faults: &Faults) {
        let Ok(mut server) = self.server.try_lock() else { return };
        let is_killed = planned.random.clone().chance(60);
        let detail = format!("{} for {:?}", if is_killed { "killed" } else { "frozen" }, planned.lasts);
        let fault = faults.begin(planned.kind, detail);
        if is_killed {
            server.kill();
            sleep(planned.lasts).await;
            server.restart().await;
        } else {
            server.freeze();
            sleep(planned.lasts).await;
            server.resume();
        }
        faults.end(fault);
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.taking.abort();
    }
}

/// Reads the list as it grows. An element that was seen stays there.
async fn take(port: u16, taken: Arc<Mutex<Vec<Arrival>>>) {
    let (mut seen, mut since) = (0, wall_clock());
    loop {
        let asked = wall_clock();
        if let Some(elements) = list::behind(port, NAME, seen).await {
            let at = wall_clock();
            seen += elements.len();
            let arrivals = elements.iter().map(|text| parse(text, [since, at]));
            taken.lock().expect("no panic under this lock").extend(arrivals);
            since = asked;
        }
        sleep(PAUSE).await;
    }
}

fn parse(text: &str, span: [u64; 2]) -> Arrival {
    let json: Value = serde_json::from_str(text).expect("an envelope is JSON");
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let header = |name: &str| match name.strip_prefix("punctual-") {
        Some(field) => text(&json[field]),
        None => text(&json["headers"][name]),
    };
    Arrival::confirmed(text(&json["id"]), text(&json["payload"]).as_bytes(), span, header)
}
