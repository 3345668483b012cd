//! The summary for a person: the replaced exchanges, other changes, and open decisions.

use std::fmt::Write as _;

use crate::{
    definitions::Permission,
    plan::{Moved, Note, Plan},
    rights,
};

/// Markdown, which is also readable in a terminal. Has no secrets.
pub fn text(plan: &Plan) -> String {
    let mut text = "# Delayed exchanges\n\n".to_owned();
    for Moved { vhost, exchange, kind, queue, out, bindings, .. } in &plan.moved {
        let _ = writeln!(
            text,
            "- `{exchange}` of `{vhost}`, {kind}: now a fanout, which producers publish to as before; queue `{queue}`; \
             exchange `{out}` of type {kind} with {bindings} of its bindings"
        );
    }
    for Permission { user, vhost, configure, write, read } in rights::least(plan) {
        let _ =
            writeln!(text, "- New user `{user}` in `{vhost}`: configure `{configure}`, write `{write}`, read `{read}`");
    }
    text += "\n# For you to do\n\n\
        - Producers: leave out what declares such an exchange as `x-delayed-message`. Everything else stays.\n\
        - Consumers: what binds a queue to such an exchange at its start must bind to the `.delay.out` one instead. An \
          exclusive queue is in no export: its program binds it.\n\
        - What waits inside the plugin: let it run empty before the old exchange goes.\n";
    list(&mut text, &plan.undecided);
    if !plan.changed.is_empty() {
        text += "\n# Also changed\n\n";
        list(&mut text, &plan.changed);
    }
    text
}

fn list(text: &mut String, notes: &[Note]) {
    for note in notes {
        let mut about = note.about.chars();
        let first = about.next().map(|c| c.to_ascii_uppercase()).into_iter();
        let about: String = first.chain(about).collect();
        let _ = writeln!(text, "- {about} {}.", note.text);
    }
}
