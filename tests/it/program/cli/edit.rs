//! `dead redrive --edit`: a dead letter in an editor, which here is a script.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use super::Scene;
use crate::{
    program::eventually,
    support::{
        command::{Ended, run},
        receiver::Behaviour,
    },
};

/// A dead letter `a`, and a directory for the editor and its files.
struct Desk {
    scene: Scene,
    directory: tempfile::TempDir,
}

impl Desk {
    async fn with(message: &Value) -> Self {
        let desk = Self { scene: Scene::start().await, directory: tempfile::tempdir().expect("a directory") };
        desk.scene.receiver.behave(Behaviour::Status(422));
        let input = format!("{message}\n");
        desk.scene.run_with_input(&["import", "web"], input.as_bytes()).await;
        desk.is_dead().await;
        desk.scene.receiver.behave(Behaviour::Status(200));
        desk
    }

    async fn is_dead(&self) -> Value {
        eventually("it is dead", Duration::from_secs(20), async || {
            let ended = self.scene.run(&["get", "web", "a", "--json"]).await;
            let message: Value = serde_json::from_str(&ended.out).ok()?;
            (message["state"] == "dead").then_some(message)
        })
        .await
    }

    /// Edits with a shell script, to which the file is `$1`.
    async fn edit(&self, script: &str, more: &[&str]) -> Ended {
        let editor = self.directory.path().join("editor");
        fs::write(&editor, format!("#!/bin/sh\nset -e\n{script}\n")).expect("written");
        fs::set_permissions(&editor, fs::Permissions::from_mode(0o700)).expect("an own file");
        let url = self.scene.punctual.url("");
        let arguments = [&["dead", "redrive", "web", "--edit", "a", "--url", &url], more].concat();
        let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let environment = [
            ("EDITOR".to_owned(), path(&editor)),
            ("VISUAL".to_owned(), String::new()),
            ("TMPDIR".to_owned(), path(self.directory.path())),
        ];
        run(self.directory.path(), &environment, &arguments, b"").await
    }

    /// Files that were kept.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path()).expect("it is there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect()
    }
}

