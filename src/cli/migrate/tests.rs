//! Planning, with an export of RabbitMQ 3.10 with the plugin and with other definitions beside its own.

use std::any::Any;

use serde_json::{Value, json};

use crate::connector::rabbitmq::{RabbitMqSinkSettings, RabbitMqSourceSettings};
use punctual_migrate::{
    check,
    definitions::Definitions,
    pipeline,
    plan::{Note, Plan, QueueType},
    summary, user,
};

const OLD: &str = include_str!("../../../tests/it/program/rabbitmq_migration/old.json");

fn old() -> Value {
    serde_json::from_str(OLD).unwrap()
}

fn planned(old: &Value) -> Plan {
    punctual_migrate::plan(Definitions::parse(old.to_string().as_bytes()).unwrap(), QueueType::Quorum).unwrap()
}

fn new(plan: &Plan) -> Value {
    serde_json::to_value(&plan.definitions).unwrap()
}

/// Appends to a list of the export.
fn with(mut old: Value, list: &str, entry: Value) -> Value {
    old[list].as_array_mut().unwrap().push(entry);
    old
}

fn find<'a>(definitions: &'a Value, list: &str, vhost: &str, name: &str) -> &'a Value {
    let all = definitions[list].as_array().unwrap();
    all.iter().find(|it| it["name"] == name && it["vhost"] == vhost).unwrap_or_else(|| panic!("no {name} in {list}"))
}

fn bindings(definitions: &Value, vhost: &str, source: &str) -> Vec<String> {
    let all = definitions["bindings"].as_array().unwrap().iter();
    let of_source = all.filter(|it| it["source"] == source && it["vhost"] == vhost);
    let mut shown: Vec<_> = of_source
        .map(|it| format!("{} {}", it["destination"].as_str().unwrap(), it["routing_key"].as_str().unwrap()))
        .collect();
    shown.sort();
    shown
}

fn has(notes: &[Note], about: &str, text: &str) -> bool {
    notes.iter().any(|note| note.about.contains(about) && note.text.contains(text))
}

#[test]
fn each_delayed_exchange_becomes_an_entry_a_queue_and_an_exchange_of_its_type() {
    let plan = planned(&old());
    let new = new(&plan);
    for (vhost, name, kind, bound) in [
        ("/", "orders", "direct", vec!["orders.all new", "orders.all paid", "orders.paid paid"]),
        ("/", "events", "topic", vec!["events.eu *.eu", "unrouted all.#"]),
        ("/", "mails", "fanout", vec!["mails.out "]),
        ("/", "tagged", "headers", vec!["tagged "]),
        ("tenant/eu", "orders", "topic", vec!["orders #"]),
    ] {
        let (entry, out) = (find(&new, "exchanges", vhost, name), format!("{name}.delay.out"));
        assert_eq!((&entry["type"], &entry["arguments"]), (&json!("fanout"), &json!({})));
        assert_eq!(find(&new, "exchanges", vhost, &out)["type"], kind);
        let queue = find(&new, "queues", vhost, &format!("{name}.delay.in"));
        assert_eq!(queue["arguments"], json!({ "x-queue-type": "quorum", "x-delivery-limit": 1_000_000 }));
        assert_eq!(bindings(&new, vhost, name), [format!("{name}.delay.in ")]);
        assert_eq!(bindings(&new, vhost, &out), bound);
    }
    assert_eq!(bindings(&new, "/", "front"), ["events ev.#"]);
    let tagged = new["bindings"].as_array().unwrap().iter().find(|it| it["source"] == "tagged.delay.out").unwrap();
    assert_eq!(tagged["arguments"], json!({ "x-match": "all", "n": 5, "s": "five", "b": true }));
    let out = find(&new, "exchanges", "/", "orders.delay.out");
    assert_eq!(out["arguments"], json!({ "alternate-exchange": "unrouted" }));
    assert!(!new.to_string().contains("x-delayed"));
    // Unrelated definitions are unchanged.
    for name in ["vhosts", "topic_permissions", "global_parameters", "rabbit_version", "users"] {
        assert_eq!(new[name], old()[name], "{name}");
    }
}

