//! Bundles calls of one script for several partitions into one call: for a single message, the call itself costs Redis
//! more than the work in it.
//!
//! The first call is sent at once. After it, sending pauses for a time in proportion to the duration of that call, or
//! until enough calls wait. The waiting calls are then sent together. So the busier Redis is, the more calls share one,
//! and a lone call never waits.

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use redis::Value;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout},
};

use super::{
    connection::{Connection, classify_line},
    script::{Call, Script},
};
use crate::store::StoreError;

/// Ratio of the pause to the duration of the last call, without the time of its messages: a bundle saves only the cost
/// of calls.
const REST: u32 = 3;

/// Number of messages that take as long as a call without messages.
const MESSAGES_OF_CALL: u32 = 10;

/// Maximum pause.
const LONGEST_REST: Duration = Duration::from_millis(10);

/// Number of waiting calls that ends a pause: a larger bundle would not make each call cheaper.
const ENOUGH: usize = 16;

/// Maximum number of calls in a bundle, so that the values of their transfers fit into one call.
const MAX_CALLS: usize = 64;

/// Sends the calls of one script to one Redis.
pub struct Bundler {
    /// The bundled form of the calls' script.
    script: &'static Script,
    connection: Arc<Connection>,
    way: Mutex<Way>,
    /// Notified when enough calls wait.
    enough: Notify,
}

#[derive(Default)]
struct Way {
    waiting: VecDeque<Waiting>,
    /// Whether a task sends the waiting calls.
    is_driven: bool,
}

struct Waiting {
    call: Call,
    /// The call is not sent after this time.
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
}

type Answer = Result<Answered, StoreError>;

pub struct Answered {
    /// When the call was sent.
    pub sent: Instant,
    pub reply: Vec<Value>,
}

impl Bundler {
    pub fn new(script: &'static Script, connection: Arc<Connection>) -> Arc<Self> {
        Arc::new(Self { script, connection, way: Mutex::default(), enough: Notify::new() })
    }

    /// Sends the call, bundled with others that wait.
    ///
    /// # Errors
    /// Those of a call; `Unavailable` if the call was not sent within the timeout of the connection. So an answer takes
    /// at most twice that timeout.
    pub async fn run(self: &Arc<Self>, call: Call) -> Answer {
        let (answer, answered) = oneshot::channel();
        let must_drive = {
            let mut way = self.lock();
            let deadline = Instant::now() + self.connection.timeout();
            way.waiting.push_back(Waiting { call, deadline, answer });
            if way.waiting.len() == ENOUGH {
                self.enough.notify_one();
            }
            !mem::replace(&mut way.is_driven, true)
        };
        if must_drive {
            tokio::spawn(Arc::clone(self).drive());
        }
        answered.await.unwrap_or_else(|_| Err(dropped()))
    }

    /// Sends waiting calls until none waits after a pause.
    async fn drive(self: Arc<Self>) {
        let _guard = PanicGuard(&self);
        while let Some(calls) = self.next() {
            let sent = Instant::now();
            let messages = self.make(calls, sent).await;
            let call = sent.elapsed() * MESSAGES_OF_CALL / (MESSAGES_OF_CALL + messages);
            let rest = (call * REST).min(LONGEST_REST);
            let _ = timeout(rest, self.enough.notified()).await;
        }
    }

