//! Metrics and labels that alerts and the dashboard query are at `/metrics` of a running punctual.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    time::Duration,
};

use super::{alerts::alerts, dashboard::queries, promql::Query};
use crate::{
    program::{client::Client, eventually},
    support::{
        RabbitMq, RedisServer, kafka,
        punctual::Punctual,
        rabbitmq::durable,
        receiver::{Behaviour, Receiver},
    },
};

const MAX_WAIT: Duration = Duration::from_secs(20);

const OF_PROMETHEUS: [&str; 2] = ["ALERTS", "up"];
/// Labels that Prometheus adds to every series.
const ADDED: [&str; 3] = ["instance", "job", "namespace"];

/// The labels of each metric of a page.
fn labels(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').expect("a series and its value");
        for (name, labels) in Query::parse(series).metrics {
            found.entry(name).or_default().extend(labels);
        }
    }
    found
}

/// An instance with a sink and a source of each kind, and a schedule.
pub struct Scene {
    redis: RedisServer,
    receiver: Receiver,
    pub punctual: Punctual,
    client: Client,
    /// Routes, other than `web`.
    routes: Vec<&'static str>,
}

impl Scene {
    pub async fn start() -> Self {
        let (redis, receiver) = (RedisServer::start_with(&["--maxmemory", "1gb"]).await, Receiver::start());
        let rabbitmq = RabbitMq::shared().await;
        let amqp = format!("amqp://127.0.0.1:{}/%2f", rabbitmq.port());
        // Names that only this scene uses.
        let (out, taken) = (kafka::topic_name(), kafka::topic_name());
        for queue in [&out, &taken] {
            rabbitmq.declare_exchange(queue).await;
            rabbitmq.declare_queue(queue, queue, "k", durable()).await;
        }
        let mut sinks = format!(
            "sinks:\n  hook: {{ type: http, url: '{}' }}\n  jobs: {{ type: redis_list, key: jobs }}\n\
             \x20 queue: {{ type: rabbitmq, url: '{amqp}', exchange: '{out}', routing_key: k }}\n",
            receiver.url()
        );
        let mut configured =
            "routes:\n  web: { sink: hook, retry: { max_attempts: 2, initial: 10ms }, dead: { max_count: 10 }, limits: { messages: 1000, bytes: 1GiB } }\n\
                          \x20 list: { sink: jobs }\n  amqp: { sink: queue }\n  times: { sink: jobs }\n"
                .to_owned();
        let mut sources = format!(
            "sources:\n  set: {{ type: sorted_set, key: theirs, route: web }}\n  go: {{ type: delayqueue, name: q, route: web }}\n\
             \x20 rabbit: {{ type: rabbitmq, url: '{amqp}', queue: '{taken}', route: web }}\n"
        );
        let mut routes = vec!["list", "amqp"];
        if let Some(broker) = kafka::shared().await {
            let topic = kafka::topic_name();
            kafka::create_topic(&broker, &topic, 1, &[]).await;
            writeln!(sinks, "  events: {{ type: kafka, brokers: ['{broker}'], topic: '{topic}' }}").expect("a string");
            writeln!(configured, "  events: {{ sink: events }}").expect("a string");
            writeln!(
                sources,
                "  records: {{ type: kafka, brokers: ['{broker}'], topics: ['{topic}-in'], group_id: '{topic}', route: web }}"
            )
            .expect("a string");
            kafka::create_topic(&broker, &format!("{topic}-in"), 1, &[]).await;
            routes.push("events");
        }
        let redis_url = format!("redis: {{ url: '{}' }}\n", redis.url());
        let recurring = "schedules: { yearly: { route: times, cron: '@yearly', payload: x } }\n";
        let punctual = Punctual::start(&[&*redis_url, &sinks, &configured, &sources, recurring].concat()).await;
        let client = Client::of(&punctual);
        Self { redis, receiver, punctual, client, routes }
    }

    /// Deliveries by all sinks and by a source, a dead letter, a refused call, and a message that waits.
    pub async fn traffic(&self) {
        let Self { redis, receiver, client, .. } = self;
        redis::cmd("ZADD")
            .arg(&["theirs", "1", "one"])
            .exec_async(&mut redis.connection().await)
            .await
            .expect("written");
        receiver.wait_for(1, MAX_WAIT).await;
        // Answered, too.
        client.drained("web", MAX_WAIT).await;
        receiver.behave(Behaviour::Status(500));
        client.schedule("web", r#"{"id":"dies","payload":1}"#).await;
        for route in &self.routes {
            client.schedule(route, r#"{"payload":1}"#).await;
            client.drained(route, MAX_WAIT).await;
        }
        let dead = async || (client.stats("web").await["dead"] == 1).then_some(());
        eventually("it is dead", MAX_WAIT, dead).await;
        client.call("GET", "/v1/routes/missing", "").await;
        client.schedule("web", r#"{"id":"waits","delay":"30s","payload":1}"#).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_and_label_that_is_queried_exists() {
    let scene = Scene::start().await;
    scene.traffic().await;
    let page = scene.client.call("GET", "/metrics", "").await.text;
    // One message of 1,000 waits.
    for line in [
        r#"punctual_limit_used_ratio{route="web",limit="messages"} 0.001"#,
        "punctual_redis_max_memory_bytes 1073741824",
    ] {
        assert!(page.lines().any(|one| one == line), "{line} is missing:\n{page}");
    }
    let exposed = labels(&page);
    let alerts = alerts().into_iter().flat_map(|alert| {
        let queries = alert.lookups().into_iter().chain([alert.query.clone()]);
        queries.map(|query| (format!("alert {}", alert.name), query)).collect::<Vec<_>>()
    });
    let panels = queries().into_iter().map(|panel| (format!("panel {}", panel.title), panel.query));
    let (mut missing, mut wrong) = (BTreeSet::new(), Vec::new());
    for (place, query) in alerts.chain(panels) {
        let used = Query::parse(&query).metrics;
        assert!(!used.is_empty(), "{place}: no metric in {query}");
        for (name, labels) in used.into_iter().filter(|(name, _)| !OF_PROMETHEUS.contains(&&**name)) {
            let Some(has) = exposed.get(&name) else {
                missing.insert(name);
                continue;
            };
            let lacks = labels.iter().filter(|label| !has.contains(*label) && !ADDED.contains(&&***label));
            wrong.extend(lacks.map(|label| format!("{place}: {name} has no label {label}, but {has:?}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(missing.is_empty(), "queried and not at /metrics: {missing:?}\n{page}");
}
