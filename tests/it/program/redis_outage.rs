//! The queues' Redis goes down and comes back.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::{client::Client, eventually, heavy};
use crate::support::{
    RedisServer,
    cluster::ClusterRedis,
    punctual::Punctual,
    receiver::{Receiver, Request, wall_clock},
    sentinels::WatchedRedis,
};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const BACK_WITHIN: Duration = Duration::from_secs(2);
const DOWN: Duration = Duration::from_secs(2);

pub fn configuration(url: &str, receiver: &Receiver) -> String {
    format!(
        "redis: {{ url: '{url}' }}\nserver: {{ request_timeout: 2s }}\n\
         sinks: {{ hook: {{ type: http, url: '{}', timeout: 4s }} }}\n\
         routes: {{ web: {{ sink: hook, lease: 5s }} }}\n",
        receiver.url()
    )
}

#[derive(Default)]
pub struct Posts {
    accepted: Vec<String>,
    /// When the latest was accepted.
    pub latest: Option<Instant>,
    unavailable: usize,
    slowest_refusal: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_redis_comes_back_within_2_s_and_no_accepted_message_is_lost() {
    let _turn = heavy().await;
    let (mut redis, receiver) = (RedisServer::start_with(&["--appendfsync", "everysec"]).await, Receiver::start());
    let punctual = Punctual::start(&configuration(&redis.url(), &receiver)).await;
    let client = Client::of(&punctual);
    let (posts, stop) = (Arc::new(Mutex::new(Posts::default())), Arc::new(AtomicBool::new(false)));
    let posting = tokio::spawn(post(client.clone(), Arc::clone(&posts), Arc::clone(&stop)));

    receiver.wait_for(500, Duration::from_secs(20)).await;
    redis.kill();
    sleep(DOWN).await;
    assert_eq!(client.call("GET", "/livez", "").await.status, 200);
    assert_eq!(client.call("GET", "/readyz", "").await.status, 503);
    redis.restart().await;
    let (pong, pong_wall) = (Instant::now(), wall_clock());

    let accepted_after = eventually("a post is accepted again", Duration::from_secs(10), async || {
        posts.lock().unwrap().latest.filter(|at| *at > pong).map(|at| at - pong)
    })
    .await;
    let first_after = eventually("a message is delivered again", Duration::from_secs(10), async || {
        receiver.requests().iter().map(|request| request.arrived).find(|at| *at > pong_wall).map(|at| at - pong_wall)
    })
    .await;
    println!(
        "redis: after PONG, a post was accepted {accepted_after:?} and a message delivered {first_after} ms later"
    );
    sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::SeqCst);
    posting.await.unwrap();
    let stats = client.drained("web", Duration::from_secs(30)).await;
    assert_eq!(stats["dead"], 0);

    let posts = posts.lock().unwrap();
    let requests = receiver.requests();
    let delivered: HashSet<&str> = requests.iter().map(Request::id).collect();
    let lost: Vec<_> = posts.accepted.iter().filter(|id| !delivered.contains(id.as_str())).collect();
    println!(
        "redis: {} accepted, {} lost, {} duplicates; {} posts refused meanwhile, after {:?} at most",
        posts.accepted.len(),
        lost.len(),
        requests.len() - delivered.len(),
        posts.unavailable,
        posts.slowest_refusal
    );
    assert!(lost.is_empty(), "{lost:?}");
    assert!(posts.unavailable > 0, "the outage was seen");
    assert!(posts.slowest_refusal < REQUEST_TIMEOUT + Duration::from_millis(500));
    assert!(accepted_after <= BACK_WITHIN && first_after <= 2000);
    assert!(requests.iter().all(|request| request.attempt() == 1), "no attempt was burnt");
    assert_eq!(requests.len(), delivered.len(), "nothing but Redis failed, and it lost nothing");
    let log = punctual.log();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    // Another error of it is logged, too: a lost connection, then refused ones.
    assert!((1..=3).contains(&lines("redis cannot be used")), "{log}");
    assert!(lines("redis is usable again") == 1 && lines("waiting=") == 1, "{log}");
    let loud = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).count();
    println!("redis: {loud} warnings and errors");
    assert!(loud <= 6, "{log}");
}

