//! The states of a message, seen from outside: every way through its life.

use std::time::Duration;

use tokio::time::sleep;

use super::{client::Client, eventually};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, wall_clock},
};

const SOON: Duration = Duration::from_secs(5);
/// For what must not happen: far longer than a delivery takes.
const QUIET: Duration = Duration::from_millis(500);

struct World {
    _redis: RedisServer,
    receiver: Receiver,
    configuration: String,
    punctual: Punctual,
    client: Client,
}

impl World {
    async fn start() -> Self {
        Self::with_lease("2s").await
    }

    async fn with_lease(lease: &str) -> Self {
        let (redis, receiver) = (RedisServer::start().await, Receiver::start());
        let configuration = format!(
            "redis: {{ url: '{}' }}\n\
             sinks: {{ hook: {{ type: http, url: '{}', timeout: 1s }} }}\n\
             routes: {{ web: {{ sink: hook, lease: {lease}, retry: {{ max_attempts: 3, initial: 50ms, jitter: 0 }} }} }}\n",
            redis.url(),
            receiver.url()
        );
        let punctual = Punctual::start(&configuration).await;
        let client = Client::of(&punctual);
        Self { _redis: redis, receiver, configuration, punctual, client }
    }

    async fn message(&self, id: &str) -> crate::support::Answer {
        self.client.call("GET", &format!("/v1/routes/web/messages/{id}"), "").await
    }

    async fn admin(&self, what: &str) -> u16 {
        self.client.call("POST", &format!("/v1/routes/web/{what}"), "").await.status
    }

    /// Waits until it is dead; why.
    async fn dead(&self, id: &str) -> String {
        eventually(&format!("`{id}` is dead"), SOON, async || {
            let message = self.message(id).await.json;
            (message["state"] == "dead").then(|| message["last_error"].as_str().unwrap().to_owned())
        })
        .await
    }

