//! Checks whether routes are registered and their partitions open: in one call, or on a cluster in several.

use std::collections::BTreeSet;

use futures::future::{join_all, try_join_all};

use super::{
    RedisStore, RouteSettings, StoreRoute,
    connection::slot_of,
    keys::{PartitionKeys, routes_key},
    route::KnownRoute,
    script,
};
use crate::store::{Partition, StoreError};

impl RedisStore {
    /// Whether Redis knows every route with its number of partitions, and all partitions are open; one command, which a
    /// replica refuses. On a cluster, one partition is checked on each primary: a primary that lost its data lost all
    /// partitions.
    pub async fn is_registered(&self) -> Result<bool, StoreError> {
        let known: Vec<Option<String>> = if self.servers.cluster().is_some() {
            if !self.are_open_on_primaries().await? {
                return Ok(false);
            }
            self.stored_routes().await?
        } else {
            self.open_routes().await?
        };
        Ok(self.routes.values().zip(known).all(|(route, json)| {
            let known = json.and_then(|json| RouteSettings::from_json(&route.settings.name, &json));
            known.is_some_and(|KnownRoute { settings, former, generations }| {
                route.learn(&generations);
                settings.partitions == route.settings.partitions && former == route.former()
            })
        }))
    }

    /// Whether a part of a cluster can be served while some primaries do not answer: at least one primary answers, and
    /// all partitions of those that answer are open.
    pub async fn is_partly_open(&self) -> bool {
        if self.servers.cluster().is_none() {
            return false;
        }
        let look = async |(partition, keys): (Partition, &PartitionKeys)| {
            let open: Option<String> = self.servers.run(&keys.route, redis::cmd("GET").arg(&keys.route)).await.ok()?;
            let layout = self.layout(&partition).ok()?;
            Some(open.is_some_and(|open| open.starts_with(&layout)))
        };
        let answers: Vec<bool> = join_all(self.each_partition().map(look)).await.into_iter().flatten().collect();
        !answers.is_empty() && !answers.contains(&false)
    }

    /// Whether the number of partitions of a route is still that of this store. All partitions of a number are closed in
    /// one step, so one of them tells.
    pub async fn is_current(&self, name: &str) -> Result<bool, StoreError> {
        let StoreRoute { settings, keys, .. } = self.route(name)?;
        // On a cluster it cannot change.
        let Some(keys) = keys.first().filter(|_| self.servers.cluster().is_none()) else { return Ok(true) };
        let open: Option<String> = self.servers.run(&keys.route, redis::cmd("GET").arg(&keys.route)).await?;
        // Behind the version.
        let partitions = open.as_deref().and_then(|text| text.split(' ').nth(1));
        Ok(partitions == Some(settings.partitions.to_string().as_str()))
    }

    /// The JSON of each route; `None` unless all its partitions are open.
    async fn open_routes(&self) -> Result<Vec<Option<String>>, StoreError> {
        let routes_key = routes_key(&self.prefix);
        let mut all = vec![routes_key.as_str()];
        all.extend(self.routes.values().flat_map(|route| &route.keys).map(|keys| keys.route.as_str()));
        let mut call = script::REGISTERED.keys(&all);
        for route in self.routes.values() {
            call = call.arg(&*route.settings.name).arg(route.version()).arg(route.settings.partitions);
        }
        call.run(&self.servers).await
    }

    async fn stored_routes(&self) -> Result<Vec<Option<String>>, StoreError> {
        if self.routes.is_empty() {
            return Ok(Vec::new());
        }
        let routes_key = routes_key(&self.prefix);
        let mut command = redis::cmd("HMGET");
        command.arg(&routes_key);
        for name in self.routes.keys() {
            command.arg(&**name);
        }
        self.servers.run(&routes_key, &command).await
    }

    async fn are_open_on_primaries(&self) -> Result<bool, StoreError> {
        let look = async |(partition, keys): (Partition, &PartitionKeys)| {
            let open: Option<String> = self.servers.run(&keys.route, redis::cmd("GET").arg(&keys.route)).await?;
            let layout = self.layout(&partition)?;
            // Refused if the server accepts no writes.
            let _: u64 = self.servers.run(&keys.route, redis::cmd("HDEL").arg(&keys.messages).arg("")).await?;
            Ok::<_, StoreError>(open.is_some_and(|open| open.starts_with(&layout)))
        };
        Ok(try_join_all(self.one_on_each().map(look)).await?.into_iter().all(|is_open| is_open))
    }

    /// One partition on each primary that has any; on a single server, one in all.
    pub(super) fn one_on_each(&self) -> impl Iterator<Item = (Partition, &PartitionKeys)> {
        let map = self.servers.cluster().map(|cluster| cluster.map());
        let mut seen = BTreeSet::new();
        self.each_partition().filter(move |(_, keys)| {
            let owner = map.as_ref().and_then(|map| map.owner(slot_of(keys.route.as_bytes())));
            seen.insert(owner.cloned())
        })
    }

    fn each_partition(&self) -> impl Iterator<Item = (Partition, &PartitionKeys)> {
        self.routes.values().flat_map(|route| {
            let all = Partition::all(&route.settings.name, route.settings.partitions);
            all.zip(&route.keys)
        })
    }

    /// Opens the partitions of a registered route on a cluster. Returns whether one was not open.
    pub(super) async fn open_each(&self, route: &StoreRoute) -> Result<bool, StoreError> {
        let open = async |(index, keys): (u16, &PartitionKeys)| {
            // All keys must be in the partition's slot, so a hash of the partition replaces `P:routes`.
            let call = script::REGISTER.keys(&[&keys.messages, &keys.route]).arg("").arg("").arg("");
            let reply: String = call.arg(route.opened(index)).run(&self.servers).await?;
            Ok::<_, StoreError>(reply == "reopened")
        };
        let reopened = try_join_all((0..).zip(&route.keys).map(open)).await?;
        Ok(reopened.contains(&true))
    }
}
