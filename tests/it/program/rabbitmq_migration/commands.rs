//! The command itself: what it writes and refuses, the comparison with a running broker, and the way back.

use std::{fs, os::unix::fs::PermissionsExt};

use lapin::{options::QueueBindOptions, types::FieldTable};

use super::{Migrated, OLD};
use crate::support::command;

#[tokio::test]
async fn nothing_is_overwritten_and_no_hash_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("old.json"), OLD).unwrap();
    let run = async |arguments: &[&str]| {
        let unset = [("PUNCTUAL_RABBITMQ_PASSWORD".to_owned(), String::new())];
        command::run(directory.path(), &unset, &[&["migrate", "rabbitmq"], arguments].concat(), b"").await
    };
    let shown = run(&["old.json"]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.out.contains("orders.delay.out") && shown.out.contains("--out DIR"), "{}", shown.out);
    let written = run(&["old.json", "--out", "new"]).await;
    assert_eq!(written.code, Some(0), "{written:?}");
    let read = |name: &str| fs::read_to_string(directory.path().join("new").join(name)).unwrap();
    let mode = |name: &str| directory.path().join("new").join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(""), mode("definitions.json"), mode("password"), mode("cutover.sh")),
        (0o700, 0o600, 0o600, 0o700)
    );
    let hashes: Vec<&str> = OLD.split("\"password_hash\": \"").skip(1).filter_map(|it| it.split('"').next()).collect();
    assert_eq!(hashes.len(), 3);
    for hash in hashes {
        assert!(read("definitions.json").contains(hash));
        assert!(!written.out.contains(hash) && !shown.out.contains(hash) && !read("SUMMARY.md").contains(hash));
    }
    let password = read("password");
    assert_eq!(password.trim().len(), 32);
    for name in ["definitions.json", "punctual.yaml", "cutover.sh", "rollback.sh", "SUMMARY.md"] {
        assert!(!read(name).contains(password.trim()), "{name}");
    }
    let again = run(&["old.json", "--out", "new"]).await;
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.error.contains("new/definitions.json: exists"), "{}", again.error);
    assert_eq!(read("password"), password);
}

