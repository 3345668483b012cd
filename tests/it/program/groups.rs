//! A message that is replaced again and again, and one among very many.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{alone, client::Client, heavy};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Receiver, wall_clock},
    scale::{full, rounds},
};

/// A debug build on two busy cores keeps this, in ms; the printed number is the one that counts.
const LATE: u64 = 600;
/// Groups among the others, each of three messages.
const GROUPS: usize = 20;
const MAX_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_steady_stream_does_not_starve_a_debounced_message() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ web: {{ sink: hook }} }}\n",
        redis.url(),
        receiver.url()
    ))
    .await;
    let client = Client::of(&punctual);
    let (posts, every, delay, max) = rounds((50, 40, 400, 1200), (1000, 100, 5000, 30_000));
    let (begun, mut accepted) = (Instant::now(), Vec::new());
    for n in 0..posts {
        sleep_until(begun + Duration::from_millis(n * every)).await;
        let body = json!({
            "id": "x", "payload": n.to_string(), "delay": delay, "on_conflict": "replace", "debounce": {"max": max},
        });
        let answer = client.call("POST", "/v1/routes/web/messages", &body.to_string()).await;
        match answer.status {
            200 | 201 => accepted.push((n, answer.status == 201)),
            status => assert_eq!(status, 409, "{}", answer.text),
        }
    }
    client.drained("web", MAX_WAIT).await;
    let requests = receiver.requests();
    let firsts: Vec<u64> = accepted.iter().filter(|(_, is_new)| *is_new).map(|(n, _)| *n).collect();
    assert_eq!(requests.len(), firsts.len(), "one delivery for each first message");
    let stream = posts * every;
    assert_eq!(requests.len() as u64, stream.div_ceil(max), "one delivery in each maximum");
    for (n, request) in requests.iter().enumerate() {
        let last = firsts.get(n + 1).copied().unwrap_or(u64::MAX);
        let expected = accepted.iter().map(|(n, _)| *n).take_while(|n| *n < last).last().expect("accepted");
        let late = request.arrived - request.due();
        println!("delivery {}: payload {}, due {}, late by {late} ms", n + 1, expected, request.due());
        assert_eq!(&request.body[..], expected.to_string().as_bytes(), "the last payload");
        assert!(late < LATE, "late by {late} ms");
    }
    // The first one is due just that long after its first acceptance.
    let first_late = requests[0].due().abs_diff(receiver_clock(begun) + max);
    assert!(first_late < LATE, "{first_late} ms from the maximum");
    println!("the first delivery was due {first_late} ms from {max} ms after the first post");
}

/// A moment on the clock of the receiver, in milliseconds.
fn receiver_clock(at: Instant) -> u64 {
    let ago = u64::try_from(at.elapsed().as_millis()).expect("short");
    wall_clock() - ago
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_cancelled_in_milliseconds_among_very_many_messages() {
    let _alone = alone().await;
    let redis = RedisServer::start().await;
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}' }}\nsinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\nroutes: {{ web: {{ sink: jobs }} }}\n",
        redis.url()
    ))
    .await;
    let client = Client::of(&punctual);
    let others = if full() { 10_000_000 } else { 50_000 };
    fill(&redis, others).await;
    for group in 0..GROUPS {
        let batch: Vec<_> = (0..3)
            .map(|n| json!({"id": format!("o{group}-{n}"), "payload": 1, "delay": "1d", "group": format!("order:{group}")}))
            .collect();
        client.schedule("web", &json!(batch).to_string()).await;
    }
    let mut times: Vec<Duration> = Vec::new();
    for group in 0..GROUPS {
        let begun = Instant::now();
        let answer = client.call("DELETE", &format!("/v1/routes/web/groups/order:{group}"), "").await;
        times.push(begun.elapsed());
        assert_eq!(answer.json, json!({"cancelled": 3, "in_flight": [], "more": false}));
    }
    times.sort();
    println!("cancelling 3 of {others}: median {:?}, slowest {:?}", times[GROUPS / 2], times[GROUPS - 1]);
    assert!(times[GROUPS / 2] < Duration::from_millis(LATE), "{times:?}");
    assert_eq!(client.stats("web").await["pending"], others);
}

/// Fills the route with messages of other groups, and of none, as a script does.
async fn fill(redis: &RedisServer, count: u64) {
    const SCRIPT: &str = r"
    local tag, from, to = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
    for n = from, to - 1, 500 do
      local scores, bodies, groups, grouped = {}, {}, {}, {}
      for i = n, math.min(n + 500, to) - 1 do
        local id, group = 'm' .. i, 'other:' .. (i % 1000000)
        scores[#scores + 1], scores[#scores + 2] = 4000000000000 + i, id
        bodies[#bodies + 1], bodies[#bodies + 2] = id, ARGV[3]
        groups[#groups + 1], groups[#groups + 2] = id, group
        grouped[#grouped + 1], grouped[#grouped + 2] = '0', group .. '\0' .. id
      end
      redis.call('ZADD', tag .. 'pending', unpack(scores))
      redis.call('HSET', tag .. 'messages', unpack(bodies))
      redis.call('HSET', tag .. 'groups', unpack(groups))
      redis.call('ZADD', tag .. 'grouped', unpack(grouped))
    end";
    let (script, mut connection) = (redis::Script::new(SCRIPT), redis.connection().await);
    let body = [&[2_u8][..], &4_000_000_000_000_u64.to_be_bytes(), &0_u64.to_be_bytes(), &[0, 0]].concat();
    for from in (0..count).step_by(50_000) {
        let to = (from + 50_000).min(count);
        let mut call = script.key("{punctual:web:0/1}:");
        let _: redis::Value =
            call.arg(from).arg(to).arg(&body[..]).invoke_async(&mut connection).await.expect("filled");
    }
}
