//! Flows: listed, changed, paused, and repaired.

use redis::Value;

use super::{MAX_BATCH, RedisStore, keys::FlowKeys, reply::Reply, script};
use crate::{
    message::MessageId,
    store::{FieldChange, FlowChange, FlowRules, FlowState, Partition, StoreError},
    time::UnixMillis,
};

/// Number of messages that one call of a repair looks at.
const LOOKED_AT: usize = 100;

impl RedisStore {
    /// Up to `limit` (1 to 100) flows after `after`, by name, and whether more follow.
    pub async fn flows(
        &self,
        partition: &Partition,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<FlowState>, bool), StoreError> {
        let after = after.map_or_else(String::new, |after| format!("={after}"));
        self.read_flows(partition, &["page", &limit.to_string(), &after]).await
    }

    pub async fn flow(&self, partition: &Partition, key: &str) -> Result<FlowState, StoreError> {
        let (mut flows, _) = self.read_flows(partition, &["one", key]).await?;
        flows.pop().ok_or_else(|| super::reply::unexpected("a flow", None))
    }

    async fn read_flows(
        &self,
        partition: &Partition,
        arguments: &[&str],
    ) -> Result<(Vec<FlowState>, bool), StoreError> {
        let keys = self.keys(partition)?;
        let FlowKeys { flows, waiting, flights, gates, rules, .. } = &keys.flow;
        let limits = self.route(&partition.route)?.settings.flow.as_ref().map(|flow| &flow.limits);
        let call = script::FLOWS
            .keys(&[waiting, flights, gates, rules, &keys.unack, flows])
            .arg(u8::from(limits.is_some_and(|limits| limits.parallel.is_some() || limits.ordered)))
            .arg(arguments);
        let reply: Vec<Value> = call.run(&self.listings).await?;
        let mut reply = Reply::from(reply);
        let (now, more) = (reply.millis()?, reply.flag()?);
        let mut flows = Vec::new();
        while !reply.is_done() {
            let (key, waiting, in_flight) = (reply.text()?, reply.integer()?, reply.integer()?);
            let (gate, held_by) = (reply.optional()?, reply.text()?);
            let rules = FlowRules::parse(&reply.text()?);
            // The gate is also set if a claim must look at the flow now.
            let next_slot = gate.map(|gate| UnixMillis::new(gate).unwrap_or_default().max(now));
            flows.push(FlowState {
                key,
                waiting,
                in_flight,
                next_slot,
                held_by: MessageId::stored(&held_by).ok(),
                rules,
            });
        }
        Ok((flows, more))
    }

    /// Changes the rules of a flow. This and the next two wait for replicas, if durability requires it. Returns whether that
    /// changed anything.
    pub async fn change_flow(
        &self,
        partition: &Partition,
        key: &str,
        FlowChange { rate, burst, parallel }: FlowChange,
    ) -> Result<bool, StoreError> {
        let change = [argument(rate), argument(burst), argument(parallel), String::new()];
        self.set_rule(partition, key, &change).await
    }

    /// Pauses a flow. `by`: one line. Returns whether that changed anything.
    pub async fn pause_flow(&self, partition: &Partition, key: &str, by: &str, note: &str) -> Result<bool, StoreError> {
        self.set_rule(partition, key, &[String::new(), String::new(), String::new(), format!("{by}\n{note}")]).await
    }

    /// Returns whether the flow was paused.
    pub async fn resume_flow(&self, partition: &Partition, key: &str) -> Result<bool, StoreError> {
        self.set_rule(partition, key, &[String::new(), String::new(), String::new(), "-".to_owned()]).await
    }

    async fn set_rule(&self, partition: &Partition, key: &str, change: &[String; 4]) -> Result<bool, StoreError> {
        let keys = self.keys(partition)?;
        let FlowKeys { flows, flights, gates, rules, .. } = &keys.flow;
        let call = script::RULE
            .keys(&[gates, rules, &keys.route, &keys.unack, flows, flights])
            .arg(&keys.wake)
            .arg(self.layout(partition)?)
            .arg(key)
            .arg(&change[..]);
        self.run_at_once(partition, call).await
    }

    /// Returns messages that are parked in a partition of a route without flows to their due times. Returns their
    /// number.
    pub async fn unpark(&self, partition: &Partition) -> Result<u64, StoreError> {
        let keys = self.any_keys(partition);
        let mut all = vec![keys.pending.as_str()];
        all.extend(keys.flow.all());
        let mut count = 0;
        loop {
            let (some, more): (u64, bool) =
                script::UNPARK.keys(&all).arg(&keys.wake).arg(MAX_BATCH).run(&self.servers).await?;
            count += some;
            if !more {
                return Ok(count);
            }
        }
    }

    /// Repairs the flows of a partition, if its route has any. Returns the number of repairs.
    pub async fn tidy(&self, partition: &Partition) -> Result<u64, StoreError> {
        let (keys, route) = (self.keys(partition)?, self.route(&partition.route)?);
        if route.settings.flow.is_none() {
            return Ok(0);
        }
        let all = route.with_flow(vec![&keys.pending, &keys.unack], keys);
        let settings = route.flow_settings();
        let mut repairs = 0;
        for part in ["leases", "flights", "parked"] {
            let mut cursor = String::new();
            loop {
                let call = script::TIDY.keys(&all).arg(&keys.wake).arg(&settings).arg(part).arg(cursor).arg(LOOKED_AT);
                let (some, next): (u64, String) = call.run(&self.servers).await?;
                repairs += some;
                cursor = next;
                if cursor.is_empty() {
                    break;
                }
            }
        }
        Ok(repairs)
    }
}

/// As lua/rule.lua reads a change.
fn argument<T: ToString>(change: FieldChange<T>) -> String {
    match change {
        FieldChange::Keep => String::new(),
        FieldChange::Remove => "-".to_owned(),
        FieldChange::Set(value) => value.to_string(),
    }
}
