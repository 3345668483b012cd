//! A transition that makes the head earlier wakes the partition, and no other does.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use punctual::store::{Partition, WakeReason, WakeSignal, redis::WakeListener};
use tokio::time::{Instant, timeout};

use super::{
    bench::Bench,
    rows::{PREFIX, key},
    scene::{SCENES, partition, split},
};
use crate::support::{
    proxy::{Mode, Proxy},
    servers::redis_version,
};

/// Scenes that put something in front of the earliest pending message, or let it be claimed.
const WAKING: [&str; 8] =
    ["move", "release", "restore", "resume", "schedule", "settle in every way", "produce", "unpark"];
/// Those that only do so where nothing earlier is pending.
const WAKING_ALONE: [&str; 15] = [
    "move a message of a group",
    "set a schedule",
    "change a schedule",
    "transfer an occurrence",
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
            let (name, kind) = split(scene);
            let has_flows = ["flows", "ordered"].contains(&kind);
            let before = if has_flows { bench.rows(&partition()).await.next_look() } else { None };
            bench.act(scene).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
            let after = if has_flows { bench.rows(&partition()).await.next_look() } else { None };
            let mut received = Vec::new();
            // Messages that were published before arrive before the answer.
            let () = commands.ping().await.expect("the subscription answers");
            while let Ok(Some(message)) = timeout(Duration::ZERO, messages.next()).await {
                received.push(message.get_channel_name().to_owned());
            }
            let wakes = WAKING.contains(&name) || (alone && WAKING_ALONE.contains(&name));
            let place = if name == "move" { Partition { index: 1, count: 2, ..partition() } } else { partition() };
            let expected = if wakes { vec![key(&place, "wake")] } else { Vec::new() };
            if !has_flows {
                assert_eq!(received, expected, "{scene}, alone: {alone}");
            } else if after < before {
                // A time at which a flow is looked at can be before a head that became earlier.
                assert!(received.contains(&key(&partition(), "wake")), "{scene}, alone: {alone}");
            }
        }
    }
}

/// A server without shard channels gets an ordinary message.
#[tokio::test]
async fn a_wake_up_on_a_cluster_is_one_message_on_a_shard_channel() {
    let mut bench = Bench::start().await;
    bench.set("resume").await;
    let mut call = bench.record("resume", "pause").await;
    let has_shards = redis_version() >= (7, 0);
    for (suffix, expected) in [("", (0, 1)), (":swake", if has_shards { (1, 0) } else { (0, 1) })] {
        bench.set("resume").await;
        call.arguments[0] = format!("wakes{suffix}").into_bytes();
        redis::cmd("CONFIG").arg("RESETSTAT").exec_async(&mut bench.raw).await.expect("reset");
        let mut command = redis::cmd("EVAL");
        command.arg(&call.code).arg(call.keys.len()).arg(&call.keys);
        for argument in &call.arguments {
            command.arg(&argument[..]);
        }
        command.exec_async(&mut bench.raw).await.expect("resumed");
        let found = (bench.calls("spublish").await, bench.calls("publish").await);
        assert_eq!(found, expected, "{suffix}");
    }
}

#[tokio::test]
async fn a_signal_notifies_of_its_own_partition_and_of_a_new_subscription() {
    let mut bench = Bench::start().await;
    let listener = WakeListener::new(redis::Client::open(bench.server.url()).expect("a valid URL").into());
    let signal = listener.signal(PREFIX, &partition());
    let other = listener.signal(PREFIX, &Partition { route: "three".into(), index: 0, count: 3 });
    let listening = tokio::spawn(async move { listener.run().await });
    assert_eq!(notified(&signal).await, WakeReason::Subscription);
    assert_eq!(notified(&other).await, WakeReason::Subscription);
    assert!(signal.is_listening());

    bench.set("schedule").await;
    bench.act("schedule").await.expect("scheduled");
    assert_eq!(notified(&signal).await, WakeReason::HeadEarlier);

    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut bench.raw).await.expect("killed");
    for signal in [&signal, &other] {
        assert_eq!(
            notified(signal).await,
            WakeReason::Subscription,
            "the other partition's signal did not notify before"
        );
    }
    listening.abort();
}