    /// The calls to send next. Without any, the driving task ends.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut way = self.lock();
        let now = Instant::now();
        while let Some(one) = way.waiting.pop_front_if(|one| one.deadline <= now) {
            // An error means that the caller has given up.
            let _ = one.answer.send(Err(too_late()));
        }
        // Their callers have given up.
        way.waiting.retain(|one| !one.answer.is_closed());
        let count = way.waiting.len().min(MAX_CALLS);
        way.is_driven = count > 0;
        way.is_driven.then(|| way.waiting.drain(..count).collect())
    }

    /// Sends the calls. Returns the number of messages in all replies.
    async fn make(&self, mut calls: Vec<Waiting>, sent: Instant) -> u32 {
        let mut messages = 0;
        if calls.len() == 1
            && let Some(Waiting { call, answer, .. }) = calls.pop()
        {
            let reply = call.run_over::<Vec<Value>>(&self.connection).await.map(|(reply, _)| reply);
            let messages = reply.as_ref().map_or(0, |reply| messages_of(reply));
            // An error means that the caller has given up.
            let _ = answer.send(reply.map(|reply| Answered { sent, reply }));
            return messages;
        }
        let together = self.script.together(calls.iter().map(|one| &one.call));
        match together.run_over::<Vec<Value>>(&self.connection).await {
            Ok((replies, _)) => {
                let mut undone = Vec::new();
                for (one, reply) in calls.into_iter().zip(replies) {
                    messages += if let Value::Array(reply) = &reply { messages_of(reply) } else { 0 };
                    match self.answer(reply, sent, &one.call) {
                        Some(answer) => drop(one.answer.send(answer)),
                        None => undone.push(one),
                    }
                }
                let mut way = self.lock();
                for one in undone.into_iter().rev() {
                    way.waiting.push_front(one);
                }
            }
            Err(error) => {
                for one in calls {
                    let _ = one.answer.send(Err(error.clone()));
                }
            }
        }
        messages
    }

    /// `None`: the bundle left this call undone.
    fn answer(&self, reply: Value, sent: Instant, call: &Call) -> Option<Answer> {
        match reply {
            Value::Nil => None,
            Value::Array(reply) => Some(Ok(Answered { sent, reply })),
            Value::BulkString(line) => {
                let error = classify_line(&String::from_utf8_lossy(&line));
                self.connection.failed(&error, sent);
                Some(Err(call.located(error)))
            }
            other => {
                let text = format!("{other:?} instead of a reply");
                Some(Err(StoreError::Unavailable { kind: "reply", text }))
            }
        }
    }

    /// No panic can leave the state half-changed.
    fn lock(&self) -> MutexGuard<'_, Way> {
        self.way.lock()
    }
}

/// The number of messages in a reply: its first integer, or the length of its first string; at most 1000.
fn messages_of(reply: &[Value]) -> u32 {
    match reply.first() {
        Some(Value::Int(number)) => u32::try_from(*number).unwrap_or_default(),
        Some(Value::BulkString(verdicts)) => u32::try_from(verdicts.len()).unwrap_or_default(),
        _ => 0,
    }
}

/// After a panic, which is a defect, waiting calls get an error, and the next call starts another task.
struct PanicGuard<'a>(&'a Bundler);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.lock() = Way::default();
        }
    }
}

fn too_late() -> StoreError {
    StoreError::Unavailable { kind: "busy", text: "it waited too long for its turn, and was not sent".into() }
}

fn dropped() -> StoreError {
    StoreError::Unavailable { kind: "shutdown", text: "it was not sent, or its answer is lost".into() }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{script, simulated::Simulated},
        *,
    };

    #[tokio::test(start_paused = true)]
    async fn after_a_panic_the_waiting_calls_fail_and_later_ones_are_sent() {
        let redis = Simulated::start([]).await;
        let bundler = Bundler::new(&script::CLAIMS, Arc::new(redis.connection()));
        let run = |key: &str| {
            let (bundler, call) = (bundler.clone(), script::FENCE.keys(&[key]));
            tokio::spawn(async move { bundler.run(call).await.map(drop) })
        };
        // As if a task sent calls.
        bundler.lock().is_driven = true;
        let waiting = run("waiting");
        tokio::task::yield_now().await;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = PanicGuard(&bundler);
            panic!("a defect");
        }));
        assert!(panicked.is_err());
        assert_eq!(waiting.await.unwrap(), Err(dropped()));
        let calls = redis.calls();
        assert_ne!(run("next").await.unwrap(), Err(dropped()));
        assert_eq!(redis.calls() - calls, 1);
    }

    #[test]
    fn a_reply_has_as_many_messages_as_its_number_or_its_verdicts() {
        for (reply, count) in [
            (vec![Value::Int(7), Value::Int(1)], 7),
            (vec![Value::BulkString(b"abc".to_vec())], 3),
            (vec![Value::Nil], 0),
            (vec![], 0),
        ] {
            assert_eq!(messages_of(&reply), count, "{reply:?}");
        }
    }
}