#[test]
fn the_plan_of_a_plan_finds_nothing_to_move_and_nothing_to_complain_of() {
    let mut plan = planned(&old());
    user::add(&mut plan, "secret", [1, 2, 3, 4]);
    assert_eq!(check::compare(&plan, &plan.definitions), []);
    assert!(punctual_migrate::plan(plan.definitions, QueueType::Quorum).is_none());
}

#[test]
fn taken_names_are_left_to_their_owners() {
    let queue =
        json!({ "name": "mails.delay.in", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {} });
    let user = json!({ "name": "punctual", "password_hash": "", "tags": [] });
    let plan = planned(&with(with(old(), "queues", queue), "users", user));
    let moved = plan.moved.iter().find(|moved| moved.exchange == "mails").unwrap();
    assert_eq!((&*moved.queue, &*moved.out), ("mails.delay.in.2", "mails.delay.out"));
    assert_eq!(plan.user, "punctual.2");
    assert!(has(&plan.undecided, "user `punctual`", "has no password"));
}

#[test]
fn policies_follow_the_bindings_and_keep_off_the_new_queues() {
    let plan = planned(&old());
    let new = new(&plan);
    let policy = |name: &str| find(&new, "policies", "/", name);
    let alternate = policy("punctual events.delay.out");
    assert_eq!(alternate["definition"], json!({ "alternate-exchange": "unrouted" }));
    assert_eq!((&alternate["pattern"], &alternate["priority"]), (&json!(r"^events\.delay\.out$"), &json!(2)));
    assert_eq!(policy("punctual mails.delay.in")["definition"], json!({ "delivery-limit": 1_000_000 }));
    // In the other virtual host there are no policies.
    assert_eq!(new["policies"].as_array().unwrap().iter().filter(|policy| policy["vhost"] != "/").count(), 0);
    // RabbitMQ 4 refuses an import with `ha-mode`.
    assert!(!new["policies"].to_string().contains("ha-mode"));
    assert_eq!(policy("bounds")["definition"], json!({ "max-length": 100_000 }));
    assert!(has(&plan.changed, "policy `mirrors`", "is left out"));
    let federated = json!({ "name": "fed", "vhost": "/", "pattern": "^mails$", "apply-to": "exchanges", "priority": 9,
        "definition": { "federation-upstream-set": "all" } });
    assert!(has(&planned(&with(old(), "policies", federated)).undecided, "policy `fed`", "federates `mails`"));
    let wide = json!({ "name": "wide", "vhost": "/", "pattern": r"\.out$", "apply-to": "exchanges", "priority": 9,
        "definition": { "alternate-exchange": "front" } });
    let plan = planned(&with(old(), "policies", wide));
    assert!(has(&plan.undecided, "policy `wide`", "`orders.delay.out` an alternate exchange"));
    let broken =
        json!({ "name": "broken", "vhost": "/", "pattern": "(", "apply-to": "all", "priority": 0, "definition": {} });
    assert!(has(&planned(&with(old(), "policies", broken)).undecided, "policy `broken`", "cannot be evaluated"));
    // The format of an export of 3.10.
    let operator = json!({ "component": "operator_policy", "name": "op", "vhost": "/",
        "value": { "apply-to": "queues", "definition": [["message-ttl", 5]], "pattern": ".*", "priority": 0 } });
    assert!(has(&planned(&with(old(), "parameters", operator)).undecided, "operator policy `op`", "`mails.delay.in`"));
}

#[test]
fn rights_to_bind_follow_the_bindings() {
    let plan = planned(&old());
    let new = new(&plan);
    let read = |user: &str, vhost: &str| {
        let all = new["permissions"].as_array().unwrap();
        all.iter().find(|it| it["user"] == user && it["vhost"] == vhost).unwrap()["read"].as_str().unwrap().to_owned()
    };
    assert_eq!(read("mailer", "/"), r"(?:^mails$)|^mails\.delay\.out$");
    assert_eq!(read("shop", "/"), "^(orders|events)");
    assert!(has(&plan.changed, "user `mailer`", "may read `mails.delay.out`"));
    assert!(has(&plan.undecided, "user `mailer`", "may declare `mails` and not `mails.delay.out`"));
    assert!(has(&plan.undecided, "exchange `mails` of `/`", "`guest`, `mailer`"));
}

