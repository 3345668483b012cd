//! `deploy/compose/`: whole, with secrets in files and nothing to edit but image, sinks and routes.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;

use super::{check, document, installed, list, path, run, string, text};

const COMPOSE: &str = "deploy/compose/compose.yaml";

fn services(compose: &Value) -> impl Iterator<Item = (&String, &Value)> {
    compose["services"].as_object().expect("services").iter()
}

#[test]
fn all_services_are_there_and_start_again() {
    let compose = document(COMPOSE);
    let names: BTreeSet<&str> = services(&compose).map(|(name, _)| &**name).collect();
    assert_eq!(names, BTreeSet::from(["grafana", "kafka", "prometheus", "punctual", "rabbitmq", "redis"]));
    for (name, service) in services(&compose) {
        assert_eq!(service["restart"], "unless-stopped", "{name}");
        let image = string(service, "/image");
        assert!(
            name == "punctual" || image.contains(':') && !image.ends_with(":latest"),
            "{name}: {image} has no version"
        );
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(
                port.as_str().is_some_and(|port| port.starts_with("127.0.0.1:")),
                "{name} is open to others: {port}"
            );
        }
    }
    let punctual = &compose["services"]["punctual"];
    assert_eq!((&punctual["read_only"], &punctual["cap_drop"][0]), (&true.into(), &"ALL".into()));
}

#[test]
fn every_file_volume_and_secret_that_a_service_names_exists() {
    let compose = document(COMPOSE);
    let script = text("deploy/compose/secrets.sh");
    let made: BTreeSet<&str> = script
        .lines()
        .find_map(|line| line.strip_prefix("for name in "))
        .expect("names")
        .trim_end_matches("; do")
        .split(' ')
        .collect();
    let secrets = compose["secrets"].as_object().expect("secrets");
    assert_eq!(secrets.keys().map(|name| &**name).collect::<BTreeSet<_>>(), made, "right: what secrets.sh makes");
    for (name, secret) in secrets {
        assert_eq!(secret["file"], format!("secrets/{name}"), "{name}");
    }
    let mut used = BTreeSet::new();
    for (name, service) in services(&compose) {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let source = volume.as_str().and_then(|volume| volume.split(':').next()).expect("a source");
            let is_there = match source.starts_with('.') {
                true => path("deploy/compose").join(source).exists(),
                false => compose["volumes"].get(source).is_some(),
            };
            assert!(is_there, "{name}: no {source}");
        }
        let named: BTreeSet<&str> =
            service["secrets"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // What the service's own text reads is mounted, and the other way round.
        let mut read = service.to_string();
        if name == "punctual" {
            read.push_str(&text("deploy/compose/punctual.yaml"));
        } else if name == "prometheus" {
            read.push_str(&text("deploy/compose/prometheus.yml"));
        }
        for secret in secrets.keys() {
            assert_eq!(named.contains(&**secret), read.contains(&format!("/run/secrets/{secret}")), "{name}: {secret}");
        }
        used.extend(named.into_iter().map(str::to_owned));
    }
    assert_eq!(used.len(), secrets.len(), "a secret is not used");
}

#[test]
fn secrets_are_made_once_and_are_long_enough() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("secrets.sh");
    fs::copy(path("deploy/compose/secrets.sh"), &script).expect("copied");
    run(&mut Command::new(&script));
    let token = || fs::read_to_string(directory.path().join("secrets/token")).expect("it is made");
    let first = token();
    assert!(first.len() == 48 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
    run(&mut Command::new(&script));
    assert_eq!(token(), first);
    let made = fs::read_dir(directory.path().join("secrets")).expect("a directory");
    let different: BTreeSet<String> =
        made.map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("text")).collect();
    assert_eq!(different.len(), 5);
    assert_eq!(text("deploy/compose/.gitignore"), "secrets/\n");
}

#[test]
fn punctual_accepts_its_configuration_and_prometheus_its_own() {
    check(
        "deploy/compose/punctual.yaml",
        "/run/secrets/",
        &["token", "metrics_token", "redis_password", "rabbitmq_password"],
    );
    let prometheus = document("deploy/compose/prometheus.yml");
    let job = &list(&prometheus, "/scrape_configs")[0];
    assert_eq!(job["job_name"], "punctual", "the alerts expect this name");
    let mounts = document(COMPOSE)["services"]["prometheus"]["volumes"].to_string();
    assert!(mounts.contains(&format!("alerts.yml:{}:ro", string(&prometheus, "/rule_files/0"))), "{mounts}");
    if installed("promtool", "prometheus") {
        run(Command::new("promtool")
            .args(["check", "config", "--syntax-only"])
            .arg(path("deploy/compose/prometheus.yml")));
    }
}
