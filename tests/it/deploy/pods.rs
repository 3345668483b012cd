//! The pods of `deploy/kubernetes/`, with their configuration: their probes, and a rolling update.

use std::{collections::BTreeSet, fmt::Write, fs, time::Duration};

use tempfile::TempDir;

use super::{
    kubernetes::{self, container},
    string, text,
};
use crate::{
    program::eventually,
    support::{
        Answer, RedisServer, answer, http,
        port::Port,
        punctual::Punctual,
        receiver::{Behaviour, Receiver, Request},
    },
};

const CONFIGURATION: &str = "deploy/kubernetes/punctual.yaml";
const TOKEN: &str = "0123456789abcdef";
const MAX_WAIT: Duration = Duration::from_secs(20);

struct Cluster {
    redis: RedisServer,
    receiver: Receiver,
    secrets: TempDir,
}

struct Pod {
    punctual: Punctual,
    health: Port,
}

impl Cluster {
    async fn start() -> Self {
        let (redis, receiver) = (RedisServer::start().await, Receiver::start());
        let secrets = tempfile::tempdir().expect("a directory");
        for (name, secret) in [("redis-url", &*redis.url()), ("token", TOKEN), ("metrics-token", "fedcba9876543210")] {
            fs::write(secrets.path().join(name), secret).expect("written");
        }
        Self { redis, receiver, secrets }
    }

    /// Ready. Only what a platform engineer edits differs, and addresses.
    async fn pod(&self) -> Pod {
        let health = Port::reserve();
        let mut configuration = text(CONFIGURATION);
        for (there, here) in [
            ("/run/secrets/punctual", self.secrets.path().display().to_string()),
            ("0.0.0.0:8081", health.address().to_string()),
            ("https://shop.example/due", self.receiver.url()),
        ] {
            assert!(configuration.contains(there), "{CONFIGURATION} has no {there}");
            configuration = configuration.replace(there, &here);
        }
        Pod { punctual: Punctual::start(&configuration).await, health }
    }
}

impl Pod {
    /// The status that a probe of the container gets.
    async fn probed(&self, probe: &str) -> u16 {
        let container = container();
        let path = string(&container[probe], "/httpGet/path");
        answer(http::client().get(format!("http://{}{path}", self.health.address()))).await.status
    }

    async fn call(&self, path: &str, body: Option<String>) -> Answer {
        let url = self.punctual.url(path);
        let request = match body {
            Some(body) => http::client().post(url).body(body),
            None => http::client().get(url),
        };
        let answer = answer(request.bearer_auth(TOKEN)).await;
        assert!(answer.status < 300, "{path}: {} {}", answer.status, answer.text);
        answer
    }

    /// `count` messages, one due each 10 ms.
    async fn schedule(&self, prefix: &str, count: usize) {
        let mut messages = String::from("[");
        for number in 0..count {
            let comma = if number > 0 { "," } else { "" };
            let delay = number * 10;
            write!(messages, r#"{comma}{{"id":"{prefix}-{number}","delay":"{delay}ms","payload":1}}"#)
                .expect("a string");
        }
        self.call("/v1/routes/order-timeout/messages", Some(messages + "]")).await;
    }

    async fn drained(&self) {
        eventually("the route is drained", MAX_WAIT, async || {
            let stats = self.call("/v1/routes/order-timeout", None).await.json;
            assert_eq!(stats["dead"], 0, "{stats}");
            (stats["pending"] == 0 && stats["unack"] == 0).then_some(())
        })
        .await;
    }

    /// Stops the pod as Kubernetes does after the pause before SIGTERM. The pod must end before SIGKILL.
    async fn stopped(mut self) {
        let grace = kubernetes::pod()["terminationGracePeriodSeconds"].as_u64().expect("a number");
        let pause = kubernetes::pause();
        let exit = self.punctual.terminate().await;
        assert_eq!(exit.code, Some(0), "{}", self.punctual.log());
        assert!(exit.took < Duration::from_secs(grace - pause), "SIGKILL would come before: {exit:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_down_makes_a_pod_unready_and_restarts_none() {
    let mut cluster = Cluster::start().await;
    let pod = cluster.pod().await;
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(pod.probed(probe).await, 200, "{probe}");
    }
    cluster.redis.kill();
    let readiness = async |status| (pod.probed("readinessProbe").await == status).then_some(());
    eventually("it is unready", MAX_WAIT, async || readiness(503).await).await;
    assert_eq!((pod.probed("startupProbe").await, pod.probed("livenessProbe").await), (200, 200));
    cluster.redis.restart().await;
    eventually("it is ready again", MAX_WAIT, async || readiness(200).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_update_loses_nothing_and_delivers_nothing_twice() {
    let cluster = Cluster::start().await;
    cluster.receiver.behave(Behaviour::Delay(Duration::from_millis(100)));
    let (first, second) = (cluster.pod().await, cluster.pod().await);
    first.schedule("a", 300).await;
    cluster.receiver.wait_for(20, MAX_WAIT).await;
    // maxSurge: the new one is ready before an old one stops.
    let third = cluster.pod().await;
    first.stopped().await;
    second.schedule("b", 300).await;
    let fourth = cluster.pod().await;
    second.stopped().await;
    third.schedule("c", 10).await;
    fourth.drained().await;
    let requests = cluster.receiver.requests();
    let ids: BTreeSet<&str> = requests.iter().map(Request::id).collect();
    assert_eq!((ids.len(), requests.len()), (610, 610));

    // An endpoint that hangs: what the pod has sent is delivered again, by the other one.
    cluster.receiver.behave(Behaviour::Hang);
    third.schedule("d", 10).await;
    cluster.receiver.wait_for(611, MAX_WAIT).await;
    third.stopped().await;
    cluster.receiver.behave(Behaviour::Status(200));
    fourth.drained().await;
    let requests = cluster.receiver.requests();
    let ids: BTreeSet<&str> = requests.iter().map(Request::id).collect();
    assert_eq!(ids.len(), 620);
}