#[test]
fn what_cannot_be_decided_is_told() {
    let exchange = |name: &str, change: Value| {
        let mut exchange = json!({ "name": name, "vhost": "/", "type": "x-delayed-message", "durable": true,
            "auto_delete": false, "internal": false, "arguments": { "x-delayed-type": "topic" } });
        for (field, value) in change.as_object().unwrap() {
            exchange[field] = value.clone();
        }
        with(old(), "exchanges", exchange)
    };
    for (old, about, text) in [
        (old(), "exchange `events`", "stays bound to `front`"),
        (exchange("x", json!({ "durable": false })), "exchange `x`", "was not durable"),
        (exchange("x", json!({ "auto_delete": true })), "exchange `x`", "deleted with its last binding"),
        (exchange("x", json!({ "arguments": {} })), "exchange `x`", "has no `x-delayed-type`"),
        (
            exchange("x", json!({ "arguments": { "x-delayed-type": "x-consistent-hash" } })),
            "exchange `x`",
            "routes as `x-consistent-hash`",
        ),
        (
            with(
                old(),
                "parameters",
                json!({ "component": "shovel", "name": "s", "vhost": "/",
                "value": { "src-exchange": "mails", "src-uri": "amqp://u:secret@h" } }),
            ),
            "shovel `s`",
            "takes from `mails`",
        ),
        (
            with(
                old(),
                "parameters",
                json!({ "component": "federation-upstream", "name": "f", "vhost": "/",
                "value": { "exchange": "mails", "uri": "amqp://u:secret@h" } }),
            ),
            "federation upstream `f`",
            "`mails` upstream",
        ),
        (
            with(
                old(),
                "parameters",
                json!({ "component": "vhost-limits", "name": "limits", "vhost": "/",
                "value": { "max-queues": 9 } }),
            ),
            "limits of `/`",
            "raise `max-queues`",
        ),
    ] {
        let plan = planned(&old);
        assert!(has(&plan.undecided, about, text), "{text}: {:#?}", plan.undecided);
        assert!(!summary::text(&plan).contains("secret"));
    }
}

/// Names of exchanges and queues can have any characters.
#[test]
fn the_configuration_is_valid_whatever_the_names() {
    let mut old = old();
    for name in ["a b/c", "${HOME}", "{key}", "quote\"d 'x'", "é: #", "$${x}"] {
        let exchange = json!({ "name": name, "vhost": "tenant/eu", "type": "x-delayed-message", "durable": true,
            "auto_delete": false, "internal": false, "arguments": { "x-delayed-type": "fanout" } });
        old = with(old, "exchanges", exchange);
    }
    let plan = planned(&old);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pipeline::yaml(&plan)).unwrap();
    let env = [("PUNCTUAL_RABBITMQ_PASSWORD".to_owned(), "p".to_owned())].into();
    let sources =
        crate::config::Sources { files: vec![file.path().to_owned()], env, redis_url: None, development: None };
    let config =
        crate::config::load(&sources, &crate::connector::registry()).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.routes.len(), plan.moved.len());
    for moved in &plan.moved {
        let sink: &dyn Any = &*config.sinks[&*moved.route];
        let sink: &RabbitMqSinkSettings = sink.downcast_ref().expect("a RabbitMQ sink");
        assert_eq!(sink.exchange.as_constant(), Some(&*moved.out));
        let source: &dyn Any = &*config.sources[&*moved.route];
        let source: &RabbitMqSourceSettings = source.downcast_ref().expect("a RabbitMQ source");
        assert_eq!(&*source.queue, &*moved.queue);
        assert!(source.server().url.expose().ends_with(if moved.vhost == "/" { "/%2F" } else { "/tenant%2Feu" }));
    }
}
