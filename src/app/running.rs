//! The parts of an instance that a reload replaces.

use std::{collections::BTreeMap, convert::Infallible, mem, sync::Arc};

use tokio::sync::mpsc;

use super::{
    differences::Differences, forwarder::Passes, sinks::RunningSink, sources::RunningSource, unit::Unit, upkeep::Upkeep,
};
use crate::{
    config::{Config, RouteConfig},
    store::{WakeSignal, redis::RedisStore},
};

/// The parts that a reload replaces.
pub struct Running {
    /// The connections of the scheduler, with all routes.
    pub delivering: RedisStore,
    pub routes: BTreeMap<String, RouteUnit>,
    pub sources: BTreeMap<String, SourceUnit>,
    pub sinks: BTreeMap<String, SinkUnit>,
    pub schedules: Option<Unit>,
    /// Parts that were removed, until they have ended.
    pub ending: Vec<Unit>,
    pub has_stopped: bool,
}

pub struct RouteUnit {
    pub unit: Unit,
    pub upkeep: Arc<Upkeep>,
    /// Signals of the claimers.
    pub signals: Vec<Arc<WakeSignal>>,
}

pub struct SourceUnit {
    pub unit: Unit,
    pub source: RunningSource,
}

pub struct SinkUnit {
    pub sink: RunningSink,
    /// Routes that use the sink have a copy.
    pub user: mpsc::Sender<Infallible>,
    /// Ends when no route uses the sink.
    pub users: mpsc::Receiver<Infallible>,
}

impl Running {
    /// Replaces the sinks that differ. Returns the former ones.
    pub fn take_sinks(
        &mut self,
        differences: &Differences,
        opened: BTreeMap<String, RunningSink>,
    ) -> Vec<(String, SinkUnit)> {
        let former = differences.sinks.keys().filter_map(|name| self.sinks.remove_entry(name)).collect();
        for (name, sink) in opened {
            let (user, users) = mpsc::channel(1);
            self.sinks.insert(name, SinkUnit { sink, user, users });
        }
        former
    }

    /// The upkeep of each route: a new one for those that differ.
    pub fn upkeeps(
        &self,
        config: &Config,
        differences: &Differences,
        passes: &Arc<Passes>,
    ) -> BTreeMap<String, Arc<Upkeep>> {
        let upkeep = |(name, route): (&String, &RouteConfig)| {
            let known = self.routes.get(name).filter(|_| !differences.routes.contains_key(name));
            let known = known.map(|known| known.upkeep.clone());
            (name.clone(), known.unwrap_or_else(|| Arc::new(Upkeep::new(&name.as_str().into(), route, passes))))
        };
        config.routes.iter().map(upkeep).collect()
    }

    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        let routes = self.routes.values().map(|route| &route.unit);
        routes.chain(self.sources.values().map(|source| &source.unit)).chain(&self.schedules).chain(&self.ending)
    }

    pub fn take_units(&mut self) -> Vec<Unit> {
        let routes = mem::take(&mut self.routes).into_values().map(|route| route.unit);
        let sources = mem::take(&mut self.sources).into_values().map(|source| source.unit);
        routes.chain(sources).chain(self.schedules.take()).chain(self.ending.drain(..)).collect()
    }
}
