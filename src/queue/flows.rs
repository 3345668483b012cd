//! Flows of a route: listed, changed, paused and resumed.

use super::{Queue, QueueError};
use crate::{
    message::FlowLimits,
    store::{FlowChange, FlowState, Partition},
};

impl Queue {
    /// The limits of the flows of a route.
    ///
    /// # Errors
    /// `NoFlows` if it has none.
    pub fn flow_limits(&self, route: &str) -> Result<FlowLimits, QueueError> {
        self.route(route)?;
        let store = self.store();
        store
            .routes()
            .find(|settings| *settings.name == *route)
            .and_then(|settings| Some(settings.flow.as_ref()?.limits))
            .ok_or_else(|| QueueError::NoFlows(route.to_owned()))
    }

    /// The only partition of a route with flows.
    fn partition_of_flows(&self, route: &str) -> Result<Partition, QueueError> {
        self.flow_limits(route)?;
        Ok(self.route(route)?.at(0).0.clone())
    }

    /// Up to `limit` (1 to 100) flows after `after`, by name, and whether more follow.
    pub async fn flows(
        &self,
        route: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<FlowState>, bool), QueueError> {
        let store = self.store();
        Ok(store.flows(&self.partition_of_flows(route)?, after, limit).await?)
    }

    pub async fn flow(&self, route: &str, key: &str) -> Result<FlowState, QueueError> {
        let store = self.store();
        Ok(store.flow(&self.partition_of_flows(route)?, key).await?)
    }

    /// Changes the rules of one flow. Returns whether that changed anything.
    pub async fn change_flow(&self, route: &str, key: &str, change: FlowChange) -> Result<bool, QueueError> {
        let store = self.store();
        let partition = &self.partition_of_flows(route)?;
        Ok(self.registry.when_open(|| store.change_flow(partition, key, change)).await?)
    }

    /// Stops claims of one flow on all instances, until `resume_flow`. `by` is one line. Returns whether that changed
    /// anything.
    pub async fn pause_flow(&self, route: &str, key: &str, by: &str, note: &str) -> Result<bool, QueueError> {
        let store = self.store();
        let partition = &self.partition_of_flows(route)?;
        Ok(self.registry.when_open(|| store.pause_flow(partition, key, by, note)).await?)
    }

    /// Returns whether the flow was paused.
    pub async fn resume_flow(&self, route: &str, key: &str) -> Result<bool, QueueError> {
        let store = self.store();
        let partition = &self.partition_of_flows(route)?;
        Ok(self.registry.when_open(|| store.resume_flow(partition, key)).await?)
    }
}
