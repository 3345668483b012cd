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
    brokers::Brokers,
    calls::{Draft, Heard, Request, Times, definite, due},
    clock,
    endpoint::Pardons,
    flow, groups,
    history::{Answer, Call, NO_INSTANCE, Operation},
    oracle::{Life, Oracle},
    producers::Producers,
    random::Random,
    routes,
    world::{INSTANCES, World},
    writers::Writers,
};
use crate::support::{http, receiver::wall_clock};

/// An instance that is stopped gives no answer.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// A connection that is kept longer counts as an open file of the instance.
const IDLE: Duration = Duration::from_secs(3);
/// Maximum time until a client gives up: the outcome of its call stays unknown.
const MAX_REPEAT: Duration = Duration::from_secs(25);
/// Before a call is repeated.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum delay of a message, in milliseconds.
const MAX_DELAY: u64 = 6000;
/// Maximum time after its first due time at which a message is changed, in milliseconds: it can be in flight.
const AFTER_DUE: u64 = 1500;
/// Share of the groups, in percent.
const GROUPS: u64 = 4;
/// Share of the messages of sources among the others, in percent.
const SOURCES: u64 = 12;
/// Maximum messages of an array.
const MAX_ARRAY: u64 = 20;
/// Messages that wait for the rate of their flow: for six seconds. A rate that is a tenth too high is noticed.
const AT_RATE: u64 = 6 * routes::RATE;

pub struct Clients {
    pub oracle: Oracle,
    http: reqwest::Client,
    bases: Vec<String>,
    routes: Vec<&'static str>,
    sources: Vec<&'static str>,
    pub writers: Writers,
    pub producers: Producers,
    /// Before each id.
    prefix: String,
    pub changes: Mutex<Vec<groups::Change>>,
    pardons: Pardons,
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
    /// `produce.lua`.
    Script,
}

impl Clients {
    pub fn new(world: &World, prefix: String) -> Self {
        let http = http::builder().timeout(MAX_WAIT).pool_idle_timeout(IDLE).build().expect("a client");
        Self {
            oracle: Oracle::default(),
            http,
            bases: world.bases.clone(),
            routes: world.routes.iter().filter(|route| route.is_plain()).map(|route| route.name).collect(),
            sources: world.routes.iter().filter(|route| route.has_source()).map(|route| route.name).collect(),
            writers: world.writers.clone(),
            producers: Producers::new(
                world.brokers.as_ref().map(Brokers::addresses),
                world.writers.clone(),
                world.replicas,
            ),
            prefix,
            changes: Mutex::default(),
            pardons: world.endpoint.pardons(),
            tally: Mutex::default(),
        }
    }

