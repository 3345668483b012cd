//! From the definitions of a broker with delayed exchanges to those of one that punctual serves.
//!
//! An exchange of type `x-delayed-message` becomes three: an entry of its name, a fanout, so that producers publish as
//! before and no routing key is lost; a queue behind it, which punctual reads; and an exchange of its `x-delayed-type`,
//! to which its bindings move and punctual publishes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    definitions::{Binding, BrokerQueue, DELAYED, DELAYED_TYPE, Definitions, Exchange},
    names, parameters, policies, retired, rights,
};

/// RabbitMQ 4 drops a message at its 21st return to a quorum queue, and each crash of punctual is a return.
pub const DELIVERY_LIMIT: u32 = 1_000_000;
/// Types that every broker has.
const TYPES: [&str; 4] = ["direct", "fanout", "headers", "topic"];

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum QueueType {
    Quorum,
    Classic,
}

pub struct Plan {
    pub definitions: Definitions,
    pub moved: Vec<Moved>,
    /// Of the broker, beside the three that every moved exchange becomes.
    pub changed: Vec<Note>,
    pub undecided: Vec<Note>,
    /// The least-privilege user.
    pub user: String,
}

/// What becomes of one delayed exchange.
#[derive(Clone, Serialize)]
pub struct Moved {
    pub vhost: String,
    pub exchange: String,
    /// Its `x-delayed-type`.
    #[serde(rename = "type")]
    pub kind: String,
    pub queue: String,
    pub out: String,
    /// Of its route, sink and source.
    pub route: String,
    pub bindings: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    pub about: String,
    pub text: String,
}

impl Note {
    pub fn new(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self { about: about.into(), text: text.into() }
    }
}

/// `None` where there is no delayed exchange.
pub fn plan(old: Definitions, queue_type: QueueType) -> Option<Plan> {
    if !old.exchanges.iter().any(|exchange| exchange.kind == DELAYED) {
        return None;
    }
    let mut plan =
        Plan { moved: choose(&old), user: user(&old), definitions: old, changed: Vec::new(), undecided: Vec::new() };
    replace_exchanges(&mut plan);
    add_queues(&mut plan, queue_type);
    move_bindings(&mut plan);
    // Each sees what the old exchange was matched by, which does not depend on its type.
    policies::adapt(&mut plan);
    rights::adapt(&mut plan);
    parameters::look(&mut plan);
    retired::remove(&mut plan);
    Some(plan)
}

fn choose(old: &Definitions) -> Vec<Moved> {
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

fn user(old: &Definitions) -> String {
    let mut taken: BTreeSet<_> = old.users.iter().map(|user| user.name.clone()).collect();
    names::free("punctual", "", &mut taken)
}

fn replace_exchanges(plan: &mut Plan) {
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

fn add_queues(plan: &mut Plan, queue_type: QueueType) {
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

fn move_bindings(plan: &mut Plan) {
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
