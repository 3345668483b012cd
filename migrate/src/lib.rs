//! Makes the definitions of a broker for punctual from those of a broker with delayed exchanges.
//!
//! An exchange of type `x-delayed-message` becomes three objects: a fanout exchange of the same name as entry, so that
//! producers publish as before and no routing key is lost; a queue bound to it, from which punctual reads; and an
//! exchange of the `x-delayed-type`, which gets the bindings and to which punctual publishes.

pub mod check;
pub mod definitions;
mod exchanges;
mod names;
mod parameters;
mod pattern;
pub mod pipeline;
pub mod plan;
mod policies;
mod retired;
mod rights;
pub mod scripts;
pub mod summary;
pub mod user;
pub mod write;

use self::{
    definitions::{DELAYED, Definitions},
    plan::{Plan, QueueType},
};

/// `None` if there is no delayed exchange.
pub fn plan(old: Definitions, queue_type: QueueType) -> Option<Plan> {
    if !old.exchanges.iter().any(|exchange| exchange.kind == DELAYED) {
        return None;
    }
    let mut plan = Plan {
        moved: exchanges::choose(&old),
        user: exchanges::user(&old),
        definitions: old,
        changed: Vec::new(),
        undecided: Vec::new(),
    };
    exchanges::replace_exchanges(&mut plan);
    exchanges::add_queues(&mut plan, queue_type);
    exchanges::move_bindings(&mut plan);
    // These steps match policies and permissions by the old name, independent of the exchange's type.
    policies::adapt(&mut plan);
    rights::adapt(&mut plan);
    parameters::look(&mut plan);
    retired::remove(&mut plan);
    Some(plan)
}
