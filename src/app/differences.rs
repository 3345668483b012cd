//! The differences between the configuration that runs and a new one.

use std::collections::BTreeMap;

use crate::config::{Config, Fingerprint, ServerConfig};

/// How an entry of a section changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Added,
    Replaced,
    Removed,
}

/// The entries of a section that change, by name.
pub type Changes = BTreeMap<String, Change>;

/// The parts of an instance that change.
#[derive(Debug, Default)]
pub struct Differences {
    pub sinks: Changes,
    pub routes: Changes,
    pub sources: Changes,
    pub auth: bool,
    pub schedules: bool,
    pub certificate: bool,
}

impl Differences {
    /// `former` is `None` at the start.
    pub fn between(former: Option<&Config>, next: &Config) -> Self {
        let Some(former) = former else {
            let added = |names: Vec<&String>| names.into_iter().map(|name| (name.clone(), Change::Added)).collect();
            return Self {
                sinks: added(next.sinks.keys().collect()),
                routes: added(next.routes.keys().collect()),
                sources: added(next.sources.keys().collect()),
                auth: false,
                schedules: true,
                certificate: false,
            };
        };
        let (one, other) = (&former.fingerprints, &next.fingerprints);
        let sinks = changes(&one.sinks, &other.sinks);
        let mut routes = changes(&one.routes, &other.routes);
        for (name, route) in &next.routes {
            if sinks.contains_key(&*route.sink) {
                routes.entry(name.clone()).or_insert(Change::Replaced);
            }
        }
        Self {
            sinks,
            routes,
            sources: changes(&one.sources, &other.sources),
            auth: one.auth != other.auth,
            schedules: one.schedules != other.schedules,
            certificate: one.certificate != other.certificate,
        }
    }

    /// The paths of the parts with this change.
    pub fn paths(&self, wanted: Change) -> Vec<String> {
        let sections = [("sinks", &self.sinks), ("routes", &self.routes), ("sources", &self.sources)];
        let mut paths: Vec<String> = sections
            .iter()
            .flat_map(|(section, changes)| {
                let selected = changes.iter().filter(|(_, change)| **change == wanted);
                selected.map(move |(name, _)| format!("{section}.{name}"))
            })
            .collect();
        if wanted == Change::Replaced {
            let parts = [("server.auth", self.auth), ("server.tls", self.certificate), ("schedules", self.schedules)];
            paths.extend(parts.iter().filter(|(_, is_changed)| *is_changed).map(|(path, _)| (*path).to_owned()));
        }
        paths
    }
}

fn changes(former: &BTreeMap<String, Fingerprint>, next: &BTreeMap<String, Fingerprint>) -> Changes {
    let removed = former.keys().filter(|name| !next.contains_key(*name)).map(|name| (name.clone(), Change::Removed));
    let others = next.iter().filter_map(|(name, fingerprint)| match former.get(name) {
        None => Some((name.clone(), Change::Added)),
        Some(known) if known != fingerprint => Some((name.clone(), Change::Replaced)),
        Some(_) => None,
    });
    removed.chain(others).collect()
}

/// The part of `next` that a running instance can take over from `former`, and the paths of the settings that only a start
/// can. Those keep their former values.
pub fn without_restart(former: &Config, mut next: Config) -> (Config, Vec<String>) {
    let names = |config: &Config| config.fingerprints.others.keys().cloned().collect::<Vec<_>>();
    let mut restart: Vec<String> = names(former).into_iter().chain(names(&next)).collect();
    restart.sort();
    restart.dedup();
    restart.retain(|name| former.fingerprints.others.get(name) != next.fingerprints.others.get(name));
    for (name, route) in &mut next.routes {
        let Some(known) = former.routes.get(name).filter(|known| known.partitions != route.partitions) else {
            continue;
        };
        route.partitions = known.partitions;
        restart.push(format!("routes.{name}.partitions"));
        // Flows need one partition.
        if route.flow.is_some() && known.partitions > 1 {
            route.flow.clone_from(&known.flow);
            restart.push(format!("routes.{name}.flow"));
        }
    }
    // Without tokens, or with short ones, an address that other hosts reach would be open.
    let is_moved = restart.iter().any(|name| name == "server.listen");
    let is_opened = next.server.auth.is_none() && !former.server.listen.is_local();
    if former.fingerprints.auth != next.fingerprints.auth && (is_moved || is_opened) {
        restart.push("server.auth".to_owned());
        next.server.auth.clone_from(&former.server.auth);
        next.fingerprints.auth = former.fingerprints.auth;
    }
    if restart.iter().any(|name| name == "server.tls") {
        next.fingerprints.certificate = former.fingerprints.certificate;
    }
    let auth = next.server.auth.take();
    next.server = ServerConfig { auth, ..former.server.clone() };
    next.redis = former.redis.clone();
    (next.log, next.tracing) = (former.log, former.tracing.clone());
    (next.shutdown_timeout, next.max_sleep) = (former.shutdown_timeout, former.max_sleep);
    next.max_in_flight_bytes = former.max_in_flight_bytes;
    next.fingerprints.others.clone_from(&former.fingerprints.others);
    (next, restart)
}
