//! Shovels, upstreams and limits: what names a delayed exchange, or leaves no room for the new queues. Their values hold
//! URLs with passwords, of which nothing is shown.

use serde_json::Value;

use super::{
    definitions::Parameter,
    plan::{Note, Plan},
};

pub fn look(plan: &mut Plan) {
    for parameter in &plan.definitions.parameters {
        match &*parameter.component {
            "shovel" => {
                let source = parameter.value.get("src-exchange").and_then(Value::as_str);
                for moved in plan.moved.iter().filter(|moved| source == Some(&moved.exchange)) {
                    let text = format!(
                        "takes from `{}`: if that is the exchange of `{}` here, let it take from `{}`, or it gets each \
                         message without its delay",
                        moved.exchange, moved.vhost, moved.out
                    );
                    plan.undecided.push(Note::new(about("shovel", parameter), text));
                }
            }
            "federation-upstream" => {
                let names = |key: &str| parameter.value.get(key).and_then(Value::as_str);
                for moved in plan.moved.iter().filter(|moved| names("exchange") == Some(&moved.exchange)) {
                    let text = format!(
                        "takes from an exchange `{}` upstream: if that one is migrated too, let it take from its `{}`",
                        moved.exchange, moved.out
                    );
                    plan.undecided.push(Note::new(about("federation upstream", parameter), text));
                }
            }
            "vhost-limits" => {
                let queues = plan.definitions.queues.iter().filter(|queue| queue.vhost == parameter.vhost).count();
                let limit = parameter.value.get("max-queues").and_then(Value::as_u64);
                let added = plan.moved.iter().any(|moved| moved.vhost == parameter.vhost);
                if added && limit.is_some_and(|limit| limit < queues as u64) {
                    let text = format!("allows fewer than the {queues} queues that there are then: raise `max-queues`");
                    plan.undecided.push(Note::new(format!("limits of `{}`", parameter.vhost), text));
                }
            }
            _ => {}
        }
    }
}

fn about(what: &str, parameter: &Parameter) -> String {
    format!("{what} `{}` of `{}`", parameter.name, parameter.vhost)
}
