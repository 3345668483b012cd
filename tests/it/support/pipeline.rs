//! Many numbered messages through the API of the real program, and what a destination must show of them.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    answer, http,
    punctual::Punctual,
    receiver::{Request, wall_clock},
};

/// Time from the first call to the first due time, in ms: long enough to schedule all messages.
const AHEAD_MILLIS: u64 = 2000;
/// Messages of one call, the most that the API takes.
const ARRAY: u64 = 1000;

/// How much later another route may be during an outage on a busy machine, in ms; the printed numbers count.
const OTHER_LATER: u64 = 500;

/// A message as its consumer got it.
#[derive(Debug)]
pub struct Arrived {
    pub id: String,
    pub route: String,
    pub attempt: u32,
    /// Epoch ms.
    pub due: u64,
    /// When it was there; epoch ms.
    pub at: u64,
    pub key: String,
    pub content_type: String,
    /// The user's.
    pub headers: BTreeMap<String, String>,
    pub payload: Vec<u8>,
}

impl Arrived {
    fn number(&self) -> u64 {
        self.headers["X-Number"].parse().expect("a number")
    }

    pub fn lateness(&self) -> u64 {
        assert!(self.at >= self.due, "{} came early", self.id);
        self.at - self.due
    }
}

/// Schedules `count` messages, the same number in every millisecond of `spread`. Returns when the first is due, epoch ms.
pub async fn schedule(punctual: &Punctual, route: &str, count: u64, spread: Duration) -> u64 {
    let first = wall_clock() + AHEAD_MILLIS;
    let message = |number| {
        json!({
            "id": format!("m{number}"), "deliver_at": due(number, first, count, spread), "key": format!("k{number}"),
            "payload_base64": BASE64_STANDARD.encode(payload(number)), "content_type": "application/x-test",
            "headers": { "X-Number": number.to_string(), "X-Text": text(number) },
        })
    };
    for from in (0..count).step_by(usize::try_from(ARRAY).expect("small")) {
        let array: Vec<Value> = (from..count.min(from + ARRAY)).map(message).collect();
        let url = punctual.url(&format!("/v1/routes/{route}/messages"));
        let answer = answer(http::client().post(url).body(Value::from(array).to_string())).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    first
}

/// Waits until the route holds nothing but the dead, of which there must be none.
pub async fn drained(punctual: &Punctual, route: &str, max_wait: Duration) {
    let deadline = Instant::now() + max_wait;
    loop {
        let stats = answer(http::client().get(punctual.url(&format!("/v1/routes/{route}")))).await.json;
        if stats["pending"] == 0 && stats["unack"] == 0 {
            assert_eq!(stats["dead"], 0, "{stats}");
            return;
        }
        assert!(Instant::now() < deadline, "not drained within {max_wait:?}: {stats}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Checks that all messages of `schedule` are there, whole, in time, and at their first attempt. Returns the number of
/// duplicates.
pub fn verify(arrived: &[Arrived], route: &str, first: u64, count: u64, spread: Duration) -> usize {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for message in arrived {
        let n = message.number();
        *counts.entry(n).or_default() += 1;
        assert_eq!((&*message.id, &*message.key), (&*format!("m{n}"), &*format!("k{n}")));
        assert_eq!((&*message.route, message.attempt, &*message.content_type), (route, 1, "application/x-test"));
        assert_eq!((message.headers.len(), &message.headers["X-Text"]), (2, &text(n)));
        assert_eq!(message.payload, payload(n), "{n}: byte for byte");
        assert_eq!(message.due, due(n, first, count, spread));
        message.lateness();
    }
    assert_eq!(counts.len() as u64, count, "none is lost");
    arrived.len() - counts.len()
}

/// That another route's `count` messages arrived once each, and those that were due `meanwhile` (epoch ms) about as
/// soon as the others. Returns what `percentiles` says of both.
pub fn served_all_the_while(requests: &[Request], count: u64, meanwhile: Range<u64>) -> ((u64, u64), (u64, u64)) {
    assert_eq!(requests.len() as u64, count, "the other route is served, once each");
    let lateness = |inside: bool| {
        let those = requests.iter().filter(|request| meanwhile.contains(&request.due()) == inside);
        percentiles(those.map(|request| request.arrived - request.due()))
    };
    let (inside, outside) = (lateness(true), lateness(false));
    assert!(inside.1 <= outside.1 + OTHER_LATER, "{inside:?}, else {outside:?}");
    (inside, outside)
}

/// The values that 50 and 99 of 100 do not exceed, in ms.
pub fn percentiles(lateness: impl IntoIterator<Item = u64>) -> (u64, u64) {
    let mut lateness: Vec<u64> = lateness.into_iter().collect();
    lateness.sort_unstable();
    let at = |share: usize| lateness.get(lateness.len() * share / 100).copied().unwrap_or_default();
    (at(50), at(99))
}

fn due(number: u64, first: u64, count: u64, spread: Duration) -> u64 {
    first + number * u64::try_from(spread.as_millis()).expect("short") / count
}

/// No text in any encoding.
fn payload(number: u64) -> Vec<u8> {
    (0..100).map(|at| number.wrapping_mul(31).wrapping_add(at * 7).to_le_bytes()[0]).collect()
}

fn text(number: u64) -> String {
    format!("é \u{1f426} {number}")
}
