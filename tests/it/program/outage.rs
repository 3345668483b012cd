use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, interval, sleep},
};

use super::{client::Client, eventually, heavy, metrics_page::MetricsPage, p99};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request, wall_clock},
    scale::seconds,
};

/// Time of flow before and after the outage.
const CALM: Duration = Duration::from_secs(3);
/// Messages of each route in each `TICK`.
const ARRAY: usize = 10;
const TICK: Duration = Duration::from_millis(100);
/// Time of a message at the endpoint after it came back: a round of the slow start.
const ROUND_MS: u64 = 100;
/// How much later the other route's messages may be during the outage on a busy machine, in ms; the printed numbers
/// are the ones that count.
const OTHER_LATER: u64 = 150;

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_down_costs_no_message_no_attempt_no_other_route() {
    let _turn = heavy().await;
    let redis = RedisServer::start().await;
    let (mut failing, healthy) = (Receiver::start(), Receiver::start());
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}' }}\n\
         sinks: {{ down: {{ type: http, url: '{}', timeout: 2s }}, up: {{ type: http, url: '{}' }} }}\n\
         routes: {{ failing: {{ sink: down, retry: {{ max_attempts: 1 }} }}, healthy: {{ sink: up }} }}\n",
        redis.url(),
        failing.url(),
        healthy.url()
    ))
    .await;
    let client = Client::of(&punctual);
    let stop = Arc::new(AtomicBool::new(false));
    let posting = post(client.clone(), Arc::clone(&stop));

    sleep(CALM).await;
    let went_down = wall_clock();
    failing.refuse();
    eventually("the breaker opens", Duration::from_secs(2), async || {
        (client.sink("down").await["breaker"] != "closed").then_some(())
    })
    .await;
    let refused_before = refused(&client.metrics().await);
    // Probes come once a second, and the backlog exceeds what is in flight, after eight seconds as after thirty.
    let outage = Instant::now();
    sleep(seconds(8, 30)).await;
    let metrics = client.metrics().await;
    let probes = refused(&metrics) - refused_before;
    let took = outage.elapsed().as_secs();
    println!("outage: {probes} probes in {took} s");
    assert!(probes <= took + 2 && probes >= took / 2, "{probes} probes in {took:.1} s: one a second");
    assert!(metrics.sum("punctual_sink_breaker_state", &["sink=\"down\""]) >= 1);
    assert_eq!(metrics.sum("punctual_sink_breaker_state", &["sink=\"up\""]), 0);
    let shown = client.sink("down").await;
    assert!(shown["last_error"].as_str().is_some_and(|error| !error.is_empty()), "{shown}");
    assert!(shown["in_flight"].as_u64().unwrap() <= 1, "a probe at most: {shown}");
    let backlog = client.stats("failing").await["due"].as_u64().unwrap();

    failing.behave(Behaviour::Delay(Duration::from_millis(ROUND_MS)));
    let (before_back, back, back_at) = (failing.count(), wall_clock(), Instant::now());
    failing.listen();
    failing.wait_for(before_back + 1, Duration::from_secs(3)).await;
    println!("outage: {backlog} due when it came back, the first left {:?} later", back_at.elapsed());
    assert!(backlog > 500, "the outage held up many: {backlog}");
    sleep(CALM).await;
    stop.store(true, Ordering::SeqCst);
    let posted = posting.await.unwrap();
    for route in ["failing", "healthy"] {
        let stats = client.drained(route, Duration::from_secs(30)).await;
        let dead = client.call("GET", &format!("/v1/routes/{route}/messages?state=dead&limit=1"), "").await.text;
        assert_eq!(stats["dead"], 0, "{route}: {dead}");
    }

    let requests = failing.requests();
    assert!(requests.iter().all(|request| request.attempt() == 1), "no attempt was burnt");
    let mut ids: Vec<&str> = requests.iter().map(Request::id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), posted, "all delivered");
    // The endpoint may have taken messages that were under way when it closed its connections.
    println!("outage: {} duplicates", requests.len() - posted);
    assert_eq!(healthy.count(), posted);

    let after: Vec<u64> =
        requests[before_back..].iter().map(|request| request.arrived - requests[before_back].arrived).collect();
    let per_round: Vec<usize> = (0..8)
        .map(|round| after.iter().filter(|at| (round * ROUND_MS..(round + 1) * ROUND_MS).contains(*at)).count())
        .collect();
    println!("outage: slow start, arrivals per {ROUND_MS} ms: {per_round:?}");
    assert!(per_round[0] <= 2, "the probe alone: {per_round:?}");
    assert!(per_round[1] <= 20, "about ten at first: {per_round:?}");
    assert!(per_round[..3].iter().sum::<usize>() <= 70, "it grows by doubling: {per_round:?}");
    let metrics = client.metrics().await;
    assert_eq!(metrics.sum("punctual_sink_breaker_state", &[]), 0, "closed again");
    assert_eq!(client.sink("down").await["breaker"], "closed");
    let delivered = |route: &str| metrics.sum("punctual_messages_delivered_total", &[&format!("route=\"{route}\"")]);
    assert_eq!((delivered("failing"), delivered("healthy")), (posted as u64, posted as u64));
    assert_eq!(metrics.sum("punctual_messages_retried_total", &[]), 0);

    let lateness = |from: u64, to: u64| {
        let there = healthy.requests().into_iter().filter(|request| (from..to).contains(&request.arrived));
        p99(there.map(|request| request.arrived - request.due()).collect())
    };
    let (before, during) = (lateness(0, went_down), lateness(went_down, back));
    println!("outage: p99 lateness of the other route {before} ms before, {during} ms during");
    assert!(during <= before + OTHER_LATER, "{during} ms, before the outage {before} ms");
}

fn refused(metrics: &MetricsPage) -> u64 {
    metrics.sum("punctual_delivery_failures_total", &["sink=\"down\""])
}

/// Posts the same to both routes, evenly, until `stop` is set; the number of each.
fn post(client: Client, stop: Arc<AtomicBool>) -> JoinHandle<usize> {
    tokio::spawn(async move {
        let mut ticks = interval(TICK);
        let mut posted = 0;
        while !stop.load(Ordering::SeqCst) {
            ticks.tick().await;
            let messages: Vec<String> = (posted..posted + ARRAY)
                .map(|n| format!(r#"{{"id":"m{n}","delay":{},"payload":"{n}"}}"#, 100 + n % ARRAY * 10))
                .collect();
            let body = format!("[{}]", messages.join(","));
            tokio::join!(client.schedule("failing", &body), client.schedule("healthy", &body));
            posted += ARRAY;
        }
        posted
    })
}
