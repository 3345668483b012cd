//! A change that makes the head of a partition earlier wakes that partition, and no other change does.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use punctual::store::{Bell, Partition, Ring, redis::WakeListener};
use tokio::time::{Instant, timeout};

use super::{
    bench::Bench,
    rows::{PREFIX, key},
    scene::{ROUTE, SCENES, partition},
};
use crate::support::proxy::{Mode, Proxy};

/// Scenes that put something in front of the earliest pending message, or let it be claimed.
const RINGING: [&str; 5] = ["release", "resume", "schedule", "settle in every way", "produce"];
/// Those that only do so where nothing earlier is pending.
const RINGING_ALONE: [&str; 11] = [
    "defer",
    "recover",
    "retry",
    "redrive all",
    "redrive some",
    "reschedule",
    "produce in place of a pending one",
    "produce in place of a dead one",
    "take from a delayqueue",
    "take hashes",
    "take members",
];

#[tokio::test]
async fn a_scene_publishes_exactly_when_the_head_becomes_earlier() {
    let mut bench = Bench::start().await;
    let client = redis::Client::open(bench.server.url()).expect("a valid URL");
    let mut subscription = client.get_async_pubsub().await.expect("the server answers");
    subscription.psubscribe("*").await.expect("subscribed");
    let (mut commands, mut messages) = subscription.split();
    for alone in [false, true] {
        for (scene, _) in SCENES {
            bench.set(scene).await;
            if alone {
                bench.postpone_heads().await;
            }
            bench.act(scene).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
            let mut heard = Vec::new();
            // What was published before arrives before the answer.
            let () = commands.ping().await.expect("the subscription answers");
            while let Ok(Some(message)) = timeout(Duration::ZERO, messages.next()).await {
                heard.push(message.get_channel_name().to_owned());
            }
            let rings = RINGING.contains(&scene) || (alone && RINGING_ALONE.contains(&scene));
            let expected = if rings { vec![key(ROUTE, 0, "wake")] } else { Vec::new() };
            assert_eq!(heard, expected, "{scene}, alone: {alone}");
        }
    }
}

#[tokio::test]
async fn a_wake_up_reaches_its_own_partition_and_a_subscription_that_came_back() {
    let mut bench = Bench::start().await;
    let mut listener = WakeListener::new(redis::Client::open(bench.server.url()).expect("a valid URL"));
    let bell = listener.bell(PREFIX, &partition());
    let other = listener.bell(PREFIX, &Partition { route: "three".into(), number: 0 });
    let listening = tokio::spawn(listener.run());
    assert_eq!(heard(&bell).await, Ring::Resubscribe);
    assert_eq!(heard(&other).await, Ring::Resubscribe);
    assert!(bell.is_listening());

    bench.set("schedule").await;
    bench.act("schedule").await.expect("scheduled");
    assert_eq!(heard(&bell).await, Ring::Notify);

    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut bench.raw).await.expect("killed");
    for bell in [&bell, &other] {
        assert_eq!(heard(bell).await, Ring::Resubscribe, "the other partition's bell did not ring before");
    }
    listening.abort();
}

#[tokio::test]
async fn sources_wake_by_their_keys_and_one_without_rights_stops_no_other() {
    let mut bench = Bench::start_with(&["--appendonly", "no", "--notify-keyspace-events", "Kz"]).await;
    let limited = ["SETUSER", "limited", "on", ">secret", "~*", "+@all", "resetchannels", "&{p:*"];
    redis::cmd("ACL").arg(&limited).exec_async(&mut bench.raw).await.expect("a user");
    let port = bench.server.port();
    let users = [format!("redis://127.0.0.1:{port}/0"), format!("redis://limited:secret@127.0.0.1:{port}/0")];
    for (url, may) in users.into_iter().zip([true, false]) {
        let mut listener = WakeListener::new(redis::Client::open(url).expect("a valid URL"));
        let bell = listener.bell(PREFIX, &partition());
        let (changed, woken) = (Arc::<Bell>::default(), Arc::<Bell>::default());
        listener.ring_on(vec!["__keyspace@0__:theirs".into(), "__keyspace@0__:other".into()], &changed);
        listener.also_ring(PREFIX, &partition(), &woken);
        let listening = tokio::spawn(listener.run());
        assert_eq!((heard(&bell).await, heard(&woken).await), (Ring::Resubscribe, Ring::Resubscribe));
        if may {
            assert_eq!(heard(&changed).await, Ring::Resubscribe);
            for key in ["theirs", "other"] {
                redis::cmd("ZADD").arg(&[key, "1", "m"]).exec_async(&mut bench.raw).await.expect("added");
                assert_eq!(heard(&changed).await, Ring::Notify);
            }
        }
        bench.set("schedule").await;
        bench.act("schedule").await.expect("scheduled");
        assert_eq!((heard(&bell).await, heard(&woken).await), (Ring::Notify, Ring::Notify));
        assert_eq!((bell.is_listening(), changed.is_listening()), (true, may));
        listening.abort();
    }
}

#[tokio::test]
async fn a_silent_subscription_is_noticed_within_5_s_and_comes_back() {
    let mut bench = Bench::start().await;
    let proxy = Proxy::start(bench.server.port());
    let mut listener = WakeListener::new(redis::Client::open(proxy.redis_url()).expect("a valid URL"));
    let bell = listener.bell(PREFIX, &partition());
    let listening = tokio::spawn(listener.run());
    assert_eq!(heard(&bell).await, Ring::Resubscribe);
    proxy.set(Mode::BlackHole).await;
    let silent = Instant::now();
    let noticed = timeout(Duration::from_secs(8), bell.heard()).await;
    println!("wake: silence was noticed after {:?}", silent.elapsed());
    assert_eq!(noticed, Ok(Ring::Resubscribe));
    assert!(!bell.is_listening());
    assert!(silent.elapsed() <= Duration::from_millis(5500), "{:?}", silent.elapsed());

    proxy.set(Mode::Pass).await;
    assert_eq!(heard(&bell).await, Ring::Resubscribe);
    assert!(bell.is_listening());
    bench.set("schedule").await;
    bench.act("schedule").await.expect("scheduled");
    assert_eq!(heard(&bell).await, Ring::Notify);
    listening.abort();
}

async fn heard(bell: &Bell) -> Ring {
    timeout(Duration::from_secs(5), bell.heard()).await.expect("the bell rings")
}

impl Bench {
    /// Leaves nothing due: what is pending is pending for long.
    async fn postpone_heads(&mut self) {
        let mut pipe = redis::pipe();
        for id in ["due", "failed", "suspect", "orphan"] {
            pipe.cmd("ZADD").arg(key(ROUTE, 0, "pending")).arg("XX").arg(1_u64 << 52).arg(id).ignore();
        }
        pipe.exec_async(&mut self.raw).await.expect("written");
    }
}
