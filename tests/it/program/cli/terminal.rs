//! Output on a terminal: questions, `top`. `script` of util-linux is the terminal.

use std::{process::Stdio, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    time::timeout,
};

use super::Scene;
use crate::{program::eventually, support::receiver::Behaviour};

const MAX_WAIT: Duration = Duration::from_secs(20);

/// A command of the program on a terminal.
struct Terminal(Child);

impl Terminal {
    fn run(scene: &Scene, arguments: &str) -> Self {
        // The shell becomes the program, so that the terminal's process is it.
        let program = env!("CARGO_BIN_EXE_punctual");
        let command = format!("stty rows 24 cols 80 && exec {program} {arguments} --url {}", scene.punctual.url(""));
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", &command, "/dev/null"]);
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        Self(script.spawn().expect("script of util-linux"))
    }

    /// Reads until it shows this text.
    async fn shows(&mut self, text: &str) -> String {
        let (mut shown, mut chunk) = (String::new(), [0; 4096]);
        let out = self.0.stdout.as_mut().expect("piped");
        let read = timeout(MAX_WAIT, async {
            while !shown.contains(text) {
                let length = out.read(&mut chunk).await.expect("a pipe");
                assert!(length > 0, "it ended without `{text}`: {shown}");
                shown.push_str(&String::from_utf8_lossy(&chunk[..length]));
            }
        });
        assert!(read.await.is_ok(), "no `{text}` in {MAX_WAIT:?}");
        shown
    }

    async fn types(&mut self, text: &str) {
        self.0.stdin.as_mut().expect("piped").write_all(text.as_bytes()).await.expect("it reads");
    }

    async fn code(&mut self) -> Option<i32> {
        timeout(MAX_WAIT, self.0.wait()).await.expect("it ends").expect("it ran").code()
    }
}

#[tokio::test]
async fn a_question_is_answered_on_the_terminal() {
    let scene = Scene::start().await;
    for id in ["a", "b"] {
        scene.done(&["schedule", "web", "--id", id, "--delay", "1h", "--payload", "x"]).await;
    }
    let mut no = Terminal::run(&scene, "cancel web --all");
    no.shows("cancel 2 pending messages of web? [y/N] ").await;
    no.types("\n").await;
    no.shows("nothing was changed").await;
    assert_eq!(no.code().await, Some(1));
    assert_eq!(scene.json(&["status"]).await["routes"][0]["pending"], 2);
    let mut yes = Terminal::run(&scene, "cancel web --all");
    yes.shows("[y/N] ").await;
    yes.types("y\n").await;
    yes.shows("cancelled 2 pending messages of web").await;
    assert_eq!(yes.code().await, Some(0));
}

#[tokio::test]
async fn a_dead_letter_that_died_again_after_the_question_stays() {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Echo(422));
    scene.done(&["schedule", "web", "--id", "a", "--payload", "x"]).await;
    let dead_since = async |before: &str| {
        eventually("it is dead", MAX_WAIT, async || {
            let message = scene.json(&["get", "web", "a"]).await;
            message["died_at"].as_str().filter(|at| *at != before).map(str::to_owned)
        })
        .await
    };
    let first = dead_since("").await;
    let mut purge = Terminal::run(&scene, "dead purge web a");
    purge.shows("purge 1 dead letter of web? [y/N] ").await;
    scene.done(&["dead", "redrive", "web", "a", "--yes"]).await;
    let second = dead_since(&first).await;
    purge.types("y\n").await;
    purge.shows("purged 0 dead letters of web").await;
    assert_eq!(purge.code().await, Some(3));
    assert_eq!(dead_since(&first).await, second);
    let until = ["dead", "purge", "web", "a", "--until", &second, "--yes"];
    assert_eq!(scene.run(&until).await.code, Some(3), "it died at that time");
    assert_eq!(scene.done(&["dead", "purge", "web", "a", "--yes"]).await, "purged 1 dead letter of web\n");
}

#[tokio::test]
async fn a_command_that_reads_standard_input_says_so_on_a_terminal() {
    let scene = Scene::start().await;
    scene.done(&["schedule", "web", "--id", "a", "--delay", "1h", "--payload", "x"]).await;
    for (arguments, waits, input, shows) in [
        ("cancel web - --yes", "waits for ids, one in each line, on standard input", "a\n", "cancelled"),
        ("import web", "waits for messages as NDJSON on standard input", "", "no messages"),
    ] {
        let mut terminal = Terminal::run(&scene, arguments);
        terminal.shows(waits).await;
        terminal.types(&format!("{input}\u{4}")).await;
        terminal.shows(shows).await;
        assert_eq!(terminal.code().await, Some(0), "{arguments}");
    }
}

#[tokio::test]
async fn the_reasons_of_dead_letters_fit_the_terminal() {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Echo(422));
    scene.done(&["schedule", "web", "--payload", "x"]).await;
    eventually("it is dead", Duration::from_secs(10), async || {
        (scene.json(&["dead", "summary", "web"]).await["total"] == 1).then_some(())
    })
    .await;
    let mut status = Terminal::run(&scene, "status");
    let shown = status.shows("...)").await;
    let line = shown.lines().find(|line| line.starts_with("web: 1 dead: rejected 1 (HTTP 422: {"));
    assert_eq!(line.map(|line| line.chars().count()), Some(80), "{shown}");
    assert_eq!(status.code().await, Some(0));
}

#[tokio::test]
async fn top_redraws_until_ctrl_c() {
    let scene = Scene::start().await;
    scene.refused(&["top"], 2, "needs a terminal").await;
    let mut top = Terminal::run(&scene, "top");
    top.shows("Redis: up").await;
    scene.done(&["pause", "web", "--note", "look-here", "--yes"]).await;
    top.shows("look-here").await;
    top.types("\u{3}").await;
    top.shows("\u{1b}[?1049l").await;
    assert_eq!(top.code().await, Some(0));
}
