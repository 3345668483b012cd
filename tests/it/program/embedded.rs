//! The embedded Redis: a real redis-server, real process deaths.

use std::{
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
    time::Duration,
};

use punctual::app::embedded::{Embedded, EmbeddedError, EmbeddedState, running_url};
use rustix::process::{Pid, Signal, getpgid, kill_process};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::{program::eventually, support::punctual::Punctual};

/// Bound of every wait; each takes far less.
const SOON: Duration = Duration::from_secs(20);

async fn redis(url: &str) -> redis::aio::MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn set(url: &str, key: &str) {
    redis::cmd("SET").arg(key).arg(1).query_async::<()>(&mut redis(url).await).await.unwrap();
}

async fn has(url: &str, key: &str) -> bool {
    redis::cmd("EXISTS").arg(key).query_async(&mut redis(url).await).await.unwrap()
}

fn pid(embedded: &Embedded) -> u32 {
    match *embedded.state().borrow() {
        EmbeddedState::Running { pid } => pid,
        EmbeddedState::Down => panic!("the server is down"),
    }
}

fn process(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// A directory. Its server is stopped on drop, also when a test fails.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let socket = self.path().join("redis.sock");
        let client = redis::Client::open(format!("unix://{}", socket.display())).unwrap();
        if let Ok(mut connection) = client.get_connection() {
            let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").query::<()>(&mut connection);
        }
    }
}

#[tokio::test]
async fn what_was_written_is_there_after_a_clean_stop_and_a_start() {
    let directory = Home::new();
    let data_dir = directory.path().join("new/data dir");
    let first = Embedded::start(&data_dir).await.unwrap();
    let (url, child) = (first.url().to_owned(), process(pid(&first)));
    set(&url, "a").await;
    assert_eq!(data_dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(getpgid(Some(child)).unwrap(), child, "Ctrl-C must not reach the child");
    first.stop().await;
    assert!(getpgid(Some(child)).is_err(), "the child has ended");
    assert!(matches!(running_url(&data_dir).await, Err(EmbeddedError::NotRunning(_))));

    let second = Embedded::start(&data_dir).await.unwrap();
    assert!(has(second.url(), "a").await);
    let config: Vec<String> =
        redis::cmd("CONFIG").arg("GET").arg("port").query_async(&mut redis(second.url()).await).await.unwrap();
    assert_eq!(config, ["port", "0"]);
    for (name, value) in [("appendonly", "yes"), ("appendfsync", "everysec"), ("maxmemory-policy", "noeviction")] {
        let mut get = redis::cmd("CONFIG");
        let config: Vec<String> = get.arg("GET").arg(name).query_async(&mut redis(second.url()).await).await.unwrap();
        assert_eq!(config, [name, value]);
    }
    second.stop().await;
}

#[tokio::test]
async fn a_server_that_outlived_its_killed_parent_is_taken_over_and_stopped() {
    let mut parent = Punctual::start("redis: { url: embedded }").await;
    let data_dir = parent.path("data");
    let url = running_url(&data_dir).await.unwrap();
    set(&url, "a").await;
    let info: redis::InfoDict = redis::cmd("INFO").query_async(&mut redis(&url).await).await.unwrap();
    parent.kill().await;
    let embedded = Embedded::start(&data_dir).await.unwrap();
    assert_eq!((embedded.url(), Some(pid(&embedded))), (url.as_str(), info.get("process_id")));
    assert!(has(&url, "a").await);
    embedded.stop().await;
    assert!(matches!(running_url(&data_dir).await, Err(EmbeddedError::NotRunning(_))));
}

#[tokio::test]
async fn a_second_instance_on_the_same_directory_is_refused() {
    let directory = Home::new();
    let first = Embedded::start(directory.path()).await.unwrap();
    let second = Embedded::start(directory.path()).await.unwrap_err();
    assert!(matches!(second, EmbeddedError::InUse(_)), "{second}");
    assert_eq!(running_url(directory.path()).await.unwrap(), first.url());
    first.stop().await;
}

#[tokio::test]
async fn a_server_that_dies_is_started_again_with_its_data() {
    let directory = Home::new();
    let embedded = Embedded::start(directory.path()).await.unwrap();
    set(embedded.url(), "a").await;
    let mut state = embedded.state();
    let killed = pid(&embedded);
    kill_process(process(killed), Signal::KILL).unwrap();
    timeout(SOON, state.wait_for(|state| *state == EmbeddedState::Down)).await.expect("the death is noticed").unwrap();
    timeout(SOON, state.wait_for(|state| *state != EmbeddedState::Down)).await.expect("it comes back").unwrap();
    assert_ne!(pid(&embedded), killed);
    assert!(has(embedded.url(), "a").await);
    embedded.stop().await;
}

#[tokio::test]
async fn a_server_that_hangs_is_killed_at_the_end() {
    let directory = Home::new();
    let embedded = Embedded::start(directory.path()).await.unwrap();
    set(embedded.url(), "a").await;
    let child = process(pid(&embedded));
    kill_process(child, Signal::STOP).unwrap();
    timeout(SOON, embedded.stop()).await.expect("stopping is bounded");
    assert!(getpgid(Some(child)).is_err(), "the child has ended");
}

#[tokio::test]
async fn the_reason_why_a_server_cannot_start_is_reported() {
    let directory = Home::new();
    let files = directory.path().join("appendonlydir");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("appendonly.aof.manifest"), "not a manifest\n").unwrap();
    let error = Embedded::start(directory.path()).await.unwrap_err();
    assert!(error.to_string().contains("AOF manifest"), "{error}");

    let deep = directory.path().join("d".repeat(100));
    let error = Embedded::start(&deep).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::PathTooLong(_)), "{error}");
}

