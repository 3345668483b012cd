//! Servers that take TLS alone and are named by their host, as managed services have them.

use std::time::Duration;

use serde_json::json;

use super::{OLD, PARTITIONS, Partition};
use crate::{
    program::{client::Client, eventually, failover::load::configuration, heavy},
    support::{Authority, cluster::ClusterRedis, command::Workplace, punctual::Punctual, receiver::Receiver},
};

const MAX_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_take_tls_only_and_are_named_by_their_host_are_followed() {
    let _turn = heavy().await;
    let (authority, other) = (Authority::new(), Authority::new());
    let (mut redis, receiver) = (ClusterRedis::start_encrypted(&authority).await, Receiver::start());
    let partitions = Partition::of_web(&redis).await;
    let configured = |trusted: &Authority| {
        let file = |name| authority.file(name).display().to_string();
        let (ca, cert, key) = (trusted.file("ca.pem"), file("client.pem"), file("client.key"));
        let tls = format!("tls: {{ ca_file: '{}', cert_file: '{cert}', key_file: '{key}' }}", ca.display());
        let setting = format!("{}, {tls}", redis.setting());
        configuration(&setting, &format!(", partitions: {PARTITIONS}"), &receiver)
    };
    let checked = Workplace::with(&configured(&other)).run(&["check", "--connect"]).await;
    let is_untrusted = checked.out.contains("invalid peer certificate");
    assert!(checked.code == Some(1) && is_untrusted, "{checked:?}");

    let punctual = Punctual::start(&configured(&authority)).await;
    let client = Client::of(&punctual);
    let mut sent = 0;
    let mut all_deliver = async |prefix: &str| {
        for partition in &partitions {
            let id = partition.an_id(prefix);
            eventually("a message is accepted", MAX_WAIT, async || {
                let message = json!({ "id": id, "payload": "", "delay": "300ms" }).to_string();
                client.try_post("web", message).await.filter(|status| *status < 300)
            })
            .await;
            sent += 1;
        }
        receiver.wait_for(sent, MAX_WAIT).await;
    };
    all_deliver("begin").await;
    let moved = partitions.iter().find(|one| one.primary == OLD).expect("each primary has one");
    redis.move_slots(moved.slot..=moved.slot, OLD + 1).await;
    all_deliver("moved").await;
    redis.kill(OLD);
    all_deliver("killed").await;
}
