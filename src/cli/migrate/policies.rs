//! Policies go by names: the new ones must get what the old ones had, and the queue that punctual reads must not get
//! what drops messages. Of all policies that match a name, the one with the largest priority alone applies.

use serde_json::{Map, Value, json};

use super::{
    definitions::{ALTERNATE, BrokerPolicy, Definitions},
    pattern,
    plan::{DELIVERY_LIMIT, Note, Plan},
};

/// Keys by which a policy takes messages out of a queue, or the queue away.
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
    for pattern in unreadable(&plan.definitions) {
        let text = "has a pattern that cannot be evaluated here: look which of the new names it matches";
        plan.undecided.push(Note::new(pattern, text));
    }
    let mut added = Vec::new();
    for moved in &plan.moved {
        let of = |name: &str, on| applying(&plan.definitions, &moved.vhost, name, on);
        let about = |name: &str| format!("policy `{name}` of `{}`", moved.vhost);
        let (entry, out) = (of(&moved.exchange, On::Exchange), of(&moved.out, On::Exchange));
        if let Some(policy) = with_any(&entry, &FEDERATION) {
            let text = format!(
                "federates `{}`: links bind by the keys that are bound to it, and those are now on `{}`. Decide which of \
                 the two is federated",
                moved.exchange, moved.out
            );
            plan.undecided.push(Note::new(about(&policy.name), text));
        }
        let alternate =
            |policies: &[&BrokerPolicy]| with_any(policies, &[ALTERNATE]).map(|it| it.definition[ALTERNATE].clone());
        match (alternate(&entry), alternate(&out)) {
            (wanted, got) if wanted == got => {}
            (Some(wanted), _) => {
                let policy = alone(plan, &moved.vhost, &moved.out, "exchanges", json!({ ALTERNATE: wanted }));
                let text = format!("gives `{}` the alternate exchange that `{}` had", moved.out, moved.exchange);
                plan.changed.push(Note::new(about(&policy.name), text));
                added.push(policy);
            }
            (None, _) => {
                let name = with_any(&out, &[ALTERNATE]).map(|policy| &*policy.name).unwrap_or_default();
                let text = format!(
                    "gives `{}` an alternate exchange, which `{}` did not have: narrow its pattern, or accept it",
                    moved.out, moved.exchange
                );
                plan.undecided.push(Note::new(about(name), text));
            }
        }
        if let Some(policy) = with_any(&of(&moved.queue, On::BrokerQueue), &DROPPING) {
            let definition = json!({ "delivery-limit": DELIVERY_LIMIT });
            let shield = alone(plan, &moved.vhost, &moved.queue, "queues", definition);
            let text = format!("keeps policy `{}` off `{}`, where it would drop messages", policy.name, moved.queue);
            plan.changed.push(Note::new(about(&shield.name), text));
            added.push(shield);
        }
        for parameter in &plan.definitions.parameters {
            if parameter.component == "operator_policy"
                && parameter.vhost == moved.vhost
                && let Ok(policy) = operator_policy(&parameter.name, &parameter.value)
                && applies(&policy, &moved.queue, On::BrokerQueue) == Some(true)
                && DROPPING.iter().any(|key| policy.has(key))
            {
                let text = format!(
                    "matches the new queue `{}`, and no other policy overrides it: exclude that name from its pattern",
                    moved.queue
                );
                plan.undecided.push(Note::new(format!("operator {}", about(&policy.name)), text));
            }
        }
    }
    plan.definitions.policies.append(&mut added);
}

fn unreadable(definitions: &Definitions) -> Vec<String> {
    let unreadable = definitions.policies.iter().filter(|policy| pattern::matches(&policy.pattern, "").is_none());
    unreadable.map(|policy| format!("policy `{}` of `{}`", policy.name, policy.vhost)).collect()
}

/// Those with the largest priority: RabbitMQ takes one of them, and does not say which.
fn applying<'a>(definitions: &'a Definitions, vhost: &str, name: &str, on: On) -> Vec<&'a BrokerPolicy> {
    let all = definitions.policies.iter().filter(|it| it.vhost == vhost && applies(it, name, on) == Some(true));
    let all: Vec<_> = all.collect();
    let largest = all.iter().map(|policy| policy.priority).max();
    all.into_iter().filter(|policy| Some(policy.priority) == largest).collect()
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

/// One that applies to this name alone, before all others.
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
