//! The configuration of an instance, as it is and as it was earlier.

use super::{
    store::USER,
    world::{KEY, LEASE, PARTITIONS},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    Current,
    /// Before the last route was added.
    WithoutRoute,
    /// With another lease and other retries.
    OtherSettings,
}

pub struct Configuration {
    /// The setting `redis.sentinel` or `redis.cluster`.
    pub redis: String,
    /// That have a message before a call is answered.
    pub replicas: usize,
    /// The port of the endpoint.
    pub endpoint: u16,
    /// Of the brokers.
    pub sinks: String,
    /// Names with their sinks.
    pub routes: Vec<(&'static str, &'static str)>,
}

impl Configuration {
    pub fn text(&self, age: Age) -> String {
        let Self { redis, replicas, endpoint, sinks, routes } = self;
        let durability =
            if *replicas == 0 { String::new() } else { format!(", durability: {{ replicas: {replicas} }}") };
        let list = if routes.iter().any(|(_, sink)| *sink == "jobs") {
            format!("  jobs: {{ type: redis_list, key: '{KEY}', format: envelope, timeout: 2s }}\n")
        } else {
            String::new()
        };
        let head = format!(
            "redis: {{ {redis}, username: {USER}, password: secret, timeout: 3s{durability} }}\n\
             server: {{ request_timeout: 4s }}\nmax_sleep: 5s\n\
             sinks:\n  hook: {{ type: http, url: 'http://127.0.0.1:{endpoint}/due', timeout: 2s }}\n",
        );
        let count = routes.len() - usize::from(age == Age::WithoutRoute);
        let routes: String = routes[..count].iter().map(|route| of_route(route, age)).collect();
        format!("{head}{list}{sinks}routes:\n{routes}")
    }
}

fn of_route((route, sink): &(&str, &str), age: Age) -> String {
    let (lease, initial, max) =
        if age == Age::OtherSettings { (LEASE * 8 / 5, "300ms", "2s") } else { (LEASE, "100ms", "1s") };
    format!(
        "  {route}: {{ sink: {sink}, partitions: {PARTITIONS}, lease: {lease}ms, remember: {{ for: 1h }}, \
         retry: {{ max_attempts: 1000, initial: {initial}, max: {max} }} }}\n"
    )
}
