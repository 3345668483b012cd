//! Clients of the API: each message has one that schedules it, perhaps changes it later, and repeats calls until they have a
//! definite answer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    clock,
    history::{Answer, Call, Operation},
    oracle::Oracle,
    payload,
    random::Random,
    world::{INSTANCES, World},
};
use crate::support::{http, receiver::wall_clock};

/// An instance that is stopped gives no answer.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// A connection that is kept longer counts as an open file of the instance.
const IDLE: Duration = Duration::from_secs(3);
/// Until a client gives up: the outcome of its call stays unknown.
const MAX_REPEAT: Duration = Duration::from_secs(25);
/// Before a call is repeated.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum delay of a message, in milliseconds.
const MAX_DELAY: u64 = 6000;
/// Maximum time after its first due time at which a message is changed, in milliseconds: it can be in flight then.
const AFTER_DUE: u64 = 1500;
/// Maximum messages of an array.
const MAX_ARRAY: u64 = 20;

pub struct Clients {
    pub oracle: Oracle,
    http: reqwest::Client,
    bases: Vec<String>,
    routes: Vec<&'static str>,
    /// Before each id.
    prefix: String,
    tally: Mutex<Tally>,
}

#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Calls by operation and kind of answer.
    pub answers: BTreeMap<String, u64>,
    /// Answers that no call of a campaign should get.
    pub unexpected: Vec<String>,
}

/// How the first call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Single,
    Array,
    Raw,
}

/// A call, before it is made.
struct Request {
    operation: Operation,
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
    version: u32,
    /// Epoch milliseconds; `None`: relative to the call.
    deliver_at: Option<u64>,
    /// Milliseconds.
    delay: u64,
}

impl Clients {
    pub fn new(world: &World, prefix: String) -> Self {
        // For its cryptography, which is installed once.
        drop(http::client());
        let http = reqwest::Client::builder().timeout(MAX_WAIT).pool_idle_timeout(IDLE).build().expect("a client");
        Self {
            oracle: Oracle::default(),
            http,
            bases: world.bases.clone(),
            routes: world.routes(),
            prefix,
            tally: Mutex::default(),
        }
    }

    pub fn tally(&self) -> Tally {
        self.tally.lock().expect("no panic under this lock").clone()
    }

    /// The life of one message, or of an array of them. `number`: unique in the round.
    pub async fn live(self: Arc<Self>, number: u64, mut random: Random) {
        let route = if random.chance(50) { self.routes[0] } else { random.pick(&self.routes[1..]) };
        let form = match random.between(1, 100) {
            1..=10 => Form::Array,
            11..=25 => Form::Raw,
            _ => Form::Single,
        };
        let count = if form == Form::Array { random.between(2, MAX_ARRAY) } else { 1 };
        let ids: Vec<String> = (0..count).map(|n| format!("{}-{number}-{n}", self.prefix)).collect();
        let is_rejected = route == "web" && form == Form::Single && random.chance(1);
        for id in &ids {
            self.oracle.begin(id, route, is_rejected);
        }
        let delay = if random.chance(10) { 0 } else { random.between(1, MAX_DELAY) };
        let first = match form {
            Form::Raw => raw(route, &ids[0], delay),
            Form::Single => {
                single(route, &ids[0], Operation::Schedule, 1, Times::draw(&mut random, delay), is_rejected)
            }
            Form::Array => array(route, &ids, Times::draw(&mut random, delay)),
        };
        let is_accepted = self.settle(&ids, &first, &mut random).await;
        if is_accepted && form != Form::Array && !is_rejected {
            self.change(route, &ids[0], delay, &mut random).await;
        }
    }