#[tokio::test]
async fn a_dead_letter_is_edited_and_sent_again() {
    let message = json!({ "id": "a", "payload": {"order": 42}, "headers": {"X-A": "1"}, "max_attempts": 1 });
    let desk = Desk::with(&message).await;
    let before = desk.scene.receiver.count();
    let script = r#"stat -c %a "$1" >mode; cp "$1" shown; sed -i -e 's/"order":42/"order":43/' -e 's/"X-A": "1"/"X-A": "2"/' "$1""#;
    let ended = desk.edit(script, &[]).await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "redrove a, edited\n"), "{ended:?}");
    let read = |name: &str| fs::read_to_string(desk.directory.path().join(name)).expect("the editor wrote it");
    assert_eq!(read("mode"), "600\n");
    assert!(read("shown").starts_with("# `a` of `web` died at 20") && read("shown").contains("HTTP 422"));
    desk.scene.receiver.wait_for(before + 1, Duration::from_secs(10)).await;
    let request = desk.scene.receiver.requests().pop().expect("a request");
    assert_eq!((&request.body[..], request.header("x-a")), (&br#"{"order":43}"#[..], "2"));
    assert!(desk.files().is_empty(), "nothing stays");
    let log = desk.scene.punctual.log();
    let audit = log.lines().find(|line| line.contains(r#"call="edit_dead""#)).expect("an audit line");
    assert!(audit.contains(r#"note="payload 12 to 12 bytes, headers 11 to 11 bytes""#), "{audit}");
    assert!(!log.contains(r#""order":43"#), "no content");
}

#[tokio::test]
async fn whatever_the_editor_does_nothing_is_lost() {
    let desk = Desk::with(&json!({ "id": "a", "payload": "text", "max_attempts": 1 })).await;
    let before = desk.is_dead().await;
    for (script, code, text) in [
        ("exit 3", 1, "failed: exit status: 3"),
        (r#"rm "$1""#, 1, "No such file"),
        (r#"cp /bin/true "$1""#, 1, "is not UTF-8"),
        (r#": >"$1""#, 2, "the head: "),
        (r#"sed -i 's/"key": null/"key": "\\n"/' "$1""#, 2, "control character"),
        (r#"sed -i 's/"key": null/"kay": "k"/' "$1""#, 2, "unknown field `kay`"),
        (r#"echo more >>"$1"; exit 1"#, 1, "failed: exit status: 1"),
        ("true", 2, "the file is unchanged"),
    ] {
        let ended = desk.edit(script, &[]).await;
        assert!(ended.code == Some(code) && ended.error.contains(text), "{script}: {ended:?}");
        let kept = desk.files();
        let is_named = kept.iter().all(|path| ended.error.contains(path.to_str().expect("UTF-8")));
        let changes = !["exit 3", r#"rm "$1""#, "true"].contains(&script);
        assert!(kept.len() == usize::from(changes) && is_named, "{script}: {kept:?} {ended:?}");
        for path in &kept {
            fs::remove_file(path).expect("an own file");
        }
        assert_eq!(desk.is_dead().await, before, "{script}");
    }
    let elsewhere = format!(
        "curl -sf -X PATCH {} -d '{{\"key\": \"elsewhere\"}}' >&2; echo more >>\"$1\"",
        desk.scene.punctual.url("/v1/routes/web/messages/a")
    );
    let ended = desk.edit(&elsewhere, &[]).await;
    assert!(ended.code == Some(1) && ended.error.contains("was edited since it was read"), "{ended:?}");
    assert!(fs::read_to_string(&desk.files()[0]).expect("it was kept").contains("more"));
    assert_eq!(desk.is_dead().await["key"], "elsewhere");
    let ended = desk.edit("true", &["--yes"]).await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "redrove a, unchanged\n"), "{ended:?}");
}

#[tokio::test]
async fn a_binary_and_a_large_payload_are_edited() {
    let large = "x".repeat(1024 * 1024);
    let desk = Desk::with(&json!({ "id": "a", "payload": large, "max_attempts": 1 })).await;
    let before = desk.scene.receiver.count();
    assert_eq!(desk.edit(r#"sed -i '$ s/^xx/yy/' "$1""#, &[]).await.code, Some(0));
    desk.scene.receiver.wait_for(before + 1, Duration::from_secs(10)).await;
    let body = desk.scene.receiver.requests().pop().expect("a request").body;
    assert!(body.len() == large.len() && body.starts_with(b"yyxx"), "{} bytes", body.len());

    let desk = Desk::with(&json!({ "id": "a", "payload_base64": "AP8=", "max_attempts": 1 })).await;
    let before = desk.scene.receiver.count();
    assert_eq!(desk.edit(r#"sed -i 's/AP8=/AP4=/' "$1""#, &[]).await.code, Some(0));
    desk.scene.receiver.wait_for(before + 1, Duration::from_secs(10)).await;
    assert_eq!(&desk.scene.receiver.requests().pop().expect("a request").body[..], b"\0\xfe");
}

#[tokio::test]
async fn only_one_dead_letter_is_edited() {
    let scene = Scene::start().await;
    scene.done(&["schedule", "web", "--id", "p", "--delay", "1h", "--payload", "x"]).await;
    scene.refused(&["dead", "redrive", "web", "--edit", "p"], 1, "only a dead letter is edited").await;
    scene.refused(&["dead", "redrive", "web", "--edit", "none"], 3, "none").await;
    scene.refused(&["dead", "redrive", "web", "--edit", "p", "--all"], 2, "--all").await;
    scene.refused(&["dead", "redrive", "web", "--edit", "p", "--reason", "expired"], 2, "leave out the filter").await;
}
