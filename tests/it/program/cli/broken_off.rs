//! Commands that end before their work: by Ctrl-C, or because the reader of their output has seen enough.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::{Scene, lines};
use crate::{program::eventually, support::receiver::Behaviour};

const MAX_WAIT: Duration = Duration::from_secs(20);

/// A command that is not waited for.
fn start(scene: &Scene, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
    command.args(arguments).args(["--url", &scene.punctual.url("")]).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program was built")
}

fn interrupt(child: &Child) {
    let id = child.id().expect("it runs").try_into().expect("a process id");
    kill_process(Pid::from_raw(id).expect("not zero"), Signal::INT).expect("it runs and is ours");
}

/// Its status, and standard error.
async fn ended(mut child: Child) -> (ExitStatus, String) {
    let mut error = String::new();
    let whole = async {
        child.stderr.take().expect("piped").read_to_string(&mut error).await.expect("UTF-8");
        child.wait().await.expect("it ran")
    };
    (timeout(MAX_WAIT, whole).await.expect("it ends"), error)
}

/// More than a pipe holds.
async fn with_many(dead: bool) -> Scene {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Echo(422));
    let (text, delay) = ("x".repeat(500), if dead { "0" } else { "1h" });
    let input = lines(0..1500, |n| format!("{{\"id\":\"m{n}\",\"payload\":\"{text}\",\"delay\":\"{delay}\"}}\n"));
    assert_eq!(scene.run_with_input(&["import", "web"], input.as_bytes()).await.out, "1500 scheduled\n");
    let state = if dead { "dead" } else { "pending" };
    eventually("all are there", MAX_WAIT, async || {
        (scene.json(&["status"]).await["routes"][0][state] == 1500).then_some(())
    })
    .await;
    scene
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_failure() {
    for (dead, arguments) in [
        (true, &["dead", "export", "web"][..]),
        (false, &["list", "web", "--limit", "1500", "--json"]),
        (false, &["list", "web", "--limit", "1500"]),
    ] {
        let scene = with_many(dead).await;
        let mut child = start(&scene, arguments);
        let mut first = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        timeout(MAX_WAIT, out.read_line(&mut first)).await.expect("a line").expect("UTF-8");
        drop(out);
        let (status, error) = ended(child).await;
        assert_eq!((status.code(), &*error), (Some(0), ""), "{arguments:?}");
    }
}

#[tokio::test]
async fn the_exit_code_stays_without_a_reader_of_errors() {
    let scene = Scene::start().await;
    let mut child = start(&scene, &["get", "web", "none"]);
    drop((child.stdout.take(), child.stderr.take()));
    let status = timeout(MAX_WAIT, child.wait()).await.expect("it ends").expect("it ran");
    assert_eq!(status.code(), Some(3));
}

#[tokio::test]
async fn ctrl_c_says_what_was_imported_and_how_to_go_on() {
    let scene = Scene::start().await;
    let mut child = start(&scene, &["import", "web"]);
    let input = lines(0..1500, |n| format!("{{\"id\":\"m{n}\",\"delay\":\"1h\",\"payload\":1}}\n"));
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).await.expect("it reads");
    eventually("a batch is scheduled", MAX_WAIT, async || {
        (scene.json(&["status"]).await["routes"][0]["pending"] == 1000).then_some(())
    })
    .await;
    // The import reads on; the reply to the batch may come later.
    interrupt(&child);
    let (status, error) = ended(child).await;
    drop(stdin);
    assert_eq!(status.code(), Some(130), "{error}");
    assert!(error.starts_with("punctual: interrupted") && error.contains("repeat the import"), "{error}");
    let rest = scene.run_with_input(&["import", "web"], input.as_bytes()).await;
    assert_eq!(rest.out, "1000 exists, 500 scheduled\n");
}

#[tokio::test]
async fn ctrl_c_says_that_an_export_is_incomplete() {
    let scene = with_many(true).await;
    let mut child = start(&scene, &["dead", "export", "web"]);
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut first = String::new();
    timeout(MAX_WAIT, out.read_line(&mut first)).await.expect("a line").expect("UTF-8");
    // It waits until more of the pipe is read.
    interrupt(&child);
    let (status, error) = ended(child).await;
    drop(out);
    assert_eq!(status.code(), Some(130), "{error}");
    assert!(error.starts_with("punctual: interrupted: exported ") && error.contains("incomplete"), "{error}");
}