#[tokio::test]
async fn signals_of_sources_follow_their_keys_if_the_user_may_subscribe_to_them() {
    let mut bench = Bench::start_with(&["--appendonly", "no", "--notify-keyspace-events", "Kz"]).await;
    let limited = ["SETUSER", "limited", "on", ">secret", "~*", "+@all", "resetchannels", "&{p:*"];
    redis::cmd("ACL").arg(&limited).exec_async(&mut bench.raw).await.expect("a user");
    let port = bench.server.port();
    let users = [format!("redis://127.0.0.1:{port}/0"), format!("redis://limited:secret@127.0.0.1:{port}/0")];
    for (url, may) in users.into_iter().zip([true, false]) {
        let listener = WakeListener::new(redis::Client::open(url).expect("a valid URL").into());
        let signal = listener.signal(PREFIX, &partition());
        let (changed, woken) = (Arc::<WakeSignal>::default(), Arc::<WakeSignal>::default());
        listener.notify_on(vec!["__keyspace@0__:theirs".into(), "__keyspace@0__:other".into()], &changed);
        listener.also_notify(PREFIX, &partition(), &woken);
        let listening = tokio::spawn(async move { listener.run().await });
        assert_eq!(
            (notified(&signal).await, notified(&woken).await),
            (WakeReason::Subscription, WakeReason::Subscription)
        );
        if may {
            assert_eq!(notified(&changed).await, WakeReason::Subscription);
            for key in ["theirs", "other"] {
                redis::cmd("ZADD").arg(&[key, "1", "m"]).exec_async(&mut bench.raw).await.expect("added");
                assert_eq!(notified(&changed).await, WakeReason::HeadEarlier);
            }
        }
        bench.set("schedule").await;
        bench.act("schedule").await.expect("scheduled");
        assert_eq!(
            (notified(&signal).await, notified(&woken).await),
            (WakeReason::HeadEarlier, WakeReason::HeadEarlier)
        );
        assert_eq!((signal.is_listening(), changed.is_listening()), (true, may));
        listening.abort();
    }
}

#[tokio::test]
async fn a_silent_subscription_is_noticed_within_five_seconds() {
    let mut bench = Bench::start().await;
    let proxy = Proxy::start(bench.server.port());
    let listener = WakeListener::new(redis::Client::open(proxy.redis_url()).expect("a valid URL").into());
    let signal = listener.signal(PREFIX, &partition());
    let listening = tokio::spawn(async move { listener.run().await });
    assert_eq!(notified(&signal).await, WakeReason::Subscription);
    proxy.set(Mode::BlackHole).await;
    let silent = Instant::now();
    let noticed = timeout(Duration::from_secs(8), signal.notified()).await;
    println!("wake: silence was noticed after {:?}", silent.elapsed());
    assert_eq!(noticed, Ok(WakeReason::Subscription));
    assert!(!signal.is_listening());
    assert!(silent.elapsed() <= Duration::from_millis(5500), "{:?}", silent.elapsed());

    proxy.set(Mode::Pass).await;
    assert_eq!(notified(&signal).await, WakeReason::Subscription);
    assert!(signal.is_listening());
    bench.set("schedule").await;
    bench.act("schedule").await.expect("scheduled");
    assert_eq!(notified(&signal).await, WakeReason::HeadEarlier);
    listening.abort();
}

async fn notified(signal: &WakeSignal) -> WakeReason {
    timeout(Duration::from_secs(5), signal.notified()).await.expect("the signal notifies")
}

impl Bench {
    /// Successful calls of a command since the statistics were reset.
    pub async fn calls(&mut self, command: &str) -> u64 {
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut self.raw).await.expect("the server answers");
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |line| line.split(',').next().expect("a number").parse().expect("a number"))
    }

    /// Leaves nothing due: what is pending is pending for long.
    async fn postpone_heads(&mut self) {
        let mut pipe = redis::pipe();
        for id in ["due", "failed", "suspect", "orphan"] {
            pipe.cmd("ZADD").arg(key(&partition(), "pending")).arg("XX").arg(1_u64 << 52).arg(id).ignore();
        }
        pipe.exec_async(&mut self.raw).await.expect("written");
    }
}
