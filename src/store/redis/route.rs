//! Routes as Redis knows them: registered with their partitions, paused and resumed.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;

use super::{DATA_VERSION, RedisStore, keys::routes_key, script};
use crate::port::{Partition, StoreError};

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

#[derive(Deserialize)]
struct StoredRoute {
    version: u32,
    partitions: u16,
    max_payload: usize,
}

/// A route as Redis knows it.
pub struct KnownRoute {
    pub name: Arc<str>,
    pub partitions: u16,
    /// Bytes.
    pub max_payload: usize,
}

impl RedisStore {
    /// Loads the scripts and makes every route known. Safe to repeat; writes nothing that stands already.
    pub async fn register(&self, max_payload: usize) -> Result<Vec<(String, Registration)>, RegistrationError> {
        for script in script::all() {
            script.load(&self.connection).await?;
        }
        let mut registrations = Vec::new();
        for (route, partitions) in &self.partitions {
            let count = u16::try_from(partitions.len()).expect("configured as u16");
            let reply: String = script::REGISTER
                .keys(&[&routes_key(&self.prefix)])
                .arg(&**route)
                .arg(DATA_VERSION)
                .arg(count)
                .arg(max_payload)
                .run(&self.connection)
                .await?;
            let registration = match reply.as_str() {
                "created" => Registration::Created,
                "kept" | "updated" => Registration::Kept,
                stored => {
                    return Err(RegistrationError::Mismatch {
                        route: route.to_string(),
                        stored: stored.to_owned(),
                        partitions: count,
                    });
                }
            };
            for (number, keys) in partitions.iter().enumerate() {
                let () = script::OPEN
                    .keys(&[&keys.route])
                    .arg(DATA_VERSION)
                    .arg(count)
                    .arg(number)
                    .arg(max_payload)
                    .run(&self.connection)
                    .await?;
            }
            registrations.push((route.to_string(), registration));
        }
        Ok(registrations)
    }

    /// The routes that Redis knows of this release's data version, whoever registered them, by name.
    pub async fn known_routes(&self) -> Result<Vec<KnownRoute>, StoreError> {
        let known: BTreeMap<String, String> =
            self.connection.run(redis::cmd("HGETALL").arg(routes_key(&self.prefix))).await?;
        let mut routes = Vec::new();
        for (name, json) in known {
            // Else it is another release's, or somebody else's.
            if let Ok(StoredRoute { version: DATA_VERSION, partitions, max_payload }) = serde_json::from_str(&json) {
                routes.push(KnownRoute { name: name.into(), partitions, max_payload });
            }
        }
        Ok(routes)
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
