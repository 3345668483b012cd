//! Adapts policies, which match names: new exchanges must keep the policies of the old ones, and a policy that drops
//! messages must not apply to the queue that punctual reads. Only the policy with the largest priority applies to a
//! name.

use serde_json::{Map, Value, json};

use crate::{
    definitions::{ALTERNATE, BrokerPolicy, Definitions},
    pattern,
    plan::{DELIVERY_LIMIT, Moved, Note, Plan},
};

/// Keys by which a policy removes messages from a queue, deletes the queue, or restricts its consumers.
const DROPPING: [&str; 9] = [
    "message-ttl",
    "expires",
    "max-length",
    "max-length-bytes",
    "overflow",
    "delivery-limit",
    "dead-letter-exchange",
    "dead-letter-strategy",
    "single-active-consumer",
];
const FEDERATION: [&str; 3] = ["federation-upstream", "federation-upstream-set", "federation-upstream-pattern"];

#[derive(Clone, Copy, PartialEq)]
enum On {
    Exchange,
    BrokerQueue,
}

pub fn adapt(plan: &mut Plan) {
    for BrokerPolicy { name, vhost, pattern, .. } in &plan.definitions.policies {
        if pattern::matches(pattern, "").is_none() {
            let text = "has a pattern that cannot be evaluated here: look which of the new names it matches";
            plan.undecided.push(Note::new(format!("policy `{name}` of `{vhost}`"), text));
        }
    }
    let mut added = Vec::new();
    for Moved { vhost, exchange, queue, out, .. } in &plan.moved {
        let of = |name: &str, on| applying(&plan.definitions, vhost, name, on);
        let about = |name: &str| format!("policy `{name}` of `{vhost}`");
        let (of_entry, of_out) = (of(exchange, On::Exchange), of(out, On::Exchange));
        if let Some(policy) = with_any(&of_entry, &FEDERATION) {
            let text = format!(
                "federates `{exchange}`: links bind by the keys that are bound to it, and those are now on `{out}`. \
                 Decide which of the two is federated"
            );
            plan.undecided.push(Note::new(about(&policy.name), text));
        }
        let alternate =
            |policies: &[&BrokerPolicy]| with_any(policies, &[ALTERNATE]).map(|it| it.definition[ALTERNATE].clone());
        match (alternate(&of_entry), alternate(&of_out)) {
            (wanted, got) if wanted == got => {}
            (Some(wanted), _) => {
                let policy = alone(plan, vhost, out, "exchanges", json!({ ALTERNATE: wanted }));
                let text = format!("gives `{out}` the alternate exchange that `{exchange}` had");
                plan.changed.push(Note::new(about(&policy.name), text));
                added.push(policy);
            }
            (None, _) => {
                let name = with_any(&of_out, &[ALTERNATE]).map(|policy| &*policy.name).unwrap_or_default();
                let text = format!(
                    "gives `{out}` an alternate exchange, which `{exchange}` did not have: narrow its pattern, or accept it"
                );
                plan.undecided.push(Note::new(about(name), text));
            }
        }
        if let Some(policy) = with_any(&of(queue, On::BrokerQueue), &DROPPING) {
            let shield = alone(plan, vhost, queue, "queues", json!({ "delivery-limit": DELIVERY_LIMIT }));
            let text = format!("keeps policy `{}` off `{queue}`, where it would drop messages", policy.name);
            plan.changed.push(Note::new(about(&shield.name), text));
            added.push(shield);
        }
        for parameter in &plan.definitions.parameters {
            if parameter.component == "operator_policy"
                && parameter.vhost == *vhost
                && let Ok(policy) = operator_policy(&parameter.name, &parameter.value)
                && applies(&policy, queue, On::BrokerQueue) == Some(true)
                && DROPPING.iter().any(|key| policy.has(key))
            {
                let text = format!(
                    "matches the new queue `{queue}`, and no other policy overrides it: exclude that name from its pattern"
                );
                plan.undecided.push(Note::new(format!("operator {}", about(&policy.name)), text));
            }
        }
    }
    plan.definitions.policies.append(&mut added);
}

/// The matching policies with the largest priority. RabbitMQ applies one of them, and does not define which.
fn applying<'a>(definitions: &'a Definitions, vhost: &str, name: &str, on: On) -> Vec<&'a BrokerPolicy> {
    let all = definitions.policies.iter().filter(|it| it.vhost == vhost && applies(it, name, on) == Some(true));
    let largest = all.clone().map(|policy| policy.priority).max();
    all.filter(|policy| Some(policy.priority) == largest).collect()
}

fn with_any<'a>(policies: &[&'a BrokerPolicy], keys: &[&str]) -> Option<&'a BrokerPolicy> {
    policies.iter().copied().find(|policy| keys.iter().any(|key| policy.has(key)))
}

fn applies(policy: &BrokerPolicy, name: &str, on: On) -> Option<bool> {
    let kind = match on {
        On::Exchange => ["all", "exchanges"].contains(&&*policy.apply_to),
        On::BrokerQueue => ["all", "queues", "quorum_queues", "classic_queues"].contains(&&*policy.apply_to),
    };
    if kind { pattern::matches(&policy.pattern, name) } else { Some(false) }
}

/// A policy that applies to this name only, with a larger priority than all others.
fn alone(plan: &Plan, vhost: &str, name: &str, apply_to: &str, definition: Value) -> BrokerPolicy {
    let largest = plan.definitions.policies.iter().map(|policy| policy.priority).max().unwrap_or_default();
    BrokerPolicy {
        name: format!("punctual {name}"),
        vhost: vhost.to_owned(),
        pattern: pattern::exactly([name]),
        apply_to: apply_to.to_owned(),
        definition,
        priority: largest + 1,
    }
}

fn operator_policy(name: &str, value: &Value) -> Result<BrokerPolicy, serde_json::Error> {
    let mut fields: Map<String, Value> = serde_json::from_value(value.clone())?;
    fields.insert("name".into(), name.into());
    serde_json::from_value(fields.into())
}
