//! One partition of ten without a leader.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use punctual::sink::{Delivery, Outcome, Report, Sink};
use serde_json::json;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};

use super::sink;
use crate::{
    program::{client::Client, heavy, partial::post},
    support::{
        RedisServer, delivery,
        kafka::{self, Broker, Record},
        punctual::Punctual,
        receiver::wall_clock,
        reports,
        scale::rounds,
        send_one,
    },
};

/// Partition 0 is on the second broker, the others are on the first.
const NODES: [i32; 10] = [2, 1, 1, 1, 1, 1, 1, 1, 1, 1];
/// A broker on a busy machine is found after seconds.
const RECOVERY: Duration = Duration::from_mins(1);

/// Two brokers that the tests of this file use in sequence. They stop with the last test that holds or awaits them.
struct Cluster {
    first: Broker,
    second: Broker,
}

/// Both brokers, running, and the name of a topic that is new. `None`: the test cannot run.
async fn cluster() -> Option<(OwnedMutexGuard<Cluster>, String)> {
    static SHARED: Mutex<Weak<Mutex<Cluster>>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    let cluster = if let Some(cluster) = shared.upgrade() {
        cluster
    } else {
        let first = Broker::start().await?;
        let second = first.join(&[]).await;
        let cluster = Arc::new(Mutex::new(Cluster { first, second }));
        *shared = Arc::downgrade(&cluster);
        cluster
    };
    drop(shared);
    let mut cluster = cluster.lock_owned().await;
    cluster.second.ensure_running().await;
    let topic = kafka::topic_name();
    kafka::create_topic_on(&cluster.first.address(), &topic, &NODES).await;
    Some((cluster, topic))
}

