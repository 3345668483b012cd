//! The calls of clients, before they are made, and the meaning of their answers.

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    clock,
    history::{Answer, Operation},
    inputs::Production,
    payload,
    random::Random,
    routes,
};

/// A call, before it is made.
pub struct Request {
    pub operation: Operation,
    pub method: Method,
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    pub version: u32,
    /// Epoch milliseconds; `None`: relative to the call.
    pub deliver_at: Option<u64>,
    /// Milliseconds.
    pub delay: u64,
    /// Instead of a call of the API.
    pub production: Option<Production>,
}

/// `None`: the call should not get this answer.
pub fn definite(operation: Operation, status: u16, word: &str, due: Option<u64>, not_before: u64) -> Option<Answer> {
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

pub enum Heard {
    /// Nothing was sent.
    Refused,
    /// The call may have been executed.
    Silence(String),
    Status(u16, String),
}

/// When a message is due.
#[derive(Clone, Copy)]
pub struct Times {
    /// Milliseconds.
    pub delay: u64,
    /// Epoch milliseconds, instead of the delay.
    pub deliver_at: Option<u64>,
}

impl Times {
    /// As a delay or as a time.
    pub fn draw(random: &mut Random, delay: u64) -> Self {
        Self { delay, deliver_at: random.chance(50).then(|| clock::now() + delay) }
    }

    pub fn add(self, body: &mut Value) {
        match self.deliver_at {
            Some(at) => body["deliver_at"] = at.into(),
            None => body["delay"] = self.delay.into(),
        }
    }
}

impl Request {
    pub fn new(operation: Operation, method: Method, path: String, body: String, times: Times) -> Self {
        let Times { delay, deliver_at } = times;
        Self { operation, method, path, headers: Vec::new(), body, version: 0, deliver_at, delay, production: None }
    }
}

/// A message, before it is scheduled.
#[derive(Clone, Copy)]
pub struct Draft<'a> {
    pub route: &'static str,
    pub id: &'a str,
    pub version: u32,
    pub is_rejected: bool,
    pub flow: Option<&'a str>,
    pub group: Option<&'a str>,
}

impl<'a> Draft<'a> {
    pub fn of(route: &'static str, id: &'a str) -> Self {
        Self { route, id, version: 1, is_rejected: false, flow: None, group: None }
    }

    fn message(self, times: Times) -> Value {
        let Self { route, id, version, is_rejected, flow, group } = self;
        let mut message = json!({
            "id": id,
            "payload": payload::of(id, version),
            "headers": { "X-Version": version.to_string() },
        });
        if is_rejected {
            message["headers"]["X-Reject"] = "1".into();
        }
        if let Some(flow) = flow {
            message[routes::flow_field(route)] = flow.into();
        }
        if let Some(group) = group {
            message["group"] = group.into();
        }
        times.add(&mut message);
        message
    }

    pub fn single(self, operation: Operation, times: Times) -> Request {
        let mut message = self.message(times);
        if operation == Operation::Replace {
            message["on_conflict"] = "replace".into();
        }
        let path = format!("/v1/routes/{}/messages", self.route);
        let request = Request::new(operation, Method::POST, path, message.to_string(), times);
        Request { version: self.version, ..request }
    }

    /// The id is left to `ids`.
    pub fn array(self, ids: &[String], times: Times) -> Request {
        let messages: Vec<Value> = ids.iter().map(|id| Draft { id, ..self }.message(times)).collect();
        let path = format!("/v1/routes/{}/messages", self.route);
        let body = Value::from(messages).to_string();
        Request { version: self.version, ..Request::new(Operation::Schedule, Method::POST, path, body, times) }
    }

    pub fn raw(self, delay: u64) -> Request {
        let Self { route, id, version, .. } = self;
        let path = format!("/v1/routes/{route}/raw?id={id}&delay={delay}");
        let times = Times { delay, deliver_at: None };
        let headers = vec![("content-type", "text/plain".into()), ("punctual-forward-x-version", version.to_string())];
        let request = Request::new(Operation::Schedule, Method::POST, path, payload::of(id, version), times);
        Request { headers, version, ..request }
    }
}

/// Epoch milliseconds.
pub fn due(one: &Value) -> Option<u64> {
    let at: jiff::Timestamp = one["deliver_at"].as_str()?.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}
