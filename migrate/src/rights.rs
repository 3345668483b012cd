//! Adapts permissions, which are regular expressions on names: a user who could bind to a delayed exchange must be able
//! to bind to the exchange that now has its bindings.

use std::collections::BTreeSet;

use crate::{
    definitions::Permission,
    pattern,
    plan::{Moved, Note, Plan},
};

pub fn adapt(plan: &mut Plan) {
    let may = |right: &str, name: &str| pattern::allows(right, name) == Some(true);
    for permission in &mut plan.definitions.permissions {
        let about = format!("user `{}` in `{}`", permission.user, permission.vhost);
        let of_vhost: Vec<&Moved> = plan.moved.iter().filter(|moved| moved.vhost == permission.vhost).collect();
        let rights = [&permission.configure, &permission.write, &permission.read];
        if !of_vhost.is_empty() && rights.iter().any(|right| pattern::allows(right, "").is_none()) {
            let text = "has a right that cannot be evaluated here: look which of the new names it matches";
            plan.undecided.push(Note::new(&about, text));
        }
        let gains = |right: &str, moved: &Moved| may(right, &moved.exchange) && !may(right, &moved.out);
        let readable = of_vhost.iter().filter(|moved| gains(&permission.read, moved)).map(|moved| &*moved.out);
        let readable: Vec<&str> = readable.collect();
        if !readable.is_empty() {
            permission.read = format!("(?:{})|{}", permission.read, pattern::exactly(readable.iter().copied()));
            let text = format!("may read `{}`, to bind its queues there", readable.join("`, `"));
            plan.changed.push(Note::new(&about, text));
        }
        for moved in of_vhost.iter().filter(|moved| gains(&permission.configure, moved)) {
            let text = format!(
                "may declare `{}` and not `{}`: a consumer that declares the exchange to which it binds must leave that \
                 out, or get the right",
                moved.exchange, moved.out
            );
            plan.undecided.push(Note::new(&about, text));
        }
    }
    for user in plan.definitions.users.iter().filter(|user| !user.has_password()) {
        let text = "has no password in the export, so an import gives none: set it anew if the user logs in with one";
        plan.undecided.push(Note::new(format!("user `{}`", user.name), text));
    }
    for Moved { vhost, exchange, out, .. } in &plan.moved {
        let readers = plan.definitions.permissions.iter().filter(|it| it.vhost == *vhost && may(&it.read, exchange));
        let users: BTreeSet<&str> = readers.map(|permission| &*permission.user).collect();
        if !users.is_empty() {
            let who = users.into_iter().collect::<Vec<_>>().join("`, `");
            let text = format!(
                "can be bound to by `{who}`: a program of theirs that binds a queue at its start must bind to `{out}`, or \
                 each message comes twice, first without its delay"
            );
            plan.undecided.push(Note::new(format!("exchange `{exchange}` of `{vhost}`"), text));
        }
    }
}

/// The permissions that punctual needs, one for each virtual host, in order.
pub fn least(plan: &Plan) -> Vec<Permission> {
    let vhosts: BTreeSet<&String> = plan.moved.iter().map(|moved| &moved.vhost).collect();
    let of = |vhost: &String| {
        let moved = || plan.moved.iter().filter(|moved| moved.vhost == *vhost);
        Permission {
            user: plan.user.clone(),
            vhost: vhost.clone(),
            configure: pattern::exactly([]),
            write: pattern::exactly(moved().map(|moved| &*moved.out)),
            read: pattern::exactly(moved().map(|moved| &*moved.queue)),
        }
    };
    vhosts.into_iter().map(of).collect()
}