    /// Perhaps changes a message before it is due, once or twice.
    async fn change(&self, route: &'static str, id: &str, delay: u64, random: &mut Random) {
        let mut version = 1;
        for _ in 0..random.between(0, 2) {
            sleep(Duration::from_millis(random.between(0, delay + AFTER_DUE))).await;
            let new_delay = random.between(0, MAX_DELAY);
            let path = format!("/v1/routes/{route}/messages/{id}");
            let times = Times::draw(random, new_delay);
            let request = match random.between(1, 100) {
                1..=30 => {
                    version += 1;
                    single(route, id, Operation::Replace, version, times, false)
                }
                31..=55 => {
                    let mut body = json!({});
                    times.add(&mut body);
                    Request::new(Operation::Reschedule, Method::PATCH, path, body.to_string(), times)
                }
                56..=75 => {
                    let times = Times { delay: 0, deliver_at: None };
                    Request::new(Operation::DeliverNow, Method::POST, path + "/deliver", String::new(), times)
                }
                _ => {
                    let request = Request::new(Operation::Cancel, Method::DELETE, path, String::new(), times);
                    self.settle(&[id.to_owned()], &request, random).await;
                    return;
                }
            };
            self.settle(&[id.to_owned()], &request, random).await;
        }
    }

    /// Makes a call until its answer is definite, each time at another instance. Whether it was executed.
    async fn settle(&self, ids: &[String], request: &Request, random: &mut Random) -> bool {
        let deadline = Instant::now() + MAX_REPEAT;
        let mut instance = usize::try_from(random.next() % 3).expect("an index") % INSTANCES;
        loop {
            let called = wall_clock();
            let heard = self.call(instance, request).await;
            let answered = wall_clock();
            let not_before = request.deliver_at.unwrap_or(clock::lowest(called) + request.delay);
            let answers: Vec<Answer> =
                (0..ids.len()).map(|index| self.understand(request, &heard, (ids, index), not_before)).collect();
            for (id, answer) in ids.iter().zip(&answers) {
                let Request { operation, version, .. } = *request;
                let answer = answer.clone();
                self.oracle.record(id, Call { operation, version, not_before, instance, called, answered, answer });
            }
            if let Some(definite) = answers.iter().find(|answer| !matches!(answer, Answer::Unknown(_)))
                && !matches!(heard, Heard::Refused)
            {
                return matches!(definite, Answer::Done { .. });
            }
            if Instant::now() >= deadline {
                return false;
            }
            instance = (instance + 1) % INSTANCES;
            sleep(PAUSE).await;
        }
    }

    async fn call(&self, instance: usize, request: &Request) -> Heard {
        let mut call = self.http.request(request.method.clone(), format!("{}{}", self.bases[instance], request.path));
        for (name, value) in &request.headers {
            call = call.header(*name, value);
        }
        let answered = match call.body(request.body.clone()).send().await {
            Ok(answer) => answer,
            Err(error) if error.is_connect() => return Heard::Refused,
            Err(error) => return Heard::Silence(error.to_string()),
        };
        let status = answered.status().as_u16();
        match answered.text().await {
            // An instance with an older configuration: another one knows the route.
            Ok(text) if status == 404 && text.contains("unknown-route") => Heard::Refused,
            Ok(text) => Heard::Status(status, text),
            Err(error) => Heard::Silence(error.to_string()),
        }
    }

    /// The part of the answer about the id at `index`.
    fn understand(
        &self,
        request: &Request,
        heard: &Heard,
        (ids, index): (&[String], usize),
        not_before: u64,
    ) -> Answer {
        let mut word = String::new();
        let answer = match heard {
            Heard::Refused => Answer::Nothing("connection refused".into()),
            Heard::Silence(error) => Answer::Unknown(error.clone()),
            Heard::Status(503, text) => Answer::Unknown(format!("503 {text}")),
            Heard::Status(status, text) => {
                let json: Value = serde_json::from_str(text).unwrap_or_default();
                let one = if ids.len() > 1 { &json["results"][index] } else { &json };
                word = format!("{status} {}", one["status"].as_str().unwrap_or_default());
                let due = due(one);
                definite(request.operation, *status, one["status"].as_str().unwrap_or_default(), due, not_before)
                    .unwrap_or_else(|| {
                        let found = format!("{}: {:?} answered with {status} {text}", ids[index], request.operation);
                        self.tally.lock().expect("no panic under this lock").unexpected.push(found);
                        Answer::Nothing(format!("{status} {text}"))
                    })
            }
        };
        let kind = match &answer {
            Answer::Done { .. } => "done",
            Answer::Nothing(_) => "nothing",
            Answer::Unknown(_) => "unknown",
        };
        let word = match heard {
            Heard::Refused => "refused".to_owned(),
            Heard::Silence(_) => "no answer".to_owned(),
            Heard::Status(503, _) => "503".to_owned(),
            Heard::Status(..) => word,
        };
        let mut tally = self.tally.lock().expect("no panic under this lock");
        *tally.answers.entry(format!("{:?}: {kind} ({})", request.operation, word.trim())).or_default() += 1;
        answer
    }
}

