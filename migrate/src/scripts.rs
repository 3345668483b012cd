//! The shell scripts of the cutover and of the rollback, which a person runs.

use crate::{
    definitions::DELAYED,
    plan::{Moved, Plan},
};

/// The beginning of each script: the command for the broker, and the directory.
const CTL: &str = r#"set -eu
ctl() { ${RABBITMQCTL:-rabbitmqctl} -q "$@"; } # RABBITMQCTL="rabbitmqctl -n rabbit@host" for another node
cd "$(dirname "$0")"
"#;

/// For the broker that still has the plugin: deletes the objects that an import would not replace, and imports.
pub fn cutover(plan: &Plan) -> String {
    let old = exchanges(plan, |moved| (&moved.exchange, DELAYED));
    format!(
        "#!/bin/sh\n\
         # Moves the delayed exchanges of the running broker to punctual. Stop the producers before: from here to the end,\n\
         # which takes seconds, publishing to these exchanges fails. Does nothing while messages wait inside the plugin:\n\
         # they would be lost. A new broker needs the import only.\n\
         {CTL}{DROP}old=\"{old}\"\n{WAITING}drop \"$old\"\nctl import_definitions \"$PWD/definitions.json\"\n"
    )
}

/// The rollback to the original export.
pub fn rollback(plan: &Plan, export: &str) -> String {
    let entries = exchanges(plan, |moved| (&moved.exchange, "fanout"));
    let outs = exchanges(plan, |moved| (&moved.out, &moved.kind));
    let queues: Vec<_> =
        plan.moved.iter().map(|moved| format!("{{{}, {}}}", erlang(&moved.vhost), erlang(&moved.queue))).collect();
    let (export, user) = (quoted(export), quoted(&plan.user));
    format!(
        "#!/bin/sh\n\
         # Back to the plugin: rollback.sh [EXPORT], the export that the migration began with. Stop the producers before, let\n\
         # punctual run until it has nothing left (`punctual status`), and stop it. A queue that holds messages is kept.\n\
         {CTL}{DROP}export=${{1:-{export}}}\n\
         [ -r \"$export\" ] || {{ echo \"rollback.sh: there is no $export\" >&2; exit 2; }}\n\
         drop \"{entries}\"\n\
         ctl import_definitions \"$export\"\n\
         drop \"{outs}\"\n\
         queues=\"[{}]\"\n{DROP_QUEUES}\
         ctl delete_user {user} || true\n",
        queues.join(", ")
    )
}

/// Lists the messages that wait on any node, and if there are any, ends the script.
const WAITING: &str = r#"waiting=$(ctl eval "[{V, N, C} || {V, N, T} <- $old, {ok, X} <- [rabbit_exchange:lookup(rabbit_misc:r(V, exchange, N))],
    element(3, X) =:= T,
    C <- [lists:sum([rpc:call(A, rabbit_delayed_message, messages_delayed, [X]) || A <- [node() | nodes()]])],
    C > 0].")
[ "$waiting" = "[]" ] || { echo "messages wait inside the plugin (virtual host, exchange, number): $waiting" >&2; exit 1; }
"#;

/// Deletes exchanges of the given type, so that a second run does no harm. `rabbitmqctl` has no command for it.
const DROP: &str = r#"drop() { # [{VHOST, EXCHANGE, TYPE}]
    ctl eval "[ok = rabbit_exchange:delete(R, false, <<\"punctual\">>) || {V, N, T} <- $1,
        R <- [rabbit_misc:r(V, exchange, N)], {ok, X} <- [rabbit_exchange:lookup(R)], element(3, X) =:= T]." >/dev/null
}
"#;

/// Deletes empty queues and lists the others. `delete_queue --if-empty` is refused for quorum queues.
const DROP_QUEUES: &str = r#"kept=$(ctl eval "[{V, N} || {V, N} <- $queues, {ok, Q} <- [rabbit_amqqueue:lookup(rabbit_misc:r(V, queue, N))],
    case rabbit_amqqueue:stat(Q) of
        {ok, 0, 0} -> rabbit_amqqueue:delete(Q, false, false, <<\"punctual\">>), false;
        _ -> true
    end].")
[ "$kept" = "[]" ] || echo "kept, as they have messages or consumers: $kept" >&2
"#;

/// The exchanges as an Erlang list of virtual host, name and type.
fn exchanges<'a>(plan: &'a Plan, which: impl Fn(&'a Moved) -> (&'a String, &'a str)) -> String {
    let one = |moved: &'a Moved| {
        let (name, kind) = which(moved);
        // The type is an Erlang atom. These characters do not occur in types.
        let kind = kind.replace(['\'', '\\', '"', '$', '`'], "");
        format!("{{{}, {}, '{kind}'}}", erlang(&moved.vhost), erlang(name))
    };
    let all: Vec<_> = plan.moved.iter().map(one).collect();
    format!("[{}]", all.join(", "))
}

/// The text quoted for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// An Erlang binary within double quotes of a shell; as numbers if a character could have a meaning there.
fn erlang(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" ._-/:#@+".contains(&byte)) {
        return format!("<<\\\"{text}\\\">>");
    }
    let bytes: Vec<_> = text.bytes().map(|byte| byte.to_string()).collect();
    format!("<<{}>>", bytes.join(","))
}
