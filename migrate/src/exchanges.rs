//! Replaces each delayed exchange by an entry exchange of the same name, a queue, and an exchange for its bindings.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::{
    definitions::{Binding, BrokerQueue, DELAYED, DELAYED_TYPE, Definitions, Exchange},
    names,
    plan::{DELIVERY_LIMIT, Moved, Note, Plan, QueueType},
};

/// Exchange types of every broker.
const TYPES: [&str; 4] = ["direct", "fanout", "headers", "topic"];

pub fn choose(old: &Definitions) -> Vec<Moved> {
    let delayed: Vec<_> = old.exchanges.iter().filter_map(|it| Some((it, it.delayed_type()?))).collect();
    let several = delayed.iter().map(|(it, _)| &it.vhost).collect::<BTreeSet<_>>().len() > 1;
    let mut routes = BTreeSet::new();
    let mut taken: BTreeMap<&str, (BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
    for exchange in &old.exchanges {
        taken.entry(&exchange.vhost).or_default().0.insert(exchange.name.clone());
    }
    for queue in &old.queues {
        taken.entry(&queue.vhost).or_default().1.insert(queue.name.clone());
    }
    let choose = |(exchange, kind): (&Exchange, &str)| {
        let (exchanges, queues) = taken.get_mut(&*exchange.vhost).expect("entered above");
        let base = match &*exchange.vhost {
            _ if !several => exchange.name.clone(),
            "/" => format!("default-{}", exchange.name),
            vhost => format!("{vhost}-{}", exchange.name),
        };
        Moved {
            vhost: exchange.vhost.clone(),
            exchange: exchange.name.clone(),
            kind: kind.to_owned(),
            queue: names::free(&exchange.name, ".delay.in", queues),
            out: names::free(&exchange.name, ".delay.out", exchanges),
            route: names::of_route(&base, &mut routes),
            bindings: 0,
        }
    };
    delayed.into_iter().map(choose).collect()
}

pub fn user(old: &Definitions) -> String {
    let mut taken: BTreeSet<_> = old.users.iter().map(|user| user.name.clone()).collect();
    names::free("punctual", "", &mut taken)
}

pub fn replace_exchanges(plan: &mut Plan) {
    let mut added = Vec::new();
    for exchange in &mut plan.definitions.exchanges {
        let about = format!("exchange `{}` of `{}`", exchange.name, exchange.vhost);
        let Some(moved) = plan.moved.iter().find(|it| it.vhost == exchange.vhost && it.exchange == exchange.name)
        else {
            if exchange.kind == DELAYED {
                let text = format!("has no `{DELAYED_TYPE}`, so it stays as it is: give it a type, or delete it");
                plan.undecided.push(Note::new(about, text));
            }
            continue;
        };
        if !TYPES.contains(&&*moved.kind) {
            let text = format!("routes as `{}`: the new broker needs the plugin that has this type", moved.kind);
            plan.undecided.push(Note::new(&about, text));
        }
        if !exchange.durable || exchange.auto_delete {
            let was = if exchange.durable { "deleted with its last binding" } else { "not durable" };
            let text = format!(
                "was {was}; it and `{}` are durable and stay. A program that declares it at its start must stop doing so",
                moved.out
            );
            plan.undecided.push(Note::new(&about, text));
        }
        (exchange.durable, exchange.auto_delete) = (true, false);
        let (name, kind) = (moved.out.clone(), moved.kind.clone());
        let mut out = Exchange { name, kind, internal: false, ..exchange.clone() };
        out.arguments.remove(DELAYED_TYPE);
        exchange.kind = "fanout".into();
        exchange.arguments = Map::new();
        added.push(out);
    }
    plan.definitions.exchanges.append(&mut added);
}

pub fn add_queues(plan: &mut Plan, queue_type: QueueType) {
    let arguments = match queue_type {
        QueueType::Quorum => json!({ "x-queue-type": "quorum", "x-delivery-limit": DELIVERY_LIMIT }),
        QueueType::Classic => json!({ "x-queue-type": "classic" }),
    };
    let Value::Object(arguments) = arguments else { unreachable!("an object") };
    let queue = |moved: &Moved| BrokerQueue {
        name: moved.queue.clone(),
        vhost: moved.vhost.clone(),
        durable: true,
        auto_delete: false,
        arguments: arguments.clone(),
        rest: Map::new(),
    };
    plan.definitions.queues.extend(plan.moved.iter().map(queue));
}

pub fn move_bindings(plan: &mut Plan) {
    for moved in &mut plan.moved {
        for binding in &mut plan.definitions.bindings {
            if binding.vhost != moved.vhost {
                continue;
            }
            if binding.destination_type == "exchange" && binding.destination == moved.exchange {
                let text = format!(
                    "stays bound to `{}`, which routes into it: look whether what comes this way is to be delayed",
                    binding.source
                );
                let about = format!("exchange `{}` of `{}`", moved.exchange, moved.vhost);
                plan.undecided.push(Note::new(about, text));
            }
            if binding.source == moved.exchange {
                binding.source.clone_from(&moved.out);
                moved.bindings += 1;
            }
        }
        plan.definitions.bindings.push(Binding {
            source: moved.exchange.clone(),
            vhost: moved.vhost.clone(),
            destination: moved.queue.clone(),
            destination_type: "queue".into(),
            routing_key: String::new(),
            arguments: Map::new(),
        });
    }
}
