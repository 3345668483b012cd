//! The example that embeds punctual: its own sink delivers.

use std::{env, ffi::OsStr, fs, path::PathBuf, time::Duration};

use tokio::process::Command;

use super::eventually;
use crate::support::{RedisServer, http, port::Port};

/// Maximum wait for a step.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Builds the example like the test: `cargo test --test it` builds no examples, and an old one may be there.
async fn example() -> PathBuf {
    let test = env::current_exe().expect("a path");
    let folder = test.ancestors().nth(2).expect("the folder of the profile");
    let profile = match folder.file_name().and_then(OsStr::to_str).expect("UTF-8") {
        "debug" => "dev",
        other => other,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--quiet", "--example", "own_sink", "--profile", profile]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    // Variables of the package under test: some build scripts run again when they change.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    assert!(cargo.status().await.expect("cargo runs").success(), "the example is not built");
    folder.join("examples/own_sink")
}

#[tokio::test]
async fn a_program_that_embeds_punctual_delivers_into_its_own_sink() {
    let (redis, port) = (RedisServer::start().await, Port::reserve());
    let directory = tempfile::tempdir().expect("a directory");
    let (journal, configuration) = (directory.path().join("journal.txt"), directory.path().join("punctual.yaml"));
    let yaml = format!(
        "redis: {{ url: '{}' }}\nserver: {{ listen: '127.0.0.1:{}' }}\n\
         sinks: {{ journal: {{ type: file, path: '{}', timeout_seconds: 5 }} }}\nroutes: {{ notes: {{ sink: journal }} }}",
        redis.url(),
        port.number(),
        journal.display()
    );
    fs::write(&configuration, yaml).expect("written");
    let address = format!("http://127.0.0.1:{}", port.number());
    let mut running = Command::new(example().await).arg(&configuration).kill_on_drop(true).spawn().expect("it starts");
    eventually("it is ready", TIMEOUT, async || {
        let reply = http::client().get(format!("{address}/readyz")).send().await.ok()?;
        reply.status().is_success().then_some(())
    })
    .await;
    for (id, payload) in [("first", "one"), ("second", "two")] {
        let body = format!(r#"{{"id":"{id}","delay":"50ms","payload":"{payload}"}}"#);
        let url = format!("{address}/v1/routes/notes/messages");
        let request = http::client().post(url).header("Content-Type", "application/json").body(body);
        assert_eq!(request.send().await.expect("a reply").status(), 201);
        let lines = eventually("it is delivered", TIMEOUT, async || {
            fs::read_to_string(&journal).ok().filter(|text| text.contains(payload))
        });
        assert!(lines.await.ends_with(&format!("{payload}\n")));
    }
    running.kill().await.expect("it runs");
}
