//! A load on one route, and what became of its messages.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    program::{client::Client, eventually},
    support::{noise, receiver::Receiver, scale},
};

/// Messages in one call.
const BATCH: usize = 40;
/// Time between two calls: 2,000 messages a second.
const INTERVAL: Duration = Duration::from_millis(20);
/// Calls that may wait for their answers: those of an outage do not hold up the next ones.
const POSTERS: u32 = 8;
/// From acceptance to the due time, in milliseconds.
const DELAY: u64 = 300;

/// Posts until it is stopped; what is refused is not repeated.
pub struct Load {
    client: Client,
    posted: Arc<Posted>,
    posters: JoinSet<()>,
}

#[derive(Default)]
struct Posted {
    stop: AtomicBool,
    batches: AtomicUsize,
    accepted: Mutex<Accepted>,
    refused: AtomicUsize,
}

#[derive(Default)]
struct Accepted {
    ids: Vec<String>,
    latest: Option<Instant>,
}

/// Deliveries before a fault.
pub const WARM_UP: usize = 2000;
/// From the new master, as all name it, to the first delivery, in milliseconds.
pub const BACK_WITHIN: u64 = 5000;
/// Bytes of a message.
pub const SMALL: usize = 10;
/// Bytes of a message where the buffers of the network must not hold what is written during `LAG`.
pub const LARGE: usize = 4096;
/// How long a replica receives nothing.
pub const LAG: Duration = Duration::from_secs(4);
/// `max_in_flight` of the route, by default.
const MAX_IN_FLIGHT: usize = 1000;

/// The meaning of a 2xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// That all replicas have it.
    Durable,
    /// That the master has it.
    OfMaster,
}

impl Replies {
    /// Each way as often as the run asks for.
    pub fn runs() -> Vec<Self> {
        scale::rounds(vec![Self::Durable], [[Self::Durable; 3], [Self::OfMaster; 3]].concat())
    }

    /// The setting of these replies below `redis`, behind another setting. `replicas`: of a master.
    pub fn setting(self, replicas: usize) -> String {
        match self {
            Self::Durable => format!(", durability: {{ replicas: {replicas} }}"),
            Self::OfMaster => String::new(),
        }
    }
}

/// The result of a load.
#[derive(Debug)]
pub struct Account {
    pub accepted: usize,
    /// Calls that were answered with 503.
    pub refused: usize,
    /// Accepted messages that never came.
    pub lost: usize,
    pub duplicates: usize,
    pub early: usize,
}

impl Account {
    /// Checks what holds after each fault.
    pub fn check(&self, replies: Replies) {
        assert!(self.accepted >= WARM_UP, "{self:?}");
        assert_eq!(self.early, 0, "{self:?}");
        if replies == Replies::Durable {
            assert_eq!(self.lost, 0, "{self:?}");
        }
    }

    /// Messages in flight when the master was lost can come twice: their settlements can be lost with it.
    pub fn few_duplicates(&self) {
        assert!(self.duplicates <= MAX_IN_FLIGHT, "{self:?}");
    }
}

/// A route `web` with this load. `redis`: its settings. `route`: more of the route.
pub fn configuration(redis: &str, route: &str, receiver: &Receiver) -> String {
    format!(
        "redis: {{ {redis} }}\nserver: {{ request_timeout: 3s }}\n\
         sinks: {{ hook: {{ type: http, url: '{}', timeout: 2s }} }}\n\
         routes: {{ web: {{ sink: hook, lease: 5s{route} }} }}\n",
        receiver.url()
    )
}

impl Load {
    /// `payload`: bytes of each message.
    pub fn start(client: &Client, payload: usize) -> Self {
        let posted = Arc::new(Posted::default());
        let payload: Arc<str> = BASE64_STANDARD.encode(noise(payload)).into();
        let mut posters = JoinSet::new();
        for _ in 0..POSTERS {
            posters.spawn(post(client.clone(), posted.clone(), payload.clone()));
        }
        Self { client: client.clone(), posted, posters }
    }

    /// When a call was accepted that was made after `since`; how long that took.
    pub async fn accepted_after(&self, since: Instant, max_wait: Duration) -> Duration {
        eventually("a post is accepted again", max_wait, async || {
            self.posted.accepted.lock().unwrap().latest.filter(|at| *at > since).map(|at| at - since)
        })
        .await
    }

    /// Stops it, waits until nothing is left in the queue, and counts.
    pub async fn finish(mut self, receiver: &Receiver, max_wait: Duration) -> Account {
        self.posted.stop.store(true, Ordering::SeqCst);
        while let Some(end) = self.posters.join_next().await {
            end.expect("no panic");
        }
        eventually("the queue is drained", max_wait, async || {
            let answer = self.client.call("GET", "/v1/routes/web", "").await;
            let stats = answer.json;
            (answer.status == 200 && stats["pending"] == 0 && stats["unack"] == 0).then_some(())
        })
        .await;
        let requests = receiver.requests();
        let mut times: HashMap<&str, usize> = HashMap::new();
        for request in &requests {
            *times.entry(request.id()).or_default() += 1;
        }
        let accepted = self.posted.accepted.lock().unwrap();
        let distinct: HashSet<&String> = accepted.ids.iter().collect();
        assert_eq!(distinct.len(), accepted.ids.len(), "an id is posted once");
        Account {
            accepted: accepted.ids.len(),
            refused: self.posted.refused.load(Ordering::SeqCst),
            lost: accepted.ids.iter().filter(|id| !times.contains_key(id.as_str())).count(),
            duplicates: times.values().map(|times| times - 1).sum(),
            early: requests.iter().filter(|request| request.arrived < request.due()).count(),
        }
    }
}

async fn post(client: Client, posted: Arc<Posted>, payload: Arc<str>) {
    let mut ticks = interval(INTERVAL * POSTERS);
    // An outage is not made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !posted.stop.load(Ordering::SeqCst) {
        ticks.tick().await;
        let batch = posted.batches.fetch_add(1, Ordering::SeqCst);
        let ids: Vec<String> = (0..BATCH).map(|n| format!("b{batch}-{n}")).collect();
        let messages: Vec<String> =
            ids.iter().map(|id| format!(r#"{{"id":"{id}","delay":{DELAY},"payload_base64":"{payload}"}}"#)).collect();
        match client.try_post("web", format!("[{}]", messages.join(","))).await {
            Some(200) => {
                let mut accepted = posted.accepted.lock().unwrap();
                accepted.ids.extend(ids);
                accepted.latest = Some(Instant::now());
            }
            Some(503) => drop(posted.refused.fetch_add(1, Ordering::SeqCst)),
            other => panic!("answered {other:?}"),
        }
    }
}