/// Arrays of 20, one after another; whatever is not accepted is not repeated.
pub async fn post(client: Client, posts: Arc<Mutex<Posts>>, stop: Arc<AtomicBool>) {
    for round in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let ids: Vec<String> = (0..20).map(|n| format!("r{round}-{n}")).collect();
        let messages: Vec<String> =
            ids.iter().map(|id| format!(r#"{{"id":"{id}","delay":200,"payload":"{id}"}}"#)).collect();
        let started = Instant::now();
        let status = client.try_post("web", format!("[{}]", messages.join(","))).await;
        {
            let mut posts = posts.lock().unwrap();
            match status {
                Some(200) => {
                    posts.accepted.extend(ids);
                    posts.latest = Some(Instant::now());
                }
                Some(503) => {
                    posts.unavailable += 1;
                    posts.slowest_refusal = posts.slowest_refusal.max(started.elapsed());
                }
                other => panic!("answered {other:?}"),
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_back_empty_is_logged_and_used_again() {
    let (mut redis, receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = Punctual::start(&configuration(&redis.url(), &receiver)).await;
    let client = Client::of(&punctual);
    client.schedule("web", r#"{"id":"will-be-lost","delay":"1h","payload":""}"#).await;
    redis.restart_empty().await;
    eventually("the loss is counted", Duration::from_secs(5), async || {
        (client.metrics().await.sum("punctual_redis_errors_total", &["kind=\"emptied\""]) >= 1).then_some(())
    })
    .await;
    let log = punctual.log();
    assert!(log.lines().any(|line| line.contains("ERROR") && line.contains("redis has lost its data")), "{log}");
    let logged = log.matches("redis has lost its data").count();
    assert_eq!(logged, 1, "once: {log}");
    assert_eq!(client.call("GET", "/v1/routes/web/messages/will-be-lost", "").await.status, 404);
    client.schedule("web", r#"{"id":"after","delay":"100ms","payload":""}"#).await;
    let requests = receiver.wait_for(1, Duration::from_secs(5)).await;
    assert_eq!(requests[0].id(), "after");
    client.drained("web", Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_emptied_while_it_runs_is_logged_and_used_again() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = Punctual::start(&configuration(&redis.url(), &receiver)).await;
    let client = Client::of(&punctual);
    let emptied = async || client.metrics().await.sum("punctual_redis_errors_total", &["kind=\"emptied\""]);
    let flush = async || redis::cmd("FLUSHALL").exec_async(&mut redis.connection().await).await.expect("flushed");

    flush().await;
    client.schedule("web", r#"{"id":"after","delay":"100ms","payload":""}"#).await;
    assert_eq!(emptied().await, 1, "the post noticed");
    let requests = receiver.wait_for(1, Duration::from_secs(5)).await;
    assert_eq!(requests[0].id(), "after");

    flush().await;
    assert_eq!(client.readiness().await.status, 200);
    assert_eq!(emptied().await, 2, "the probe noticed");
    let known: Vec<String> =
        redis::cmd("HKEYS").arg("punctual:routes").query_async(&mut redis.connection().await).await.expect("a hash");
    assert_eq!(known, ["web"]);
    let log = punctual.log();
    assert_eq!(log.matches("redis has lost its data").count(), 2, "once each: {log}");

    redis::cmd("DEL").arg("{punctual:web:0/1}:route").exec_async(&mut redis.connection().await).await.expect("deleted");
    client.schedule("web", r#"{"id":"repaired","delay":"100ms","payload":""}"#).await;
    assert_eq!(emptied().await, 3, "a part of it, too");
    assert!(punctual.log().contains("redis has lost keys of a partition"), "{}", punctual.log());
    let requests = receiver.wait_for(2, Duration::from_secs(5)).await;
    assert_eq!(requests[1].id(), "repaired");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_stopped_calls_are_answered_and_nothing_comes_twice() {
    const STILL: Duration = Duration::from_secs(4);
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    // Commands time out while Redis is stopped, although Redis executes them later.
    let configuration = configuration(&redis.url(), &receiver).replace("redis: {", "redis: { timeout: 1s,");
    let punctual = Punctual::start(&configuration).await;
    let client = Client::of(&punctual);
    let (posts, stop) = (Arc::new(Mutex::new(Posts::default())), Arc::new(AtomicBool::new(false)));
    let posting = tokio::spawn(post(client.clone(), Arc::clone(&posts), Arc::clone(&stop)));
    receiver.wait_for(500, Duration::from_secs(20)).await;
    let process = Pid::from_raw(redis.pid().try_into().unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    sleep(STILL).await;
    kill_process(process, Signal::CONT).unwrap();
    let (back, back_wall) = (Instant::now(), wall_clock());
    let accepted_after = eventually("a post is accepted again", Duration::from_secs(10), async || {
        posts.lock().unwrap().latest.filter(|at| *at > back).map(|at| at - back)
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    posting.await.unwrap();
    let stats = client.drained("web", Duration::from_secs(30)).await;
    assert_eq!(stats["dead"], 0);
    let requests = receiver.requests();
    let first_after = requests.iter().find(|request| request.arrived >= back_wall).unwrap().arrived - back_wall;
    let delivered: HashSet<&str> = requests.iter().map(Request::id).collect();
    let posts = posts.lock().unwrap();
    println!(
        "redis: stood still {STILL:?}; refused after {:?} at most; then a post was accepted {accepted_after:?} and a \
         message delivered {first_after} ms later",
        posts.slowest_refusal
    );
    assert!(posts.accepted.iter().all(|id| delivered.contains(id.as_str())), "nothing accepted is lost");
    assert!(posts.unavailable > 0 && posts.slowest_refusal < REQUEST_TIMEOUT + Duration::from_millis(500));
    assert!(accepted_after <= BACK_WITHIN && first_after <= 2000);
    assert!(requests.iter().all(|request| request.attempt() == 1), "no attempt was burnt");
    assert_eq!(requests.len(), delivered.len(), "a claim without an answer is not sent, so nothing comes twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_starts_before_its_redis_becomes_ready_with_it() {
    let (mut redis, receiver) = (RedisServer::start().await, Receiver::start());
    redis.kill();
    let mut punctual = Punctual::spawn(&configuration(&redis.url(), &receiver), &[]);
    let client = Client::of(&punctual);
    eventually("it answers", Duration::from_secs(10), async || {
        let answer = client.try_post("web", r#"{"payload":""}"#.into()).await?;
        assert_eq!(answer, 503);
        Some(())
    })
    .await;
    assert_eq!(client.call("GET", "/livez", "").await.status, 200);
    assert_eq!(client.call("GET", "/readyz", "").await.status, 503);
    redis.restart().await;
    let pong = Instant::now();
    punctual.ready().await;
    println!("redis: ready {:?} after the PONG of a Redis that came later", pong.elapsed());
    assert!(pong.elapsed() <= BACK_WITHIN);
    client.schedule("web", r#"{"payload":"x"}"#).await;
    receiver.wait_for(1, Duration::from_secs(5)).await;
}

/// Posts to route `web`, due now, after all idle connections to `servers` were closed by them.
async fn post_after_idle_closes(punctual: &Punctual, servers: &[&RedisServer]) {
    let client = Client::of(punctual);
    client.schedule("web", r#"{"payload":"x"}"#).await;
    client.drained("web", Duration::from_secs(5)).await;
    let set_timeout = async |seconds: &str| {
        for server in servers {
            let mut raw = server.connection().await;
            redis::cmd("CONFIG").arg(&["SET", "timeout", seconds]).exec_async(&mut raw).await.expect("set");
        }
    };
    set_timeout("1").await;
    for server in servers {
        let mut raw = server.connection().await;
        eventually("idle connections are closed", Duration::from_secs(20), async || {
            let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut raw).await.expect("clients");
            // Without this one, subscriptions, replicas and what sentinels keep busy.
            let is_idle = |line: &&str| {
                let ours = line.contains(" flags=N ") && line.contains(" sub=0 ") && !line.contains(" name=sentinel");
                ours && !line.contains(" cmd=client")
            };
            (list.lines().filter(is_idle).count() == 0).then_some(())
        })
        .await;
    }
    set_timeout("0").await;
    let before = punctual.log();
    client.schedule("web", r#"{"payload":"x"}"#).await;
    client.drained("web", Duration::from_secs(5)).await;
    // It is prepared anew.
    assert_eq!(client.readiness().await.status, 200);
    let page = client.metrics().await;
    assert_eq!(page.sum("punctual_redis_errors_total", &[]), 0, "{}", punctual.log());
    let counted = |name| page.sum(name, &["route=\"web\""]);
    let counts = ["punctual_messages_delivered_total", "punctual_delivery_failures_total"].map(counted);
    assert_eq!(counts, [2, 0], "{}", punctual.log());
    let log = punctual.log();
    let complaints: Vec<&str> =
        log[before.len()..].lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_were_closed_while_idle_cost_no_call_and_no_log_line() {
    let (redis, other) = (RedisServer::start().await, RedisServer::start().await);
    let (sentinels, cluster) = (WatchedRedis::start(1), ClusterRedis::start());
    let (sentinels, cluster) = tokio::join!(sentinels, cluster);
    let start = async |place: String| {
        let list = format!("{{ type: redis_list, key: jobs, url: '{}' }}", other.url());
        Punctual::start(&format!(
            "redis: {{ {place} }}\nsinks: {{ jobs: {list} }}\nroutes: {{ web: {{ sink: jobs }} }}\n"
        ))
        .await
    };
    let single = async {
        let punctual = start(format!("url: '{}'", redis.url())).await;
        post_after_idle_closes(&punctual, &[&redis, &other]).await;
    };
    single.await;
    let watched = async {
        let punctual = start(sentinels.setting("")).await;
        post_after_idle_closes(&punctual, &[&sentinels.servers[sentinels.master().await]]).await;
    };
    let clustered = async {
        let punctual = start(cluster.setting()).await;
        let mut servers = Vec::new();
        for place in cluster.primaries().await {
            servers.push(cluster.server(place));
        }
        post_after_idle_closes(&punctual, &servers).await;
    };
    tokio::join!(watched, clustered);
}