/// `None`: the call should not get this answer.
fn definite(operation: Operation, status: u16, word: &str, due: Option<u64>, not_before: u64) -> Option<Answer> {
    match (operation, status, word) {
        (Operation::Schedule, 200 | 201, "scheduled" | "exists")
        | (Operation::Replace, 200, "replaced")
        | (Operation::Reschedule | Operation::DeliverNow, 200, "rescheduled") => due.map(|due| Answer::Done { due }),
        // It says that the message was delivered: that is owed.
        (Operation::Schedule, 200, "delivered") => Some(Answer::Done { due: not_before }),
        (Operation::Cancel, 204, "") => Some(Answer::Done { due: 0 }),
        (Operation::Reschedule | Operation::DeliverNow | Operation::Cancel, 404 | 409, _)
        | (Operation::Replace, 409, _)
        | (Operation::Replace, 200, "delivered") => Some(Answer::Nothing(format!("{status} {word}"))),
        _ => None,
    }
}

enum Heard {
    /// Nothing was sent.
    Refused,
    /// The call may have been executed.
    Silence(String),
    Status(u16, String),
}

/// When a message is due.
#[derive(Clone, Copy)]
struct Times {
    /// Milliseconds.
    delay: u64,
    /// Epoch milliseconds, instead of the delay.
    deliver_at: Option<u64>,
}

impl Times {
    /// As a delay or as a time.
    fn draw(random: &mut Random, delay: u64) -> Self {
        Self { delay, deliver_at: random.chance(50).then(|| clock::now() + delay) }
    }

    fn add(self, body: &mut Value) {
        match self.deliver_at {
            Some(at) => body["deliver_at"] = at.into(),
            None => body["delay"] = self.delay.into(),
        }
    }
}

impl Request {
    fn new(operation: Operation, method: Method, path: String, body: String, times: Times) -> Self {
        let Times { delay, deliver_at } = times;
        Self { operation, method, path, headers: Vec::new(), body, version: 0, deliver_at, delay }
    }
}

fn message(id: &str, version: u32, times: Times, is_rejected: bool) -> Value {
    let mut message = json!({
        "id": id,
        "payload": payload::of(id, version),
        "headers": { "X-Version": version.to_string() },
    });
    if is_rejected {
        message["headers"]["X-Reject"] = "1".into();
    }
    times.add(&mut message);
    message
}

fn single(route: &str, id: &str, operation: Operation, version: u32, times: Times, is_rejected: bool) -> Request {
    let mut message = message(id, version, times, is_rejected);
    if operation == Operation::Replace {
        message["on_conflict"] = "replace".into();
    }
    let path = format!("/v1/routes/{route}/messages");
    Request { version, ..Request::new(operation, Method::POST, path, message.to_string(), times) }
}

fn array(route: &str, ids: &[String], times: Times) -> Request {
    let messages: Vec<Value> = ids.iter().map(|id| message(id, 1, times, false)).collect();
    let path = format!("/v1/routes/{route}/messages");
    let body = Value::from(messages).to_string();
    Request { version: 1, ..Request::new(Operation::Schedule, Method::POST, path, body, times) }
}

fn raw(route: &str, id: &str, delay: u64) -> Request {
    let path = format!("/v1/routes/{route}/raw?id={id}&delay={delay}");
    let times = Times { delay, deliver_at: None };
    let headers = vec![("content-type", "text/plain".into()), ("punctual-forward-x-version", "1".into())];
    let request = Request::new(Operation::Schedule, Method::POST, path, payload::of(id, 1), times);
    Request { version: 1, headers, ..request }
}

/// Epoch milliseconds.
fn due(one: &Value) -> Option<u64> {
    let at: jiff::Timestamp = one["deliver_at"].as_str()?.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}
