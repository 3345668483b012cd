//! Commands of an idle instance on each primary.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use tokio::time::sleep;

use super::{PARTITIONS, Partition};
use crate::{
    program::{heavy, idle::commands},
    support::{
        cluster::ClusterRedis,
        punctual::Punctual,
        receiver::Receiver,
        scale::{rounds, seconds},
    },
};

const ROUTES: u32 = 10;

/// `max_sleep`, after which each partition is polled: in the long run the default of a cluster.
fn max_sleep() -> Duration {
    seconds(5, 90)
}

/// Time of the watch, and maximum number of commands that a primary with this number of partitions gets in it: in the
/// plain run a poll of each, and two others, in the long run one in two seconds.
fn bound(partitions: usize) -> (Duration, usize) {
    rounds((max_sleep(), partitions + 2), (Duration::from_secs(100), 50))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_instance_hardly_polls_any_primary() {
    let _turn = heavy().await;
    let (redis, receiver) = (ClusterRedis::start().await, Receiver::start());
    let names = (0..ROUTES).map(|n| format!("route-{n}"));
    let routes: Vec<String> =
        names.clone().map(|name| format!("{name}: {{ sink: hook, partitions: {PARTITIONS} }}")).collect();
    let _punctual = Punctual::start(&format!(
        "{}redis: {{ {} }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ {} }}\n",
        rounds(format!("max_sleep: {}s\n", max_sleep().as_secs()), String::new()),
        redis.setting(),
        receiver.url(),
        routes.join(", ")
    ))
    .await;
    let mut of_primaries: BTreeMap<usize, Vec<Partition>> = BTreeMap::new();
    for name in names {
        for partition in Partition::all(&redis, &name).await {
            of_primaries.entry(partition.primary).or_default().push(partition);
        }
    }
    // The work of the start is done after a second.
    sleep(Duration::from_secs(1)).await;
    let redis = &redis;
    let seen = of_primaries.iter().map(|(place, partitions)| async move {
        let (time, most) = bound(partitions.len());
        let commands = commands(redis.server(*place), time).await;
        let count = commands.len();
        println!("cluster: idle: primary {place} with {} partitions: {count} commands in {time:?}", partitions.len());
        (partitions, commands, most)
    });
    for (partitions, commands, most) in join_all(seen).await {
        assert!(commands.len() <= most, "{} commands: {commands:#?}", commands.len());
        for Partition { tag, .. } in partitions {
            let pending = format!("{tag}:pending");
            assert!(commands.iter().any(|line| line.contains(&pending)), "no poll of {pending}: {commands:#?}");
        }
    }
}