    async fn total(&self, name: &str) -> u64 {
        self.client.metrics().await.sum(&format!("punctual_{name}_total"), &["route=\"web\""])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_slower_than_the_lease_is_ended_before_it_and_repeated_later() {
    // So long that no machine is too slow to settle in it.
    let world = World::with_lease("15s").await;
    world.receiver.behave(Behaviour::HangFirst);
    world.client.schedule("web", r#"{"id":"slow","payload":""}"#).await;
    let requests = world.receiver.wait_for(2, Duration::from_secs(30)).await;
    println!("lifecycle: the second attempt came {} ms after the first", requests[1].arrived - requests[0].arrived);
    assert_eq!((requests[0].attempt(), requests[1].attempt()), (1, 2), "the timeout counted");
    assert_eq!(world.client.drained("web", SOON).await["dead"], 0);
    for (name, count) in [("messages_delivered", 1), ("leases_expired", 0), ("stale_settlements", 0)] {
        assert_eq!(world.total(name).await, count, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_is_dead_with_the_reason_and_can_be_redriven() {
    let world = World::start().await;
    for status in [400, 300] {
        world.receiver.behave(Behaviour::Status(status));
        world.client.schedule("web", &format!(r#"{{"id":"bad-{status}","payload":"p"}}"#)).await;
        let error = world.dead(&format!("bad-{status}")).await;
        assert!(error.starts_with("rejected: ") && error.contains(&status.to_string()), "{error}");
    }
    assert_eq!(world.receiver.count(), 2, "one attempt each");
    assert_eq!(world.client.stats("web").await["dead"], 2);
    let again = world.client.schedule("web", r#"{"id":"bad-400","payload":"other"}"#).await;
    assert_eq!((&again["status"], &again["state"]), (&"exists".into(), &"dead".into()));

    world.receiver.behave(Behaviour::Status(200));
    let redriven = world.client.call("POST", "/v1/routes/web/dead/redrive", r#"{"ids":["bad-400"]}"#).await;
    assert_eq!((redriven.status, &redriven.json["count"]), (200, &1.into()), "{}", redriven.text);
    let request = world.receiver.wait_for(3, SOON).await.remove(2);
    assert_eq!((request.id(), request.attempt(), &request.body[..]), ("bad-400", 1, &b"p"[..]));
    let revived = r#"{"id":"bad-300","payload":"new","on_conflict":"replace"}"#;
    assert_eq!(world.client.schedule("web", revived).await["status"], "replaced");
    let request = world.receiver.wait_for(4, SOON).await.remove(3);
    assert_eq!((request.id(), request.attempt(), &request.body[..]), ("bad-300", 1, &b"new"[..]));
    assert_eq!(world.client.drained("web", SOON).await["dead"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_repeated_with_growing_delays_until_no_attempt_is_left() {
    let world = World::start().await;
    world.receiver.behave(Behaviour::Status(500));
    world.client.schedule("web", r#"{"id":"failing","payload":""}"#).await;
    world.client.schedule("web", r#"{"id":"once","payload":"","max_attempts":1}"#).await;
    assert!(world.dead("once").await.starts_with("attempts: "));
    assert!(world.dead("failing").await.starts_with("attempts: "));
    let requests = world.receiver.requests();
    let failing: Vec<_> = requests.iter().filter(|request| request.id() == "failing").collect();
    let attempts: Vec<u32> = failing.iter().map(|request| request.attempt()).collect();
    assert_eq!((requests.len(), attempts), (4, vec![1, 2, 3]));
    assert!(failing[1].arrived - failing[0].arrived >= 50 && failing[2].arrived - failing[1].arrived >= 100);
    let due: Vec<u64> = failing.iter().map(|request| request.due()).collect();
    assert_eq!(due, [due[0]; 3], "the original due time");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_waited_for() {
    let world = World::start().await;
    world.receiver.behave(Behaviour::RetryAfter(2));
    world.client.schedule("web", r#"{"id":"later","payload":""}"#).await;
    let first = world.receiver.wait_for(1, SOON).await.remove(0);
    eventually("the answer was understood", SOON, async || {
        (world.message("later").await.json["attempts"] == 1).then_some(())
    })
    .await;
    world.receiver.behave(Behaviour::Status(200));
    let second = world.receiver.wait_for(2, SOON).await.remove(1);
    let between = second.arrived - first.arrived;
    println!("lifecycle: {between} ms after a Retry-After of 2 s");
    assert!((2000..4000).contains(&between), "{between} ms");
    assert_eq!(second.attempt(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_is_dead_and_not_sent() {
    let world = World::start().await;
    assert_eq!(world.admin("pause").await, 204);
    let body = format!(r#"{{"id":"stale","payload":"","expires_at":{}}}"#, wall_clock() + 200);
    world.client.schedule("web", &body).await;
    let body = format!(r#"{{"id":"fresh","payload":"","expires_at":{}}}"#, wall_clock() + 60_000);
    world.client.schedule("web", &body).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(world.admin("resume").await, 204);
    let error = world.dead("stale").await;
    assert!(error.starts_with("expired: "), "{error}");
    let requests = world.receiver.wait_for(1, SOON).await;
    world.client.drained("web", SOON).await;
    assert_eq!((requests[0].id(), world.receiver.count()), ("fresh", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_on_every_instance_and_over_restarts() {
    let mut world = World::start().await;
    let mut other = Punctual::start(&world.configuration).await;
    assert_eq!(world.admin("pause").await, 204);
    Client::of(&other).schedule("web", r#"{"id":"held","payload":""}"#).await;
    sleep(QUIET).await;
    world.punctual.kill().await;
    world.punctual.restart().await;
    assert_eq!(other.terminate().await.code, Some(0));
    other.restart().await;
    sleep(QUIET).await;
    assert_eq!(world.receiver.count(), 0);
    let stats = world.client.stats("web").await;
    assert_eq!((&stats["paused"], &stats["due"]), (&true.into(), &1.into()));

    let resumed = wall_clock();
    assert_eq!(Client::of(&other).call("POST", "/v1/routes/web/resume", "").await.status, 204);
    let request = world.receiver.wait_for(1, SOON).await.remove(0);
    println!("lifecycle: {} ms after the resume", request.arrived - resumed);
    assert!(request.arrived - resumed < 500, "resuming wakes");
    world.client.drained("web", SOON).await;
    assert_eq!(world.receiver.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_can_be_neither_replaced_nor_moved_nor_cancelled() {
    let world = World::start().await;
    world.client.schedule("web", r#"{"id":"m","delay":"1h","payload":"old"}"#).await;
    let replaced =
        world.client.schedule("web", r#"{"id":"m","delay":"1h","payload":"new","on_conflict":"replace"}"#).await;
    assert_eq!(replaced["status"], "replaced");
    let path = "/v1/routes/web/messages/m";
    world.receiver.behave(Behaviour::Hang);
    assert_eq!(world.client.call("PATCH", path, r#"{"delay":0}"#).await.status, 200);
    let request = world.receiver.wait_for(1, SOON).await.remove(0);
    assert_eq!(&request.body[..], b"new");
    assert_eq!(world.message("m").await.json["state"], "unack");
    let replace = r#"{"id":"m","payload":"newer","on_conflict":"replace"}"#;
    for (method, path, body) in
        [("POST", "/v1/routes/web/messages", replace), ("PATCH", path, r#"{"delay":0}"#), ("DELETE", path, "")]
    {
        let answer = world.client.call(method, path, body).await;
        assert_eq!(answer.problem(409), "in-flight", "{method}");
    }
    world.receiver.behave(Behaviour::Status(200));
    world.client.drained("web", SOON).await;
    assert_eq!(world.receiver.count(), 1, "nothing came of the refused calls");
    assert_eq!(world.message("m").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_counters_add_up() {
    let world = World::start().await;
    let array = |prefix: &str, count: usize, delay: &str| {
        let message = |n| format!(r#"{{"id":"{prefix}-{n}","delay":"{delay}","payload":""}}"#);
        format!("[{}]", (0..count).map(message).collect::<Vec<_>>().join(","))
    };
    world.receiver.behave(Behaviour::Status(400));
    world.client.schedule("web", &array("dead", 3, "0s")).await;
    for n in 0..3 {
        world.dead(&format!("dead-{n}")).await;
    }
    world.receiver.behave(Behaviour::Status(200));
    world.client.schedule("web", &array("sent", 10, "0s")).await;
    world.client.schedule("web", &array("later", 5, "1h")).await;
    world.client.schedule("web", &array("later", 5, "2h")).await;
    for id in ["later-0", "later-1"] {
        let cancelled = world.client.call("DELETE", &format!("/v1/routes/web/messages/{id}"), "").await;
        assert_eq!(cancelled.status, 204);
    }
    let redriven = world.client.call("POST", "/v1/routes/web/dead/redrive", r#"{"ids":["dead-0","none"]}"#).await;
    assert_eq!(redriven.json["count"], 1);
    let purged = world.client.call("DELETE", "/v1/routes/web/messages/dead-1", "").await;
    assert_eq!(purged.status, 200);
    eventually("eleven are delivered", SOON, async || (world.total("messages_delivered").await >= 11).then_some(()))
        .await;
    let stats = world.client.stats("web").await;
    assert_eq!((&stats["pending"], &stats["unack"], &stats["dead"]), (&3.into(), &0.into(), &1.into()));
    let mut totals = Vec::new();
    for name in ["scheduled", "redriven", "delivered", "dead", "cancelled", "purged"] {
        totals.push(world.total(&format!("messages_{name}")).await);
    }
    assert_eq!(totals, [18, 1, 11, 3, 2, 1]);
    assert_eq!(totals[0] + totals[1], totals[2] + totals[3] + totals[4] + 3, "the last are live");
}
