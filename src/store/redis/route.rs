//! Routes as Redis knows them: registered with their partitions, paused and resumed.

use serde::Deserialize;

use super::{DATA_VERSION, RedisStore, keys::PartitionKeys, look::PartitionStats, script};
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
                .keys(&[&self.routes_key])
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

    /// Routes that Redis holds messages of, but this configuration does not name, with their numbers.
    pub async fn unconfigured(&self, prefix: &str) -> Result<Vec<(String, Vec<PartitionStats>)>, StoreError> {
        let known: Vec<(String, String)> = self.connection.run(redis::cmd("HGETALL").arg(&self.routes_key)).await?;
        let mut found = Vec::new();
        for (route, json) in known {
            let Ok(stored) = serde_json::from_str::<StoredRoute>(&json) else { continue };
            if self.partitions.contains_key(route.as_str()) || stored.version != DATA_VERSION {
                continue;
            }
            let mut stats = Vec::new();
            for number in 0..stored.partitions {
                stats.push(self.stats_of(&PartitionKeys::new(prefix, &route, number)).await?);
            }
            if stats.iter().any(|s| s.pending + s.unack + s.dead > 0) {
                found.push((route, stats));
            }
        }
        Ok(found)
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
