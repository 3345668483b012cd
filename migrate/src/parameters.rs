//! Shovels, federation upstreams and limits that refer to a delayed exchange or leave no room for the new queues. Their
//! values have URLs with passwords, which are not shown.

use serde_json::Value;

use crate::{
    definitions::Parameter,
    plan::{Moved, Note, Plan},
};

pub fn look(plan: &mut Plan) {
    for Parameter { component, name, vhost, value } in &plan.definitions.parameters {
        let exchange_in = |key: &str| value.get(key).and_then(Value::as_str);
        let (what, source) = match &**component {
            "shovel" => ("shovel", exchange_in("src-exchange")),
            "federation-upstream" => ("federation upstream", exchange_in("exchange")),
            "vhost-limits" => {
                let queues = plan.definitions.queues.iter().filter(|queue| queue.vhost == *vhost).count();
                let limit = value.get("max-queues").and_then(Value::as_u64);
                let added = plan.moved.iter().any(|moved| moved.vhost == *vhost);
                if added && limit.is_some_and(|limit| limit < queues as u64) {
                    let text = format!("allows fewer than the {queues} queues that there are then: raise `max-queues`");
                    plan.undecided.push(Note::new(format!("limits of `{vhost}`"), text));
                }
                continue;
            }
            _ => continue,
        };
        for Moved { vhost: home, exchange, out, .. } in &plan.moved {
            if source != Some(exchange) {
                continue;
            }
            let text = if what == "shovel" {
                format!(
                    "takes from `{exchange}`: if that is the exchange of `{home}` here, let it take from `{out}`, or it \
                     gets each message without its delay"
                )
            } else {
                format!(
                    "takes from an exchange `{exchange}` upstream: if that one is migrated too, let it take from its \
                     `{out}`"
                )
            };
            plan.undecided.push(Note::new(format!("{what} `{name}` of `{vhost}`"), text));
        }
    }
}