    pub fn tally(&self) -> Tally {
        self.tally.lock().expect("no panic under this lock").clone()
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn sources(&self) -> &[&'static str] {
        &self.sources
    }

    pub fn routes(&self) -> &[&'static str] {
        &self.routes
    }

    /// One call with one attempt. `None`: without an answer.
    pub async fn ask(&self, instance: usize, method: Method, path: &str, body: &str) -> Option<(u16, String)> {
        let times = Times { delay: 0, deliver_at: None };
        let request = Request::new(Operation::Schedule, method, path.to_owned(), body.to_owned(), times);
        match self.call(instance, &request).await {
            Heard::Status(status, text) => Some((status, text)),
            _ => None,
        }
    }

    pub fn count(&self, what: &str) {
        *self.tally.lock().expect("no panic under this lock").answers.entry(what.to_owned()).or_default() += 1;
    }

    pub fn is_unexpected(&self, found: String) {
        self.tally.lock().expect("no panic under this lock").unexpected.push(found);
    }

    /// The life of a message, of an array of them or of a group. `number`: unique in the round.
    pub async fn live(self: Arc<Self>, number: u64, mut random: Random) {
        if random.chance(GROUPS) {
            self.live_as_group(number, random).await;
        } else if random.chance(SOURCES) {
            self.live_at_source(number, random).await;
        } else {
            self.live_alone(number, random).await;
        }
    }

    /// The life of one message, or of an array of them. `number`: unique in the round.
    async fn live_alone(&self, number: u64, mut random: Random) {
        let route = match random.between(1, 100) {
            1..=40 => "web",
            41..=60 => random.pick(&routes::WITH_FLOW),
            _ => random.pick(&self.routes),
        };
        let flow = routes::draw_flow(route, &self.prefix, &mut random);
        let form = match random.between(1, 100) {
            1..=10 => Form::Array,
            11..=25 if flow.is_none() => Form::Raw,
            26..=40 => Form::Script,
            _ => Form::Single,
        };
        let count = if form == Form::Array { random.between(2, MAX_ARRAY) } else { 1 };
        let ids: Vec<String> = (0..count).map(|n| format!("{}-{number}-{n}", self.prefix)).collect();
        let is_rejected = matches!(route, "web" | "ordered") && form == Form::Single && random.chance(1);
        for id in &ids {
            self.oracle.begin(id, Life { is_rejected, flow: flow.clone(), ..Life::of(route) });
        }
        let delay = if random.chance(10) { 0 } else { random.between(1, MAX_DELAY) };
        let draft = Draft { is_rejected, flow: flow.as_deref(), ..Draft::of(route, &ids[0]) };
        let first = match form {
            Form::Raw => draft.raw(delay),
            Form::Script => draft.production(Times::draw(&mut random, delay)),
            Form::Single => draft.single(Operation::Schedule, Times::draw(&mut random, delay)),
            Form::Array => draft.array(&ids, Times::draw(&mut random, delay)),
        };
        let is_accepted = self.settle(&ids, &first, &mut random).await;
        if is_accepted && form != Form::Array && !is_rejected {
            self.change(draft, delay, &mut random).await;
        } else if is_accepted && is_rejected && random.chance(60) {
            sleep(Duration::from_millis(delay + AFTER_DUE)).await;
            self.redrive(route, &ids[0]).await;
        }
    }

    /// Messages of one flow that are due together, once what faults delayed has left: they arrive at the rate of their flow alone.
    pub async fn live_at_rate(&self, mut random: Random) {
        let flow = format!("{}-at-rate", self.prefix);
        let ids: Vec<String> = (0..AT_RATE).map(|n| format!("{flow}-{n}")).collect();
        for id in &ids {
            self.oracle.begin(id, Life { flow: Some(flow.clone()), ..Life::of("rate") });
        }
        let draft = Draft { flow: Some(&flow), ..Draft::of("rate", &ids[0]) };
        let times = Times { delay: flow::BUSY_AFTER, deliver_at: None };
        self.settle(&ids, &draft.array(&ids, times), &mut random).await;
    }

    /// Lets the endpoint take a message that it rejected, and redrives it as soon as it is a dead letter.
    async fn redrive(&self, route: &'static str, id: &str) {
        let deadline = Instant::now() + MAX_REPEAT;
        let path = format!("/v1/routes/{route}/dead/redrive");
        let body = json!({ "ids": [id] }).to_string();
        for instance in (0..INSTANCES).cycle() {
            self.pardons.pardon(id);
            let called = wall_clock();
            let heard = self.ask(instance, Method::POST, &path, &body).await;
            let answered = wall_clock();
            let answer = match heard {
                Some((200, text)) => match serde_json::from_str::<Value>(&text).unwrap_or_default()["count"].as_u64() {
                    Some(1) => Answer::Done { due: clock::lowest(called) },
                    _ => Answer::Nothing(text),
                },
                Some((503, text)) => Answer::Unknown(text),
                Some((status, text)) => {
                    self.is_unexpected(format!("{path} answered with {status} {text}"));
                    Answer::Nothing(text)
                }
                None => Answer::Unknown("no answer".into()),
            };
            let is_done = matches!(answer, Answer::Done { .. });
            self.count(&format!("Redrive: {}", if is_done { "done" } else { "nothing or unknown" }));
            let operation = Operation::Redrive;
            let not_before = clock::lowest(called);
            self.oracle.record(id, Call { operation, version: 0, not_before, instance, called, answered, answer });
            if is_done || Instant::now() > deadline {
                return;
            }
            sleep(PAUSE * 5).await;
        }
    }

    /// Perhaps changes a message before it is due, once or twice.
    async fn change(&self, mut draft: Draft<'_>, delay: u64, random: &mut Random) {
        for _ in 0..random.between(0, 2) {
            sleep(Duration::from_millis(random.between(0, delay + AFTER_DUE))).await;
            let new_delay = random.between(0, MAX_DELAY);
            let path = format!("/v1/routes/{}/messages/{}", draft.route, draft.id);
            let times = Times::draw(random, new_delay);
            let request = match random.between(1, 100) {
                1..=30 => {
                    draft.version += 1;
                    draft.single(Operation::Replace, times)
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
                    self.settle(&[draft.id.to_owned()], &request, random).await;
                    return;
                }
            };
            self.settle(&[draft.id.to_owned()], &request, random).await;
        }
    }

    /// Makes a call until its answer is definite, each time at another instance. Whether it was executed.
    pub async fn settle(&self, ids: &[String], request: &Request, random: &mut Random) -> bool {
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
                let instance = if request.production.is_some() { NO_INSTANCE } else { instance };
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
        if let Some(production) = &request.production {
            return self.produce(production, &request.body).await;
        }
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
