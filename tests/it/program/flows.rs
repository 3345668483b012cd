//! Flows: rate, parallelism and order per key, over several instances.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, sleep},
};

use super::{client::Client, eventually, heavy};
use crate::support::{
    RawServer, RedisServer,
    punctual::Punctual,
    read_request,
    scale::{rounds, seconds},
};

const MAX_WAIT: Duration = Duration::from_secs(40);
/// Messages of a request.
const ARRAY: usize = 1000;

/// An attempt at the endpoint.
#[derive(Clone, Debug)]
struct Attempt {
    tenant: String,
    id: String,
    began: Instant,
    /// `None` while it is open.
    ended: Option<Instant>,
    confirmed: bool,
}

#[derive(Default)]
struct Log {
    all: Vec<Attempt>,
    /// Number of attempts by id.
    of: HashMap<String, usize>,
    /// Number of confirmed attempts.
    confirmed: usize,
}

#[derive(Clone, Default)]
struct Attempts(Arc<Mutex<Log>>);

impl Attempts {
    fn all(&self) -> Vec<Attempt> {
        self.0.lock().unwrap().all.clone()
    }

    fn confirmed(&self) -> usize {
        self.0.lock().unwrap().confirmed
    }
}

/// Answers after `hold`; the status is that of `answer`, which gets the id and the number of its attempts so far.
fn endpoint(hold: Duration, answer: fn(&str, usize) -> &'static str) -> (RawServer, Attempts) {
    let attempts = Attempts::default();
    let seen = attempts.clone();
    let server = RawServer::start(move |mut stream| {
        let seen = seen.clone();
        async move {
            while let Some(head) = read_request(&mut stream).await {
                let header = |name: &str| {
                    let value = head.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                    value.to_owned()
                };
                let (id, tenant) = (header("punctual-id: "), header("tenant: "));
                let (place, earlier) = {
                    let mut log = seen.0.lock().unwrap();
                    let count = log.of.entry(id.clone()).or_default();
                    let earlier = *count;
                    *count += 1;
                    log.all.push(Attempt {
                        tenant,
                        id: id.clone(),
                        began: Instant::now(),
                        ended: None,
                        confirmed: false,
                    });
                    (log.all.len() - 1, earlier)
                };
                sleep(hold).await;
                let status = answer(&id, earlier);
                {
                    let mut log = seen.0.lock().unwrap();
                    let confirmed = status.starts_with('2');
                    log.confirmed += usize::from(confirmed);
                    let attempt = &mut log.all[place];
                    (attempt.ended, attempt.confirmed) = (Some(Instant::now()), confirmed);
                }
                let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                if stream.write_all(reply.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    });
    (server, attempts)
}

fn configuration(redis: &RedisServer, endpoint: &RawServer, flow: &Value) -> String {
    let url = format!("http://127.0.0.1:{}/", endpoint.port());
    json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": { "type": "http", "url": url, "timeout": "1s" } },
        "routes": { "hooks": {
            "sink": "hook", "flow": flow, "lease": "2s",
            "retry": { "initial": "50ms", "max": "100ms", "max_attempts": 3 },
        }},
    })
    .to_string()
}

async fn schedule(client: &Client, tenant: &str, count: usize) {
    let message = |n: usize| json!({ "id": format!("{tenant}.{n}"), "payload": "x", "headers": { "tenant": tenant } });
    for first in (0..count).step_by(ARRAY) {
        let numbers = first..count.min(first + ARRAY);
        client.schedule("hooks", &numbers.map(message).collect::<Value>().to_string()).await;
    }
}

/// Several instances of one configuration. One of them, in turn, is killed and replaced.
struct Instances {
    configuration: String,
    all: Vec<Punctual>,
    kills: usize,
}

impl Instances {
    async fn start(configuration: String, count: usize) -> Self {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(Punctual::start(&configuration).await);
        }
        Self { configuration, all, kills: 0 }
    }

    async fn kill_one(&mut self) {
        let turn = self.kills % self.all.len();
        self.all[turn].kill().await;
        self.all[turn] = Punctual::start(&self.configuration).await;
        self.kills += 1;
    }

    /// Kills one of them after each `pause` until `is_done`.
    async fn kill_until(&mut self, pause: Duration, limit: Duration, mut is_done: impl FnMut() -> bool) {
        let deadline = Instant::now() + limit;
        let mut next = Instant::now() + pause;
        while !is_done() {
            assert!(Instant::now() < deadline, "not done after {limit:?}");
            if Instant::now() >= next {
                self.kill_one().await;
                next = Instant::now() + pause;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn client(&self) -> Client {
        Client::of(&self.all[0])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_leaves_at_its_rate_and_others_pass_it() {
    let redis = RedisServer::start().await;
    let (server, attempts) = endpoint(Duration::ZERO, |_, _| "204 No Content");
    let flow = json!({ "key": "{header:tenant}", "rate": "50/s", "burst": 5 });
    let text = configuration(&redis, &server, &flow);
    let (one, other) = (Punctual::start(&text).await, Punctual::start(&text).await);
    let client = Client::of(&one);
    schedule(&client, "big", 105).await;
    let (began, backlog) = (Instant::now(), attempts.confirmed());
    schedule(&client, "small", 5).await;
    let all = eventually("all arrived", MAX_WAIT, async || {
        let all = attempts.all();
        (all.len() == 110).then_some(all)
    })
    .await;
    let small = all.iter().filter(|one| one.tenant == "small").map(|one| one.began - began).max().expect("some");
    assert!(small < Duration::from_secs(1), "behind {backlog} of another flow for {small:?}");
    let big: Vec<Instant> = all.iter().filter(|one| one.tenant == "big").map(|one| one.began).collect();
    let took = *big.iter().max().expect("some") - big[0];
    // 100 of them wait for a slot each.
    assert!((1.9..4.0).contains(&took.as_secs_f64()), "{took:?}");
    for (n, from) in big.iter().enumerate() {
        for (m, to) in big.iter().enumerate().skip(n) {
            // A message can be 100 ms on its way when another is not.
            let most = 5.0 + 50.0 * ((*to - *from).as_secs_f64() + 0.1);
            let count = u32::try_from(m - n + 1).expect("few");
            assert!(f64::from(count) <= most, "{count} in {:?}", *to - *from);
        }
    }
    let stats = client.drained("hooks", MAX_WAIT).await;
    assert_eq!((&stats["waiting_for_flow"], &stats["waiting_flows"]), (&0.into(), &0.into()), "{stats}");
    let mut waits = 0;
    for instance in [&one, &other] {
        let page = Client::of(instance).metrics().await;
        waits += page.sum("punctual_flow_wait_seconds_count", &["route=\"hooks\""]);
    }
    assert_eq!(waits, 110);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_has_as_many_in_flight_as_it_may_also_when_an_instance_is_killed() {
    let redis = RedisServer::start().await;
    let (server, attempts) = endpoint(Duration::from_millis(50), |_, _| "204 No Content");
    let flow = json!({ "key": "{header:tenant}", "parallel": 3 });
    let text = configuration(&redis, &server, &flow);
    let (one, mut killed) = (Punctual::start(&text).await, Punctual::start(&text).await);
    let client = Client::of(&one);
    schedule(&client, "a", 90).await;
    schedule(&client, "b", 30).await;
    eventually("some arrived", MAX_WAIT, async || (attempts.confirmed() > 20).then_some(())).await;
    killed.kill().await;
    eventually("all arrived", MAX_WAIT, async || {
        let ids: HashMap<String, bool> =
            attempts.all().into_iter().filter(|one| one.confirmed).map(|one| (one.id, true)).collect();
        (ids.len() == 120).then_some(())
    })
    .await;
    let all = attempts.all();
    for one in &all {
        let at_once = |other: &&Attempt| {
            other.tenant == one.tenant && other.began <= one.began && other.ended.is_none_or(|end| end > one.began)
        };
        assert!(all.iter().filter(at_once).count() <= 3, "more than three of {}", one.tenant);
    }
    client.drained("hooks", MAX_WAIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_flow_keeps_its_order_over_failures_dead_letters_and_a_kill() {
    let redis = RedisServer::start().await;
    // Each fifth message fails once, each message with a 7 always.
    let answer = |id: &str, earlier: usize| {
        let n: usize = id.rsplit('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        if n == 7 || (n.is_multiple_of(5) && earlier == 0) { "500 No" } else { "204 No Content" }
    };
    let (server, attempts) = endpoint(Duration::ZERO, answer);
    let flow = json!({ "key": "{header:tenant}", "ordered": true });
    let text = configuration(&redis, &server, &flow);
    let (one, mut killed) = (Punctual::start(&text).await, Punctual::start(&text).await);
    let client = Client::of(&one);
    let tenants: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
    for tenant in &tenants {
        schedule(&client, tenant, 20).await;
    }
    eventually("some arrived", MAX_WAIT, async || (attempts.confirmed() > 50).then_some(())).await;
    killed.kill().await;
    let stats = client.drained("hooks", MAX_WAIT).await;
    assert_eq!(stats["dead"], 20, "{stats}");
    let mut first: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for one in attempts.all().iter().filter(|one| one.confirmed) {
        let n: usize = one.id.rsplit('.').next().expect("a number").parse().expect("a number");
        let seen = first.entry(one.tenant.clone()).or_default();
        if !seen.contains(&n) {
            seen.push(n);
        }
    }
    let expected: Vec<usize> = (0..20).filter(|n| *n != 7).collect();
    for tenant in &tenants {
        assert_eq!(first[tenant], expected, "{tenant}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_delivered_now_does_not_pass_those_of_its_flow_that_no_claim_has_seen() {
    let redis = RedisServer::start().await;
    let (server, attempts) = endpoint(Duration::ZERO, |_, _| "204 No Content");
    let flow = json!({ "key": "{header:tenant}", "ordered": true });
    let punctual = Punctual::start(&configuration(&redis, &server, &flow)).await;
    let client = Client::of(&punctual);
    client.call("POST", "/v1/routes/hooks/pause", "").await;
    schedule(&client, "one", 2).await;
    for (id, tenant) in [("later", "one"), ("other", "two")] {
        let headers = json!({ "tenant": tenant });
        let message = json!({ "id": id, "payload": 1, "delay": "1h", "headers": headers });
        client.schedule("hooks", &message.to_string()).await;
    }
    let deliver = async |id: &str| client.call("POST", &format!("/v1/routes/hooks/messages/{id}/deliver"), "").await;
    for held in ["later", "one.1"] {
        let answer = deliver(held).await;
        assert!(answer.status == 409 && answer.text.contains("`one.0`"), "{}", answer.text);
    }
    for first in ["one.0", "other"] {
        assert_eq!(deliver(first).await.status, 200);
    }
    client.call("POST", "/v1/routes/hooks/resume", "").await;
    eventually("it is the first one", MAX_WAIT, async || (deliver("later").await.status == 200).then_some(())).await;
    eventually("four arrived", MAX_WAIT, async || (attempts.confirmed() == 4).then_some(())).await;
    let order: Vec<String> = attempts.all().iter().map(|one| one.id.clone()).filter(|id| id != "other").collect();
    assert_eq!(order, ["one.0", "one.1", "later"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_ordered_flows_keep_their_order_while_instances_are_killed_in_turn() {
    let _turn = heavy().await;
    let (keys, each, instances, pause) = rounds((40, 20, 2, 300), (1000, 50, 4, 3000));
    let redis = RedisServer::start().await;
    // The endpoint fails one attempt of ten. Some messages always fail: they become dead letters.
    let answer = |id: &str, earlier: usize| {
        let (tenant, n) = numbers(id);
        let fails = earlier == 0 && (tenant + n).is_multiple_of(10);
        if fails || is_refused(tenant, n) { "500 No" } else { "204 No Content" }
    };
    let (server, attempts) = endpoint(Duration::from_millis(2), answer);
    let flow = json!({ "key": "{header:tenant}", "ordered": true });
    let mut group = Instances::start(configuration(&redis, &server, &flow), instances).await;
    let client = group.client();
    client.call("POST", "/v1/routes/hooks/pause", "").await;
    for tenant in 0..keys {
        schedule(&client, &format!("t{tenant}"), each).await;
    }
    let began = Instant::now();
    client.call("POST", "/v1/routes/hooks/resume", "").await;
    let all = (0..keys).flat_map(|tenant| (0..each).map(move |n| (tenant, n)));
    let (refused, expected): (Vec<_>, Vec<_>) = all.partition(|(tenant, n)| is_refused(*tenant, *n));
    let limit = seconds(60, 500);
    let enough = expected.len();
    group.kill_until(Duration::from_millis(pause), limit, || attempts.confirmed() >= enough).await;
    let stats = group.client().drained("hooks", MAX_WAIT).await;
    let took = began.elapsed();
    assert_eq!(stats["dead"], refused.len(), "{stats}");
    let (mut seen, mut first) = (HashSet::new(), HashMap::<usize, Vec<usize>>::new());
    let all = attempts.all();
    for one in all.iter().filter(|one| one.confirmed) {
        let (tenant, n) = numbers(&one.id);
        if seen.insert((tenant, n)) {
            first.entry(tenant).or_default().push(n);
        }
    }
    assert_eq!(seen.len(), expected.len(), "each was delivered");
    let violations = first.values().flat_map(|of| of.windows(2)).filter(|pair| pair[0] > pair[1]).count();
    println!(
        "flows: {keys} ordered keys x {each}: {violations} violations, {} kills, {} attempts, {} dead, {took:?}",
        group.kills,
        all.len(),
        refused.len(),
    );
    assert_eq!(violations, 0);
    assert!(group.kills > 0, "no instance was killed within {took:?}");
}

/// Numbers of tenant and message in an id.
fn numbers(id: &str) -> (usize, usize) {
    let (tenant, n) = id.split_once('.').expect("two parts");
    (tenant[1..].parse().expect("a number"), n.parse().expect("a number"))
}

/// Whether the endpoint refuses a message each time.
fn is_refused(tenant: usize, n: usize) -> bool {
    n == 7 && tenant.is_multiple_of(20)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_never_has_more_in_flight_than_it_may_while_instances_are_killed_in_turn() {
    const PARALLEL: usize = 3;
    const HOLD: Duration = Duration::from_millis(100);
    let _turn = heavy().await;
    let (keys, length, instances, pause) = rounds((5, 6, 2, 2000), (10, 300, 4, 10_000));
    // As many as leave in that time if no instance is killed.
    let each = length * 1000 / 100 * PARALLEL;
    let redis = RedisServer::start().await;
    let (server, attempts) = endpoint(HOLD, |_, _| "204 No Content");
    let flow = json!({ "key": "{header:tenant}", "parallel": PARALLEL });
    let mut group = Instances::start(configuration(&redis, &server, &flow), instances).await;
    for tenant in 0..keys {
        schedule(&group.client(), &format!("t{tenant}"), each).await;
    }
    let began = Instant::now();
    let limit = seconds(60, 560);
    group.kill_until(Duration::from_millis(pause), limit, || attempts.confirmed() >= keys * each).await;
    group.client().drained("hooks", MAX_WAIT).await;
    let took = began.elapsed();
    let all = attempts.all();
    let delivered: HashSet<&str> = all.iter().filter(|one| one.confirmed).map(|one| &*one.id).collect();
    assert_eq!(delivered.len(), keys * each, "each was delivered");
    let mut most = 0;
    let mut open: HashMap<&str, Vec<Instant>> = HashMap::new();
    for one in &all {
        let ends = open.entry(&one.tenant).or_default();
        ends.retain(|end| *end > one.began);
        ends.push(one.ended.unwrap_or(one.began + HOLD));
        most = most.max(ends.len());
    }
    println!(
        "flows: parallel {PARALLEL} of {keys} keys over {instances} instances: at most {most} at once, {} kills, {} \
         attempts of {} messages, {took:?}",
        group.kills,
        all.len(),
        keys * each
    );
    assert!(most <= PARALLEL, "{most} at once");
    assert!(group.kills > 0, "no instance was killed within {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_and_steers_each_flow() {
    let redis = RedisServer::start().await;
    let (server, attempts) = endpoint(Duration::ZERO, |id, earlier| match id {
        "asked.0" if earlier == 0 => "429 Wait\r\nretry-after: 1",
        _ => "204 No Content",
    });
    let flow = json!({ "key": "{header:tenant}", "rate": "1/h" });
    let punctual = Punctual::start(&configuration(&redis, &server, &flow)).await;
    let client = Client::of(&punctual);
    schedule(&client, "big", 4).await;
    eventually("one arrived", MAX_WAIT, async || (attempts.confirmed() == 1).then_some(())).await;
    let state = eventually("three wait", MAX_WAIT, async || {
        let state = client.call("GET", "/v1/routes/hooks/flows/big", "").await.json;
        (state["waiting"] == 3).then_some(state)
    })
    .await;
    assert_eq!((&state["waits_for"], &state["rate"], &state["paused"]), (&"rate".into(), &"1/h".into(), &false.into()));
    assert!(state["next_slot"].is_string(), "{state}");
    let listed = client.call("GET", "/v1/routes/hooks/flows", "").await.json;
    assert_eq!(listed["flows"][0]["key"], "big", "{listed}");
    let numbers = client.stats("hooks").await;
    assert_eq!((&numbers["due"], &numbers["waiting_for_flow"], &numbers["pending"]), (&0.into(), &3.into(), &3.into()));
    assert_eq!(numbers["oldest_overdue_seconds"], 0.0, "an alert would fire: {numbers}");
    let waiting = client.call("GET", "/v1/routes/hooks/messages/big.3", "").await.json;
    assert_eq!((&waiting["waits_for"], &waiting["flow"]), (&"flow".into(), &"big".into()), "{waiting}");

    // It takes no slot, and the others keep waiting.
    assert_eq!(client.call("POST", "/v1/routes/hooks/messages/big.3/deliver", "").await.status, 200);
    eventually("two arrived", MAX_WAIT, async || (attempts.confirmed() == 2).then_some(())).await;
    assert_eq!(attempts.all()[1].id, "big.3");
    // A cancelled one leaves its place to none.
    assert_eq!(client.call("DELETE", "/v1/routes/hooks/messages/big.1", "").await.status, 204);
    let paused = client.call("POST", "/v1/routes/hooks/flows/big/pause", r#"{"note":"a storm"}"#).await;
    assert_eq!(paused.status, 204);
    let changed = client.call("PATCH", "/v1/routes/hooks/flows/big", r#"{"rate":"100/s"}"#).await.json;
    assert_eq!((&changed["waits_for"], &changed["note"]), (&"paused".into(), &"a storm".into()), "{changed}");
    assert_eq!((&changed["rate"], &changed["overrides"]["rate"]), (&"100/s".into(), &"100/s".into()));
    assert_eq!(attempts.confirmed(), 2);
    assert_eq!(client.call("POST", "/v1/routes/hooks/flows/big/resume", "").await.status, 204);
    eventually("three arrived", MAX_WAIT, async || (attempts.confirmed() == 3).then_some(())).await;
    client.call("PATCH", "/v1/routes/hooks/flows/big", r#"{"rate":null}"#).await;

    // An endpoint asks a flow to wait: others do not.
    let sent = Instant::now();
    schedule(&client, "asked", 1).await;
    schedule(&client, "other", 1).await;
    eventually("five arrived", MAX_WAIT, async || (attempts.confirmed() == 4).then_some(())).await;
    assert!(sent.elapsed() < Duration::from_millis(900), "the other flow waited {:?}", sent.elapsed());
    assert_eq!(client.sink("hook").await["breaker"], "closed");
    for (path, body, status) in [
        ("/v1/routes/hooks/flows/big", r#"{"rate":"0/s"}"#, 422),
        ("/v1/routes/hooks/flows/big", r#"{"burst":0,"parallel":0}"#, 422),
        ("/v1/routes/hooks/flows/big", "{}", 422),
        ("/v1/routes/hooks/flows/big", r#"{"speed":1}"#, 400),
        ("/v1/routes/hooks/flows/a%20b", r#"{"rate":"1/s"}"#, 400),
    ] {
        assert_eq!(client.call("PATCH", path, body).await.status, status, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_without_its_flow_delivers_what_waited_and_keeps_nothing_of_it() {
    let redis = RedisServer::start().await;
    let (server, attempts) = endpoint(Duration::ZERO, |_, _| "204 No Content");
    let text = configuration(&redis, &server, &json!({ "key": "{header:tenant}", "rate": "1/h" }));
    let mut before = Punctual::start(&text).await;
    let client = Client::of(&before);
    schedule(&client, "a", 5).await;
    eventually("four wait", MAX_WAIT, async || (client.stats("hooks").await["waiting_for_flow"] == 4).then_some(()))
        .await;
    before.terminate().await;
    let mut plain: Value = serde_json::from_str(&text).expect("JSON");
    plain["routes"]["hooks"].as_object_mut().expect("a route").remove("flow");
    let after = Punctual::start(&plain.to_string()).await;
    eventually("all arrived", MAX_WAIT, async || (attempts.confirmed() == 5).then_some(())).await;
    Client::of(&after).drained("hooks", MAX_WAIT).await;
    let mut connection = redis.connection().await;
    let names = ["flows", "waiting", "flights", "gates", "slots", "rules"];
    let keys = names.map(|name| format!("{{punctual:hooks:0/1}}:{name}"));
    let left: u32 = redis::cmd("EXISTS").arg(&keys).query_async(&mut connection).await.expect("a number");
    assert_eq!(left, 0);
}
