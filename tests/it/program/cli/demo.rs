//! `demo`.

use std::{fs, os::unix::ffi::OsStrExt, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::{Instant, timeout},
};

use crate::{
    program::eventually,
    support::command::{self, Workplace},
};

/// The processes with this path in their arguments or their environment, zombies excepted.
fn processes(path: &Path) -> Vec<Pid> {
    let has_path = |file: &Path| {
        let bytes = fs::read(file).unwrap_or_default();
        bytes.windows(path.as_os_str().len()).any(|part| part == path.as_os_str().as_bytes())
    };
    let directories = fs::read_dir("/proc").expect("Linux").map(|entry| entry.expect("an entry").path());
    let concerned =
        directories.filter(|process| ["cmdline", "environ"].iter().any(|name| has_path(&process.join(name))));
    concerned.filter_map(|process| Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?)).collect()
}

/// On drop it kills what is left of a demo.
struct Remains<'a>(&'a Path);

impl Drop for Remains<'_> {
    fn drop(&mut self) {
        for pid in processes(self.0) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[tokio::test]
async fn the_demo_shows_ten_deliveries_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let environment = vec![
        ("TMPDIR".to_owned(), temporary.path().to_string_lossy().into_owned()),
        // It uses no settings of the user.
        ("PUNCTUAL__REDIS__URL".to_owned(), "redis://127.0.0.1:1".to_owned()),
    ];
    let started = Instant::now();
    let run = command::run(temporary.path(), &environment, &["demo"], b"");
    let ended = timeout(Duration::from_secs(20), run).await.expect("it ends");
    assert_eq!((ended.code, &*ended.error), (Some(0), ""), "{ended:?}");
    println!("demo: {:.1?}", started.elapsed());
    for n in 1..=10 {
        let line = ended.out.lines().find(|line| line.starts_with(&format!("http  demo-{n} ")));
        assert!(line.is_some_and(|line| line.contains(" ms  {\"n\":")), "{n}: {}", ended.out);
    }
    assert!(
        ended.out.contains("10 of 10 messages arrived by HTTP") && ended.out.ends_with("stopped\n"),
        "{}",
        ended.out
    );
    assert_eq!(temporary.path().read_dir().unwrap().count(), 0, "its directory is deleted");
    assert_eq!(processes(temporary.path()), [], "its processes have ended");
}

#[tokio::test]
async fn a_killed_demo_leaves_nothing_either() {
    // Before its Redis listens, and once messages wait in it.
    for moment in ["starting a private Redis", "10 messages are scheduled"] {
        let temporary = tempfile::tempdir().unwrap();
        let _remains = Remains(temporary.path());
        let mut demo = Command::new(env!("CARGO_BIN_EXE_punctual"));
        demo.arg("demo").env("TMPDIR", temporary.path()).current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut demo = demo.kill_on_drop(true).spawn().expect("the program was built");
        let mut lines = BufReader::new(demo.stdout.take().expect("piped")).lines();
        let shown = timeout(Duration::from_secs(20), async {
            while !lines.next_line().await.unwrap().expect("more lines").contains(moment) {}
        });
        shown.await.expect(moment);
        demo.kill().await.expect("it is killed");
        let killed = Instant::now();
        eventually(&format!("killed at `{moment}`: nothing is left"), Duration::from_secs(15), async || {
            let is_empty = temporary.path().read_dir().unwrap().count() == 0;
            (processes(temporary.path()).is_empty() && is_empty).then_some(())
        })
        .await;
        println!("demo: killed at `{moment}`, nothing is left after {:.1?}", killed.elapsed());
    }
}

#[tokio::test]
async fn without_a_redis_server_the_demo_says_what_to_install() {
    let environment = vec![("PATH".to_owned(), "/nonexistent".to_owned())];
    let directory = tempfile::tempdir().unwrap();
    let ended = command::run(directory.path(), &environment, &["demo", "--once"], b"").await;
    assert!(ended.code == Some(1) && ended.error.contains("install"), "{ended:?}");
    assert_eq!(Workplace::with("").run(&["demo", "--twice"]).await.code, Some(2));
}
