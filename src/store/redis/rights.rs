//! Checks whether the user can call every command that scripts use.

use futures::future::try_join_all;

use super::{RedisStore, keys::PartitionKeys, safety::SafetyError, script};
use crate::store::Partition;

/// Route in the tested key if there are no routes. No route has a blank in its name.
const NO_ROUTE: &str = "no route";

impl RedisStore {
    /// Tries each command in a form that changes nothing; one call, on a cluster one to each primary. A script that
    /// lacks one of its rights changes nothing, so without this check messages would wait silently.
    ///
    /// # Errors
    /// `Denied` names the commands.
    pub async fn check_rights(&self) -> Result<(), SafetyError> {
        let mut keys: Vec<PartitionKeys> = self.one_on_each().map(|(_, keys)| keys.clone()).collect();
        if keys.is_empty() {
            keys.push(PartitionKeys::new(&self.prefix, &Partition { route: NO_ROUTE.into(), index: 0, count: 1 }));
        }
        let ask =
            async |keys: &PartitionKeys| script::RIGHTS.keys(&[&keys.rights]).run::<Vec<String>>(&self.servers).await;
        let mut denied: Vec<String> = try_join_all(keys.iter().map(ask)).await?.concat();
        denied.sort();
        denied.dedup();
        if denied.is_empty() { Ok(()) } else { Err(SafetyError::Denied { rights: format!("+{}", denied.join(" +")) }) }
    }
}