fn keyed(id: &str, key: &str) -> Delivery {
    let mut delivery = delivery(id, "x");
    delivery.metadata.key = Some(key.to_owned());
    delivery
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn the_domain_is_the_partition_one_without_a_leader_is_unavailable_alone() {
    let Some((mut cluster, topic)) = cluster().await else { return };
    let Cluster { first, second } = &mut *cluster;
    let sink = sink(&first.address(), &topic, Duration::from_secs(5), &[]);
    let batch = |name: &str| (0..200).map(|n| keyed(&format!("{name}{n}"), &format!("k{n}"))).collect::<Vec<_>>();
    let before = reports(&sink, batch("before")).await;
    let domains: BTreeSet<_> = before.iter().map(|(domain, _)| domain.clone().expect("a partition")).collect();
    assert_eq!(domains.len(), 10, "{domains:?}");
    assert!(before.iter().all(|(_, outcome)| *outcome == Outcome::Confirmed), "{before:?}");
    let records = kafka::consume(&first.address(), &topic).await;
    let partitions: BTreeMap<&str, i32> = records.iter().map(|record| (record.id(), record.partition)).collect();
    for (n, (domain, _)) in before.iter().enumerate() {
        assert_eq!(domain.as_deref(), Some(&*format!("{topic}/{}", partitions[&*format!("before{n}")])));
    }

    let lost_domain = format!("{topic}/0");
    second.kill();
    kafka::until(&first.address(), &topic, 9).await;
    let during = reports(&sink, batch("during")).await;
    let mut lost = 0;
    for ((domain, outcome), (expected, _)) in during.iter().zip(&before) {
        assert_eq!(domain, expected);
        let is_lost = domain.as_deref() == Some(&*lost_domain);
        lost += usize::from(is_lost);
        assert_eq!(outcome.failure_kind(), is_lost.then_some("unavailable"), "{domain:?}: {outcome:?}");
    }
    assert!(lost > 5, "{lost}");
    // Once one has failed there, it is known beforehand which messages lead there.
    let known = async {
        while batch("x").iter().zip(&before).any(|(delivery, (domain, _))| sink.domain(delivery) != *domain) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), known).await.expect("the number of partitions is learned");
    let unkeyed = Delivery { metadata: punctual::message::Metadata::default(), ..delivery("unkeyed", "x") };
    assert_eq!(sink.domain(&unkeyed), None);

    second.restart().await;
    let deadline = Instant::now() + RECOVERY;
    while reports(&sink, batch("after")).await.iter().any(|(_, outcome)| *outcome != Outcome::Confirmed) {
        assert!(Instant::now() < deadline, "the partition is used again");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn records_that_time_out_in_one_partition_delay_no_confirm_of_the_others() {
    const TICK: Duration = Duration::from_millis(100);
    const PROMPT: Duration = Duration::from_secs(1);
    // Two or three times as long as a record waits for a leader.
    let ticks_in_all = rounds(70, 120);
    let Some((mut cluster, topic)) = cluster().await else { return };
    let Cluster { first, second } = &mut *cluster;
    let sink = Arc::new(sink(&first.address(), &topic, Duration::from_secs(4), &[]));
    // A new cluster takes a while until it has an id for the producer.
    while send_one(&*sink).await != Outcome::Confirmed {}
    let (mut ticks, mut sending) = (interval(TICK), JoinSet::new());
    for tick in 0..ticks_in_all {
        ticks.tick().await;
        // Some records for it are in flight.
        if tick == 10 {
            second.kill();
        }
        let sink = Arc::clone(&sink);
        sending.spawn(async move {
            let batch = (0..20).map(|n| keyed(&format!("m{tick}-{n}"), &format!("k{}", tick * 20 + n))).collect();
            let (report, mut outcomes) = Report::channel();
            let started = Instant::now();
            let watching = async {
                let mut times = Vec::new();
                while let Some(reported) = outcomes.recv().await {
                    times.push((reported.domain, reported.outcome, started.elapsed()));
                }
                times
            };
            tokio::join!(sink.send(batch, report), watching).1
        });
    }
    let all: Vec<_> = sending.join_all().await.into_iter().flatten().collect();
    let lost_domain = format!("{topic}/0");
    let (lost, others): (Vec<_>, Vec<_>) =
        all.iter().partition(|(domain, ..)| domain.as_deref() == Some(&*lost_domain));
    let failed = lost.iter().filter(|(_, outcome, _)| outcome.failure_kind() == Some("unavailable")).count();
    let slowest = others.iter().map(|(.., took)| *took).max().expect("some");
    let slow = others.iter().filter(|(.., took)| *took > PROMPT).count();
    println!(
        "kafka: {failed} records without a leader; of {} others {slow} after {PROMPT:?}, slowest {slowest:?}",
        others.len()
    );
    assert!(failed > 50, "{failed}");
    let refused = others.iter().filter(|(_, outcome, _)| *outcome != Outcome::Confirmed).count();
    assert_eq!(refused, 0, "of {}", others.len());
    assert!(slow * 100 <= others.len(), "{slow} of {}", others.len());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn one_partition_without_a_leader_delays_no_other_and_kills_no_message() {
    const RATE: u64 = 100;
    // When the second broker is killed, and when it is started again, after the first message is due. Each outage is
    // some times as long as a record waits for a leader.
    let (length, (from, to), max_wait) = rounds((14, (2, 12), "3s"), (40, (3, 35), "10s"));
    let _turn = heavy().await;
    let Some((mut cluster, topic)) = cluster().await else { return };
    let Cluster { first, second } = &mut *cluster;
    let redis = RedisServer::start().await;
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "topic": { "type": "kafka", "brokers": [first.address()], "topic": topic, "timeout": max_wait } },
        "routes": { "r": { "sink": "topic" } },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    let start = post(&client, RATE * length, RATE, |n| json!({ "key": format!("k{n}") })).await;
    let until = async |seconds: u64| {
        sleep(Duration::from_millis((start + seconds * 1000).saturating_sub(wall_clock()))).await;
        wall_clock()
    };
    until(from).await;
    second.kill();
    kafka::until(&first.address(), &topic, 9).await;
    let down = wall_clock();
    let back = until(to).await;
    let records_during = kafka::count_of(&first.address(), &topic, 1..10).await;
    second.restart().await;
    let stats = client.drained("r", 2 * RECOVERY).await;
    assert_eq!(stats["dead"], 0, "{stats}");

    let records = kafka::consume(&first.address(), &topic).await;
    let due = |record: &Record| record.header("punctual-due").parse::<u64>().expect("a number");
    let lateness = |record: &Record| u64::try_from(record.timestamp).expect("after 1970").saturating_sub(due(record));
    let others: Vec<u64> = records
        .iter()
        .filter(|record| record.partition != 0 && (down..back).contains(&due(record)))
        .map(lateness)
        .collect();
    let in_time = others.iter().filter(|lateness| **lateness <= 2000).count();
    println!(
        "kafka: one of ten partitions without a leader for {} s: {records_during} records in the others by its end, {in_time} of {} \
         due meanwhile within 2 s",
        (back - down) / 1000,
        others.len()
    );
    let ids: BTreeSet<&str> = records.iter().map(Record::id).collect();
    assert_eq!(ids.len() as u64, RATE * length, "none is lost");
    assert!(records.iter().all(|record| record.header("punctual-attempt") == "1"), "no attempt was burnt");
    assert!(in_time * 10 >= others.len() * 9, "{in_time} of {}", others.len());
}
