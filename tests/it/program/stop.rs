use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::AsyncCommands;
use rustix::process::{Signal, kill_process};
use tokio::time::sleep;

use super::{client::Client, eventually, heavy};
use crate::support::{
    RedisServer,
    proxy::{Mode, Proxy},
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request},
};

const MAX_IN_FLIGHT: usize = 200;

fn configuration(redis: &RedisServer, receiver: &Receiver) -> String {
    format!(
        "redis: {{ url: '{}' }}\nshutdown_timeout: 3s\n\
         sinks: {{ hook: {{ type: http, url: '{}', timeout: 4s }} }}\n\
         routes: {{ web: {{ sink: hook, lease: 5s, max_in_flight: {MAX_IN_FLIGHT} }} }}\n",
        redis.url(),
        receiver.url()
    )
}

fn array(prefix: &str, count: usize) -> String {
    let messages: Vec<String> = (0..count).map(|n| format!(r#"{{"id":"{prefix}-{n}","payload":"{n}"}}"#)).collect();
    format!("[{}]", messages.join(","))
}

async fn count(redis: &RedisServer, set: &str) -> usize {
    redis.connection().await.zcard(format!("{{punctual:web:0/1}}:{set}")).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_ends_with_exit_0_and_without_a_duplicate() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Delay(Duration::from_millis(100)));
    let mut punctual = Punctual::start(&configuration(&redis, &receiver)).await;

    let stop_posting = Arc::new(AtomicBool::new(false));
    let posting = tokio::spawn({
        let (client, stop) = (Client::of(&punctual), Arc::clone(&stop_posting));
        async move {
            let mut accepted = Vec::new();
            for round in 0.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                match client.try_post("web", array(&format!("r{round}"), 50)).await {
                    Some(200) => accepted.extend((0..50).map(|n| format!("r{round}-{n}"))),
                    // Stopping: nothing is promised for these.
                    _ => sleep(Duration::from_millis(20)).await,
                }
            }
            accepted
        }
    });
    receiver.wait_for(1000, Duration::from_secs(20)).await;
    let exit = punctual.terminate().await;
    println!("stop: under load: {:?} after {:?}", exit.code, exit.took);
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    assert!(exit.took < Duration::from_secs(5), "the endpoint takes 100 ms, so it need not take {:?}", exit.took);
    assert_eq!(count(&redis, "unack").await, 0, "what was claimed and not sent is visible again");
    assert!(count(&redis, "pending").await > 0, "it was stopped in the middle");
    stop_posting.store(true, Ordering::SeqCst);
    let accepted = posting.await.unwrap();

    punctual.restart().await;
    let stats = Client::of(&punctual).drained("web", Duration::from_mins(1)).await;
    assert_eq!(stats["dead"], 0);
    let requests = receiver.requests();
    let ids: HashSet<&str> = requests.iter().map(Request::id).collect();
    assert_eq!(ids.len(), requests.len(), "no duplicate");
    let lost: Vec<_> = accepted.iter().filter(|id| !ids.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "accepted and lost: {lost:?}");
    println!("stop: {} delivered in all, {} accepted while it ran first", ids.len(), accepted.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_slow_endpoint_holds_is_finished_and_the_rest_is_left_to_others() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Delay(Duration::from_secs(1)));
    let mut punctual = Punctual::start(&configuration(&redis, &receiver)).await;
    Client::of(&punctual).schedule("web", &array("m", 500)).await;
    receiver.wait_for(MAX_IN_FLIGHT, Duration::from_secs(10)).await;
    let exit = punctual.terminate().await;
    println!("stop: slow endpoint: {:?} after {:?}", exit.code, exit.took);
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    let sent = receiver.count();
    assert_eq!(count(&redis, "unack").await, 0);
    assert_eq!(count(&redis, "pending").await, 500 - sent, "what was sent was also finished");

    receiver.behave(Behaviour::Status(200));
    punctual.restart().await;
    Client::of(&punctual).drained("web", Duration::from_secs(20)).await;
    assert_eq!(receiver.count(), 500, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_but_not_sent_is_released() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let proxy = Proxy::start(redis.port());
    let configuration = configuration(&redis, &receiver).replace(&redis.url(), &proxy.redis_url());
    let mut punctual = Punctual::start(&configuration).await;
    // The reply to a claim is in transit when the signal comes.
    proxy.set(Mode::Delay(Duration::from_millis(400))).await;
    Client::of(&punctual).schedule("web", &array("m", 50)).await;
    eventually("all are claimed", Duration::from_secs(5), async || (count(&redis, "unack").await == 50).then_some(()))
        .await;
    let exit = punctual.terminate().await;
    println!("stop: claimed, not sent: {:?} after {:?}", exit.code, exit.took);
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    assert_eq!((count(&redis, "unack").await, count(&redis, "pending").await, receiver.count()), (0, 50, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_hangs_does_not_hold_up_the_stop() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Hang);
    let mut punctual = Punctual::start(&configuration(&redis, &receiver)).await;
    Client::of(&punctual).schedule("web", &array("m", 20)).await;
    receiver.wait_for(20, Duration::from_secs(5)).await;
    let exit = punctual.terminate().await;
    println!("stop: hanging endpoint: {:?} after {:?}", exit.code, exit.took);
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    assert!(exit.took < Duration::from_secs(4), "shutdown_timeout is 3 s, it took {:?}", exit.took);

    // Whether they were delivered is unknown: their leases bring them back, and no attempt is counted.
    receiver.behave(Behaviour::Status(200));
    punctual.restart().await;
    let stats = Client::of(&punctual).drained("web", Duration::from_secs(15)).await;
    assert_eq!(stats["dead"], 0);
    assert!(receiver.requests().iter().all(|request| request.attempt() == 1));
    assert_eq!(receiver.count(), 40);
}

async fn logs(punctual: &Punctual, text: &str) {
    eventually(text, Duration::from_secs(10), async || punctual.log().contains(text).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_waiting() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Hang);
    let configuration = configuration(&redis, &receiver)
        .replace("shutdown_timeout: 3s", "shutdown_timeout: 10m")
        .replace("timeout: 4s", "timeout: 5m")
        .replace("lease: 5s", "lease: 6m");
    let mut punctual = Punctual::start(&configuration).await;
    Client::of(&punctual).schedule("web", &array("m", 1)).await;
    receiver.wait_for(1, Duration::from_secs(5)).await;
    kill_process(punctual.pid(), Signal::TERM).unwrap();
    logs(&punctual, "stopping").await;
    let exit = punctual.terminate().await;
    println!("stop: signalled twice: {:?} after {:?}", exit.code, exit.took);
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    assert!(punctual.log().contains("told twice"), "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_redis_outlives_what_is_being_sent() {
    let _turn = heavy().await;
    let receiver = Receiver::start();
    receiver.behave(Behaviour::Hang);
    let mut punctual = Punctual::start(&format!(
        "redis: {{ url: embedded }}\nshutdown_timeout: 20s\n\
         sinks: {{ hook: {{ type: http, url: '{}', timeout: 1m }} }}\n\
         routes: {{ web: {{ sink: hook, lease: 2m }} }}\n",
        receiver.url()
    ))
    .await;
    Client::of(&punctual).schedule("web", &array("m", 5)).await;
    receiver.wait_for(5, Duration::from_secs(10)).await;
    kill_process(punctual.pid(), Signal::TERM).unwrap();
    logs(&punctual, "stopping").await;
    // Time for a mistake: what is answered now is to be acknowledged.
    sleep(Duration::from_millis(500)).await;
    receiver.behave(Behaviour::Status(200));
    assert_eq!(punctual.ended().await.code(), Some(0), "{}", punctual.log());
    punctual.restart().await;
    let stats = Client::of(&punctual).stats("web").await;
    assert_eq!((&stats["pending"], &stats["unack"]), (&0.into(), &0.into()), "{}", punctual.log());
    assert_eq!(receiver.count(), 5);
}
