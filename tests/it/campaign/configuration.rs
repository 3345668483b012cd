//! The configuration of an instance, as it is and as it was earlier.

use std::{collections::BTreeMap, sync::Mutex};

use super::{
    producers::{QUEUE, SET},
    routes::{PARTITIONS, Route},
    store::USER,
    world::{KEY, LEASE},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    Current,
    /// Before the last route of the clients was added.
    WithoutRoute,
    /// With another lease and other retries of the routes without flows.
    OtherSettings,
}

pub struct Configuration {
    /// The instance that has it.
    pub instance: usize,
    /// The setting `redis.sentinel` or `redis.cluster`.
    pub redis: String,
    /// Number of replicas that have a message before a call is answered.
    pub replicas: usize,
    /// The port of the endpoint.
    pub endpoint: u16,
    /// The sinks of the brokers and of the other Redis, as YAML.
    pub sinks: String,
    pub sources: String,
    pub routes: Vec<&'static Route>,
    /// Numbers of partitions that were changed, by route.
    pub partitions: Mutex<BTreeMap<&'static str, u64>>,
}

impl Configuration {
    pub fn set_partitions(&self, route: &'static str, partitions: u64) {
        self.partitions.lock().expect("no panic under this lock").insert(route, partitions);
    }

    pub fn text(&self, age: Age) -> String {
        let Self { instance, redis, replicas, endpoint, sinks, sources, routes, .. } = self;
        let has = |name: &str| routes.iter().any(|route| route.name == name);
        let durability =
            if *replicas == 0 { String::new() } else { format!(", durability: {{ replicas: {replicas} }}") };
        let list = if has("jobs") {
            format!("  jobs: {{ type: redis_list, key: '{KEY}', format: envelope, timeout: 2s }}\n")
        } else {
            String::new()
        };
        let sets = if has("from-set") {
            format!(
                "  from-set: {{ type: sorted_set, key: '{SET}', unit: milliseconds, poll: 200ms, route: from-set }}\n  \
                 from-library: {{ type: delayqueue, name: {QUEUE}, hash_tag: false, poll: 200ms, route: from-library }}\n"
            )
        } else {
            String::new()
        };
        let head = format!(
            "redis: {{ {redis}, username: {USER}, password: secret, timeout: 3s{durability} }}\n\
             server: {{ request_timeout: 4s }}\nmax_sleep: 5s\n\
             sinks:\n  hook: {{ type: http, url: 'http://127.0.0.1:{endpoint}/due/{instance}', timeout: 2s }}\n",
        );
        let newest = routes.iter().rfind(|route| route.is_plain()).map(|route| route.name);
        let is_there = |route: &&&Route| age != Age::WithoutRoute || Some(route.name) != newest;
        let routes: String = routes.iter().filter(is_there).map(|route| self.of_route(route, age)).collect();
        format!("{head}{list}{sinks}sources:\n{sets}{sources}routes:\n{routes}")
    }

    fn of_route(&self, route: &Route, age: Age) -> String {
        let Route { name, sink, flow, .. } = route;
        let shape = if flow.is_empty() {
            let changed = self.partitions.lock().expect("no panic under this lock");
            format!("partitions: {}", changed.get(name).unwrap_or(&PARTITIONS))
        } else {
            format!("flow: {flow}")
        };
        let is_other = age == Age::OtherSettings && route.is_plain();
        let (lease, initial, max) = if is_other { (LEASE * 8 / 5, "300ms", "2s") } else { (LEASE, "100ms", "1s") };
        format!(
            "  {name}: {{ sink: {sink}, {shape}, lease: {lease}ms, remember: {{ for: 1h }}, \
             history: {{ for: 1h, max: 1000000 }}, \
             retry: {{ max_attempts: 1000, initial: {initial}, max: {max} }} }}\n"
        )
    }
}
