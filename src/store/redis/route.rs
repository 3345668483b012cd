//! Routes as Redis knows them: registered with their partitions, paused and resumed.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{DATA_VERSION, RedisStore, Route, keys::routes_key, script};
use crate::{
    message::MAX_PARTITIONS,
    port::{Partition, StoreError},
};

/// What registering a route found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    Created,
    Kept,
}

/// Why a route cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    #[error(
        "route `{route}` is stored as {stored}, but this release and configuration want version {DATA_VERSION} \
         and {partitions} partitions: set `routes.{route}.partitions` as stored, or use another route name"
    )]
    Mismatch { route: String, stored: String, partitions: u16 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What whoever schedules on a route has to keep to.
#[derive(Clone, Debug)]
pub struct RouteSettings {
    pub name: Arc<str>,
    /// 1 to `MAX_PARTITIONS`.
    pub partitions: u16,
    /// Bytes, at most 3 MiB.
    pub max_payload: usize,
}

/// Its JSON in `P:routes`.
#[derive(Serialize, Deserialize)]
struct StoredRoute {
    version: u32,
    partitions: u16,
    max_payload: usize,
}

impl RouteSettings {
    fn to_json(&self) -> String {
        let Self { name: _, partitions, max_payload } = *self;
        let stored = StoredRoute { version: DATA_VERSION, partitions, max_payload };
        serde_json::to_string(&stored).expect("numbers always serialize")
    }

    /// `None`: another release's, or somebody else's.
    fn from_json(name: &str, json: &str) -> Option<Self> {
        let StoredRoute { version, partitions, max_payload } = serde_json::from_str(json).ok()?;
        let ours = version == DATA_VERSION && (1..=MAX_PARTITIONS).contains(&partitions);
        ours.then(|| Self { name: name.into(), partitions, max_payload })
    }
}

impl RedisStore {
    /// Loads the scripts and makes every route known. Safe to repeat; writes nothing that stands already.
    pub async fn register(&self) -> Result<Vec<(String, Registration)>, RegistrationError> {
        for script in script::all() {
            script.load(&self.connection).await?;
        }
        let mut registrations = Vec::new();
        for (route, Route { settings, keys }) in &self.routes {
            let reply: String = script::REGISTER
                .keys(&[&routes_key(&self.prefix)])
                .arg(&**route)
                .arg(DATA_VERSION)
                .arg(settings.partitions)
                .arg(settings.to_json())
                .run(&self.connection)
                .await?;
            let registration = match reply.as_str() {
                "created" => Registration::Created,
                "kept" | "updated" => Registration::Kept,
                stored => {
                    return Err(RegistrationError::Mismatch {
                        route: route.to_string(),
                        stored: stored.to_owned(),
                        partitions: settings.partitions,
                    });
                }
            };
            for (number, keys) in keys.iter().enumerate() {
                let () = script::OPEN
                    .keys(&[&keys.route])
                    .arg(DATA_VERSION)
                    .arg(settings.partitions)
                    .arg(number)
                    .arg(settings.max_payload)
                    .run(&self.connection)
                    .await?;
            }
            registrations.push((route.to_string(), registration));
        }
        Ok(registrations)
    }

    /// The routes that Redis knows of this release's data version, whoever registered them, by name.
    pub async fn known_routes(&self) -> Result<Vec<RouteSettings>, StoreError> {
        let known: BTreeMap<String, String> =
            self.connection.run(redis::cmd("HGETALL").arg(routes_key(&self.prefix))).await?;
        Ok(known.iter().filter_map(|(name, json)| RouteSettings::from_json(name, json)).collect())
    }

    pub async fn pause(&self, partition: &Partition) -> Result<(), StoreError> {
        self.set_paused(partition, "pause").await
    }

    pub async fn resume(&self, partition: &Partition) -> Result<(), StoreError> {
        self.set_paused(partition, "resume").await
    }

    async fn set_paused(&self, partition: &Partition, action: &str) -> Result<(), StoreError> {
        let keys = self.keys(partition)?;
        script::PAUSE.keys(&[&keys.paused]).arg(&keys.wake).arg(action).run(&self.connection).await
    }
}
