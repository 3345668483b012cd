//! Removes parts of an export of RabbitMQ 3 that RabbitMQ 4 refuses. A policy with such a key fails the whole import,
//! and a queue with such an argument is left out silently. An import deletes nothing, so a broker of 3.x keeps both.

use serde_json::Value;

use crate::plan::{Note, Plan};

/// The location of the leader of a classic queue: refused by 4.3.
const LOCATOR: &str = "queue-master-locator";
/// Prefix of keys about mirrors of classic queues: refused by 4.0. Quorum queues have replicas instead.
const MIRRORS: &str = "ha-";

pub fn remove(plan: &mut Plan) {
    let retired = |key: &str| key.starts_with(MIRRORS) || key == LOCATOR;
    plan.definitions.policies.retain_mut(|policy| {
        let Value::Object(definition) = &mut policy.definition else { return true };
        let keys: Vec<String> = definition.keys().filter(|key| retired(key)).cloned().collect();
        if keys.is_empty() {
            return true;
        }
        definition.retain(|key, _| !retired(key));
        let keys = keys.join("`, `");
        let text = if definition.is_empty() {
            format!("is left out: RabbitMQ 4 refuses `{keys}`")
        } else {
            format!("goes on without `{keys}`, which RabbitMQ 4 refuses")
        };
        plan.changed.push(Note::new(format!("policy `{}` of `{}`", policy.name, policy.vhost), text));
        !definition.is_empty()
    });
    for queue in &mut plan.definitions.queues {
        if queue.arguments.remove(&format!("x-{LOCATOR}")).is_some() {
            let text = format!("goes on without `x-{LOCATOR}`: RabbitMQ 4.3 leaves out a queue that has it");
            plan.changed.push(Note::new(format!("queue `{}` of `{}`", queue.name, queue.vhost), text));
        }
    }
}
