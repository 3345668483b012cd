//! `deploy/compose/`: whole, with secrets in files and nothing to edit but image, sinks and routes.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::{check, document, installed, list, path, run, string, text};
use crate::{
    program::eventually,
    support::{port::Port, punctual::Punctual},
};

const COMPOSE: &str = "deploy/compose/compose.yaml";
const PASSWORD: &str = "0123456789abcdef";

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
            let is_there = if source.starts_with('.') {
                path("deploy/compose").join(source).exists()
            } else {
                compose["volumes"].get(source).is_some()
            };
            assert!(is_there, "{name}: no {source}");
        }
        let named: BTreeSet<&str> =
            service["secrets"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // A service mounts exactly the secrets that its own text reads.
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
    assert_eq!(job["job_name"], "punctual", "the label that tells environments apart");
    let mounts = document(COMPOSE)["services"]["prometheus"]["volumes"].to_string();
    assert!(mounts.contains(&format!("alerts.yml:{}:ro", string(&prometheus, "/rule_files/0"))), "{mounts}");
    // Its command replaces that of the image, which has the directory.
    let command = document(COMPOSE)["services"]["prometheus"]["command"].to_string();
    assert!(mounts.contains("\"prometheus:/prometheus\"") && command.contains("--storage.tsdb.path=/prometheus\""));
    if installed("promtool", "prometheus") {
        run(Command::new("promtool")
            .args(["check", "config", "--syntax-only"])
            .arg(path("deploy/compose/prometheus.yml")));
    }
}

/// The command of the Redis service runs here, with files and port of the test.
#[tokio::test(flavor = "multi_thread")]
async fn punctual_is_ready_on_the_redis_that_compose_starts() {
    let (directory, port) = (tempfile::tempdir().expect("a directory"), Port::reserve());
    let file = |name: &str| directory.path().join(name).display().to_string();
    fs::write(file("password"), PASSWORD).expect("written");
    let redis = document(COMPOSE)["services"]["redis"].clone();
    let here = |text: &str| {
        text.replace("$$", "$")
            .replace("/run/secrets/redis_password", &file("password"))
            .replace("/etc/redis/users.acl", &path("deploy/redis/users.acl").display().to_string())
            .replace("/tmp/users.acl", &file("users.acl"))
            .replace("--dir /data", &format!("--dir {} --bind 127.0.0.1 --port {}", file(""), port.number()))
            .replace("redis-cli ", &format!("redis-cli -p {} ", port.number()))
    };
    let entry: Vec<String> =
        list(&redis, "/entrypoint").iter().map(|word| here(word.as_str().expect("text"))).collect();
    let mut server = tokio::process::Command::new(&entry[0]);
    let _server = server.args(&entry[1..]).stdout(Stdio::null()).kill_on_drop(true).spawn().expect("a shell");
    let [shell, probe] = list(&redis, "/healthcheck/test") else { panic!("a command for a shell") };
    assert_eq!(shell, "CMD-SHELL");
    let probe = here(probe.as_str().expect("text"));
    let healthy =
        async || Command::new("sh").args(["-c", &probe]).output().expect("a shell").status.success().then_some(());
    eventually("Redis is healthy", Duration::from_secs(10), healthy).await;
    // The user is that of deploy/compose/punctual.yaml; the address is that of the server above.
    let punctual = document("deploy/compose/punctual.yaml");
    assert_eq!(
        (&punctual["redis"]["username"], &punctual["redis"]["url"]),
        (&"punctual".into(), &"redis://redis:6379/0".into())
    );
    let configuration = format!(
        "redis: {{ url: 'redis://{}/0', username: punctual, password: {PASSWORD} }}\n\
         sinks: {{ jobs: {{ type: redis_list, key: jobs, url: 'redis://{0}/1' }} }}\nroutes: {{ r: {{ sink: jobs }} }}\n",
        port.address()
    );
    let punctual = Punctual::start(&configuration).await;
    let loud: Vec<String> = punctual.log().lines().filter(|line| line.contains(" ERROR ")).map(str::to_owned).collect();
    assert!(loud.is_empty() && !punctual.log().contains("evict"), "{}", punctual.log());
}
