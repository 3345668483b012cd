//! Redis gives no answer for a while: claims and settlements of that time.

use std::{collections::BTreeMap, time::Duration};

use redis::AsyncCommands;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep_until};

use super::{client::Client, eventually};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request, wall_clock},
};

const SILENCE: Duration = Duration::from_secs(10);

struct Run {
    redis: RedisServer,
    receiver: Receiver,
    client: Client,
    _punctual: Punctual,
}

impl Run {
    async fn start() -> Self {
        let (redis, receiver) = (RedisServer::start().await, Receiver::start());
        let punctual = Punctual::start(&format!(
            "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, max_connections: 1000, url: '{}' }} }}\nroutes: {{ web: {{ sink: hook }} }}\n",
            redis.url(),
            receiver.url()
        ))
        .await;
        let client = Client::of(&punctual);
        Self { redis, receiver, client, _punctual: punctual }
    }

    async fn schedule(&self, count: usize, delay: u64) {
        let message = |n| format!(r#"{{"id":"m{n}","delay":{delay},"payload":"x"}}"#);
        let messages: Vec<String> = (0..count).map(message).collect();
        self.client.schedule("web", &format!("[{}]", messages.join(","))).await;
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.redis.pid().try_into().expect("a process id")).expect("not zero");
        kill_process(pid, signal).expect("it runs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_falls_due_while_redis_is_silent_leaves_as_soon_as_it_answers() {
    let run = Run::start().await;
    let begun = Instant::now();
    run.schedule(300, 1500).await;
    sleep_until(begun + Duration::from_secs(1)).await;
    run.signal(Signal::STOP);
    sleep_until(begun + Duration::from_secs(1) + SILENCE).await;
    run.signal(Signal::CONT);
    let back = wall_clock();
    let requests = run.receiver.wait_for(300, Duration::from_mins(1)).await;
    run.client.drained("web", Duration::from_secs(10)).await;
    let last = requests.iter().map(|request| request.arrived).max().unwrap() - back;
    let expired = run.client.metrics().await.sum("punctual_leases_expired_total", &[]);
    println!("unanswered: the last of 300 arrived {last} ms after Redis answered again; {expired} leases expired");
    assert!(last <= 2000 && expired == 0);
    assert_eq!(run.receiver.count(), 300, "each once");
    assert!(requests.iter().all(|request| request.attempt() == 1));
    let attempts: BTreeMap<String, String> =
        run.redis.connection().await.hgetall("{punctual:web:0/1}:attempts").await.unwrap();
    assert!(attempts.is_empty(), "no crash is counted: {attempts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_thousand_unanswered_settlements_expired_leases_are_recovered() {
    let run = Run::start().await;
    run.receiver.behave(Behaviour::Hang);
    run.client.schedule("web", r#"{"id":"held","delay":"1h","payload":"x"}"#).await;
    run.schedule(1000, 0).await;
    run.receiver.wait_for(1000, Duration::from_secs(20)).await;
    run.signal(Signal::STOP);
    run.receiver.behave(Behaviour::Status(200));
    let silent = Instant::now();
    // Longer than a call may take, so that all are unanswered at once.
    sleep_until(silent + SILENCE).await;
    run.signal(Signal::CONT);
    eventually("all are settled", Duration::from_secs(20), async || {
        (run.client.stats("web").await["unack"] == 0).then_some(())
    })
    .await;
    // As an instance leaves it that died.
    let mut redis = run.redis.connection().await;
    let () = redis.zrem("{punctual:web:0/1}:pending", "held").await.unwrap();
    let () = redis.zadd("{punctual:web:0/1}:unack", "held", wall_clock() * 1000).await.unwrap();
    let () = redis.publish("{punctual:web:0/1}:wake", "").await.unwrap();
    let began = wall_clock();
    let held = |request: &&Request| request.id() == "held";
    let arrived = eventually("the lease is recovered", Duration::from_mins(1), async || {
        run.receiver.requests().iter().find(held).map(|request| request.arrived)
    })
    .await;
    println!("unanswered: recovered {} ms after the lease ended", arrived.saturating_sub(began));
    assert!(arrived - began <= 5000);
}
