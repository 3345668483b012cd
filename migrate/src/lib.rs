//! From the definitions of a broker with delayed exchanges to those of one that punctual serves.
//!
//! An exchange of type `x-delayed-message` becomes three: an entry of its name, a fanout, so that producers publish as
//! before and no routing key is lost; a queue behind it, which punctual reads; and an exchange of its `x-delayed-type`,
//! to which its bindings move and punctual publishes.

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

/// `None` where there is no delayed exchange.
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
    // Each sees what the old exchange was matched by, which does not depend on its type.
    policies::adapt(&mut plan);
    rights::adapt(&mut plan);
    parameters::look(&mut plan);
    retired::remove(&mut plan);
    Some(plan)
}
