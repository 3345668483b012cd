//! Which writes a fail-over of Redis can lose.

use super::RedisStore;
use crate::store::StoreError;

impl RedisStore {
    /// A text for operators: what a success means with the replicas that are connected now; on a cluster, with those of
    /// the primary that has the fewest. `None` if no replica is connected and none is required.
    pub async fn guarantee(&self) -> Result<Option<String>, StoreError> {
        let mut all = Vec::new();
        for connection in self.servers.all().await? {
            let info: Option<String> = connection.run_if_permitted(redis::cmd("INFO").arg("replication")).await?;
            all.push(info.as_deref().and_then(|info| {
                info.lines().find_map(|line| line.trim_end().strip_prefix("connected_slaves:")?.parse().ok())
            }));
        }
        // `None` is the lowest.
        let fewest: Option<u64> = all.into_iter().min().flatten();
        Ok(guarantee(fewest, self.writes.durability().map_or(0, |durability| durability.replicas)))
    }

    /// Checks whether replicas confirm writes now; changes nothing.
    ///
    /// # Errors
    /// Why replicas do not confirm.
    pub async fn check_durable(&self) -> Result<(), StoreError> {
        self.writes.check().await
    }
}

/// `connected`: `None` if the user has no right to ask. `wanted`: 0 without durability.
fn guarantee(connected: Option<u64>, wanted: u64) -> Option<String> {
    let replicas = |count| if count == 1 { "1 replica".to_owned() } else { format!("{count} replicas") };
    Some(match (connected, wanted) {
        (Some(0), 0) => return None,
        (Some(count), 0) => {
            format!("{}, not waited for: a fail-over loses what the new primary had not received", replicas(count))
        }
        (None, 0) => "replicas are not waited for: a fail-over loses what the new primary had not received".into(),
        (Some(count), wanted) if count < wanted => {
            format!("{} of {wanted}: what is scheduled is answered with 503 until there are more", replicas(count))
        }
        (Some(count), wanted) if count == wanted => {
            format!("{}, all waited for: a fail-over to one of them loses nothing that got a 2xx", replicas(count))
        }
        (Some(count), wanted) => {
            format!(
                "{}, {wanted} of them waited for: a fail-over to another one may lose what got a 2xx",
                replicas(count)
            )
        }
        (None, wanted) => {
            format!("{} waited for: a fail-over to another one may lose what got a 2xx", replicas(wanted))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wait_for_all_replicas_is_said_to_lose_nothing() {
        for connected in [None, Some(0), Some(1), Some(2), Some(3)] {
            for wanted in 0..=3 {
                let Some(said) = guarantee(connected, wanted) else {
                    assert_eq!((connected, wanted), (Some(0), 0));
                    continue;
                };
                assert_eq!(said.contains("loses nothing"), wanted > 0 && connected == Some(wanted), "{said}");
                assert_eq!(said.contains("503"), connected.is_some_and(|connected| connected < wanted), "{said}");
            }
        }
    }
}
