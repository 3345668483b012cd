//! Compares a running broker with a plan, and finds leftovers of the plugin.

use std::collections::BTreeSet;

use crate::{
    definitions::{Binding, BrokerPolicy, DELAYED, Definitions, Exchange},
    plan::{Moved, Note, Plan},
    rights,
};

/// Returns the differences; empty if there are none. Permissions are compared only if `running` has any, because not
/// all users can read them.
pub fn compare(plan: &Plan, running: &Definitions) -> Vec<Note> {
    let mut found = Vec::new();
    for moved in &plan.moved {
        if running.exchanges.iter().any(|it| it.kind == DELAYED && is_entry(moved, it)) {
            // Further checks of this exchange would fail, too.
            let text = "is still the plugin's: cutover.sh replaces it, an import alone does not";
            found.push(Note::new(format!("exchange `{}` of `{}`", moved.exchange, moved.vhost), text));
            continue;
        }
        exchanges(plan, moved, running, &mut found);
        queue(plan, moved, running, &mut found);
        bindings(plan, moved, running, &mut found);
    }
    for policy in plan.definitions.policies.iter().filter(|policy| is_ours(policy, &plan.moved)) {
        if !running.policies.contains(policy) {
            let text = "is missing or differs from definitions.json";
            found.push(Note::new(format!("policy `{}` of `{}`", policy.name, policy.vhost), text));
        }
    }
    if !running.permissions.is_empty() {
        for wanted in rights::least(plan) {
            let has = running.permissions.iter().find(|it| (&it.user, &it.vhost) == (&wanted.user, &wanted.vhost));
            let text = match has {
                None => "has no rights there, or does not exist",
                Some(has) if *has != wanted => "has other rights than planned",
                Some(_) => continue,
            };
            found.push(Note::new(format!("user `{}` in `{}`", wanted.user, wanted.vhost), text));
        }
    }
    found
}

fn is_entry(moved: &Moved, exchange: &Exchange) -> bool {
    (&exchange.vhost, &exchange.name) == (&moved.vhost, &moved.exchange)
}

/// Whether the policy was made for a name that the migration added.
fn is_ours(policy: &BrokerPolicy, moved: &[Moved]) -> bool {
    moved.iter().any(|it| {
        it.vhost == policy.vhost && [&it.queue, &it.out].iter().any(|name| policy.name == format!("punctual {name}"))
    })
}

fn exchanges(plan: &Plan, moved: &Moved, running: &Definitions, found: &mut Vec<Note>) {
    let find = |definitions: &Definitions, name: &str| -> Option<Exchange> {
        definitions.exchanges.iter().find(|it| (&it.vhost, &*it.name) == (&moved.vhost, name)).cloned()
    };
    for name in [&moved.exchange, &moved.out] {
        let about = format!("exchange `{name}` of `{}`", moved.vhost);
        let wanted = find(&plan.definitions, name).expect("the plan has it");
        let text = match find(running, name) {
            None => "is missing".to_owned(),
            Some(is) if is.kind != wanted.kind => format!("is of type {} and not {}", is.kind, wanted.kind),
            Some(is) if is.arguments != wanted.arguments => "has other arguments than planned".into(),
            Some(is) if !is.durable || is.auto_delete => "is not durable, or deleted with its last binding".into(),
            Some(_) => continue,
        };
        found.push(Note::new(about, text));
    }
}

fn queue(plan: &Plan, moved: &Moved, running: &Definitions, found: &mut Vec<Note>) {
    let find = |definitions: &Definitions| {
        definitions.queues.iter().find(|it| (&it.vhost, &it.name) == (&moved.vhost, &moved.queue)).cloned()
    };
    let wanted = find(&plan.definitions).expect("the plan has it");
    let text = match find(running) {
        None => "is missing",
        Some(is) if !is.durable => "is not durable",
        // RabbitMQ 4 adds the type to a queue that was declared without one.
        Some(is) if wanted.arguments.iter().any(|(name, value)| is.arguments.get(name) != Some(value)) => {
            "has other arguments than planned"
        }
        Some(_) => return,
    };
    found.push(Note::new(format!("queue `{}` of `{}`", moved.queue, moved.vhost), text));
}

fn bindings(plan: &Plan, moved: &Moved, running: &Definitions, found: &mut Vec<Note>) {
    let from = |definitions: &Definitions, source: &str| -> Vec<Binding> {
        let all = definitions.bindings.iter().filter(|it| it.vhost == moved.vhost && it.source == source);
        all.cloned().collect()
    };
    let (into, out) = (from(running, &moved.exchange), from(running, &moved.out));
    let about =
        |binding: &Binding| format!("{} `{}` of `{}`", binding.destination_type, binding.destination, moved.vhost);
    for wanted in from(&plan.definitions, &moved.exchange).iter().chain(&from(&plan.definitions, &moved.out)) {
        if !into.contains(wanted) && !out.contains(wanted) {
            let text = format!("is not bound to `{}` under `{}`", wanted.source, wanted.routing_key);
            found.push(Note::new(about(wanted), text));
        }
    }
    let target = |it: &Binding| (it.destination_type.clone(), it.destination.clone());
    let mut told = BTreeSet::from([("queue".to_owned(), moved.queue.clone())]);
    for stray in &into {
        if told.insert(target(stray)) {
            let Moved { exchange, out: new, .. } = moved;
            let text = if out.iter().any(|it| target(it) == target(stray)) {
                format!("is bound to `{exchange}` and `{new}`: each message comes twice, first without its delay")
            } else {
                format!("is bound to `{exchange}`: it gets each message without its delay; bind it to `{new}`")
            };
            found.push(Note::new(about(stray), text));
        }
    }
}