#[tokio::test]
async fn the_directory_of_another_user_and_a_planted_link_are_refused() {
    let directory = Home::new();
    let (data_dir, target) = (directory.path().join("data"), directory.path().join("target"));
    for name in ["punctual.lock", "redis.lock", "redis.log", "redis.sock", "appendonlydir"] {
        std::fs::create_dir(&data_dir).unwrap();
        symlink(&target, data_dir.join(name)).unwrap();
        let error = Embedded::start(&data_dir).await.unwrap_err();
        assert!(matches!(error, EmbeddedError::Link(_)), "{name}: {error}");
        assert!(!target.exists(), "{name}");
        std::fs::remove_dir_all(&data_dir).unwrap();
    }
    // The directory of another user: a new one where the tests have the right to make it, otherwise `/`.
    let external = if rustix::process::geteuid().is_root() {
        std::fs::create_dir(&data_dir).unwrap();
        chown(&data_dir, Some(65_534), None).unwrap();
        data_dir.clone()
    } else {
        "/".into()
    };
    let before = external.metadata().unwrap().permissions().mode();
    let error = Embedded::start(&external).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::Foreign { .. }), "{error}");
    assert_eq!(external.metadata().unwrap().permissions().mode(), before);
    assert!(!external.join("punctual.lock").exists());
}

#[tokio::test]
async fn a_probe_before_the_embedded_redis_answers_is_no_error() {
    let directory = TempDir::new().unwrap();
    // Probes come before it is there.
    let slow = directory.path().join("redis-server");
    std::fs::write(&slow, "#!/bin/sh\nsleep 1\nPATH=${PATH#*:} exec redis-server \"$@\"\n").unwrap();
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let punctual = Punctual::start_with("redis: { url: embedded }\n", &[("PATH", &path)]).await;
    let ready = async || Some(punctual.log()).filter(|log| log.contains("redis is ready"));
    let log = eventually("redis is ready", SOON, ready).await;
    assert!(!log.contains("ERROR"), "{log}");
}