#[tokio::test]
async fn what_is_no_export_is_refused_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    for (content, code, text) in [
        ("", 2, "no JSON"),
        ("[]", 2, "no `exchanges`"),
        (r#"{"exchanges": [{"name": "x", "type": "topic"}]}"#, 2, "one virtual host"),
        (r#"{"exchanges": [], "users": [{"password_hash": "c2VjcmV0"}]}"#, 2, "missing field `name`"),
        (r#"{"exchanges": [], "policies": "c2VjcmV0"}"#, 2, "a field has another type"),
        (r#"{"exchanges": []}"#, 3, "no exchange of type x-delayed-message"),
    ] {
        fs::write(directory.path().join("export.json"), content).unwrap();
        let ended = command::run(directory.path(), &[], &["migrate", "rabbitmq", "export.json"], b"").await;
        assert_eq!(ended.code, Some(code), "{content}: {ended:?}");
        assert!(ended.error.contains("export.json: ") && ended.error.contains(text), "{content}: {}", ended.error);
        assert!(!ended.error.contains("c2VjcmV0"), "{}", ended.error);
    }
    let ended = command::run(directory.path(), &[], &["migrate", "rabbitmq", "nowhere.json"], b"").await;
    assert!(ended.code == Some(2) && ended.error.contains("nowhere.json: No such file"), "{ended:?}");
}

/// By the management API and by an export, as planned and with what people forget.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn check_finds_what_differs_on_a_running_broker_and_rollback_removes_what_came() {
    let migrated = Migrated::start().await;
    let broker = &migrated.broker;
    let url = format!("http://127.0.0.1:{}", migrated.management.number());
    let export = async || {
        let path = migrated.path("running.json");
        broker.ctl(&["export_definitions", path.to_str().unwrap()]).await;
        path.to_str().unwrap().to_owned()
    };
    for place in [url.clone(), export().await] {
        let ended = migrated.migrate(&["--check", &place]).await;
        assert_eq!(
            (ended.code, &*ended.out),
            (Some(0), "the broker is as planned; rights were compared\n"),
            "{ended:?}"
        );
    }
    // A check that does not see rights reports it.
    let mut users: serde_json::Value = serde_json::from_str(OLD).unwrap();
    users["users"].as_array_mut().unwrap().retain(|user| user["name"] == "guest");
    users["users"][0]["name"] = "watcher".into();
    users["users"][0]["tags"] = serde_json::json!(["monitoring"]);
    let path = migrated.path("watcher.json");
    let may =
        |vhost| serde_json::json!({ "user": "watcher", "vhost": vhost, "configure": "", "write": "", "read": "" });
    for permissions in [vec![may("/")], vec![may("/"), may("tenant/eu")]] {
        let definitions = serde_json::json!({ "users": users["users"], "permissions": permissions });
        fs::write(&path, definitions.to_string()).unwrap();
        broker.ctl(&["import_definitions", path.to_str().unwrap()]).await;
        let ended = migrated.migrate(&["--check", &url, "--user", "watcher"]).await;
        if permissions.len() == 1 {
            let refused = ended.error.contains("virtual host `tenant/eu` is not there, or user `watcher` may not see");
            assert!(ended.code == Some(1) && refused, "{ended:?}");
        } else {
            let seen = "the broker is as planned; rights were not seen\n";
            assert_eq!((ended.code, &*ended.out), (Some(0), seen), "{ended:?}");
        }
    }

    let channel = broker.channel().await;
    let none = FieldTable::default;
    for (queue, exchange, key) in [("orders.paid", "orders", "paid"), ("tagged", "mails", "")] {
        let options = QueueBindOptions::default();
        channel.queue_bind(queue.into(), exchange.into(), key.into(), options, none()).await.unwrap();
    }
    channel.queue_unbind("events.eu".into(), "events.delay.out".into(), "*.eu".into(), none()).await.unwrap();
    broker.ctl(&["clear_policy", "punctual mails.delay.in"]).await;
    broker.ctl(&["set_permissions", "punctual", ".*", ".*", ".*"]).await;
    broker.ctl(&["delete_queue", "-p", "tenant/eu", "orders.delay.in"]).await;
    let expected = [
        "queue `orders.paid` of `/`: is bound to `orders` and `orders.delay.out`: each message comes twice",
        "queue `tagged` of `/`: is bound to `mails`: it gets each message without its delay",
        "queue `events.eu` of `/`: is not bound to `events.delay.out` under `*.eu`",
        "policy `punctual mails.delay.in` of `/`: is missing",
        "user `punctual` in `/`: has other rights than planned",
        "queue `orders.delay.in` of `tenant/eu`: is missing",
        "queue `orders.delay.in` of `tenant/eu`: is not bound to `orders` under ``",
    ];
    for place in [url.clone(), export().await] {
        let ended = migrated.migrate(&["--check", &place]).await;
        assert_eq!(ended.code, Some(1));
        assert_eq!(ended.out.lines().count(), expected.len(), "{}", ended.out);
        for text in expected {
            assert!(ended.out.contains(text), "{text}: {}", ended.out);
        }
    }
    let ended = migrated.migrate(&["--check", "old.json"]).await;
    assert_eq!((ended.code, ended.out.matches("is still the plugin's").count()), (Some(1), 5), "{ended:?}");

    // The plugin is not here. An empty export replaces the export of the old broker.
    let empty = migrated.path("empty.json");
    fs::write(&empty, "{}").unwrap();
    migrated.publish("orders", "paid", lapin::BasicProperties::default()).await;
    migrated.broker.script(&migrated.path("new/rollback.sh"), &[empty.to_str().unwrap()]).await;
    let left = broker.ctl(&["list_exchanges", "--no-table-headers", "name"]).await;
    assert!(!left.contains("delay") && !left.contains("orders") && left.contains("unrouted"), "{left}");
    let left = broker.ctl(&["list_queues", "--no-table-headers", "name"]).await;
    let kept: Vec<_> = left.lines().filter(|name| name.contains("delay")).collect();
    assert_eq!(kept, ["orders.delay.in"], "only what holds a message is kept");
    assert!(!broker.ctl(&["list_users", "--no-table-headers"]).await.contains("punctual"));
}
