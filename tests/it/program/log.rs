//! Standard error that blocks, fails or is closed: nothing but lines of the log is lost.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, PipeReader, Write},
    os::fd::{AsFd, OwnedFd},
    process::Stdio,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::Value;
use tokio::time::timeout;

use super::{client::Client, eventually};
use crate::support::{
    RedisServer,
    port::Port,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

const SOON: Duration = Duration::from_secs(10);
/// Default timeout of an orchestrator for a probe.
const PROBE: Duration = Duration::from_secs(1);
/// A stop without work, and the second for the last lines.
const STOP: Duration = Duration::from_secs(3);
/// Bytes that the kernel holds for a pipe.
const PIPE: usize = 64 * 1024;

fn configuration(redis: &RedisServer, receiver: &Receiver, more: &str) -> String {
    format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ web: {{ sink: hook }} }}\n{more}",
        redis.url(),
        receiver.url()
    )
}

/// A pipe that takes nothing more.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    writer.write_all(&vec![b'-'; PIPE]).expect("the kernel holds as much");
    (reader, writer.into())
}

/// The two ends of a terminal.
fn terminal() -> (File, Stdio) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
    let path = ptsname(&master, Vec::new()).expect("a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let side: OwnedFd = rustix::fs::open(path, flags, Mode::empty()).expect("the other end");
    (master.into(), side.into())
}

/// A name, a standard error, and what keeps its other end.
type Error = (&'static str, Option<Stdio>, Option<Box<dyn AsFd>>);

fn outputs() -> Vec<Error> {
    let (reader, unread) = full_pipe();
    let (ended, without_reader) = io::pipe().expect("a pipe");
    drop(ended);
    let (master, hung_up) = terminal();
    drop(master);
    let (mut master, scrolled) = terminal();
    master.write_all(b"\x13").expect("Ctrl-S");
    let full = File::options().write(true).open("/dev/full").expect("the device");
    vec![
        ("a pipe that nobody reads", Some(unread), Some(Box::new(reader))),
        ("a pipe without a reader", Some(without_reader.into()), None),
        ("a terminal that hung up", Some(hung_up), None),
        ("a terminal in scroll mode", Some(scrolled), Some(Box::new(master))),
        ("a full disk", Some(full.into()), None),
        ("a closed descriptor", None, None),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_of_the_log_blocks_ends_or_stops_the_process() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = configuration(&redis, &receiver, "");
    let mut failed = Vec::new();
    for (n, (name, error, _other_end)) in outputs().into_iter().enumerate() {
        let mut punctual = Punctual::spawn_with_error(&configuration, &[], error);
        let work = async {
            punctual.ready().await;
            let client = Client::of(&punctual);
            for call in ["pause", "resume", "pause", "resume"] {
                assert_eq!(client.call("POST", &format!("/v1/routes/web/{call}"), "").await.status, 204);
            }
            client.schedule("web", r#"{"payload":1}"#).await;
            receiver.wait_for(n + 1, SOON).await;
            let live = timeout(PROBE, client.call("GET", "/livez", "")).await.expect("in time");
            assert_eq!(live.status, 200);
        };
        if timeout(SOON, work).await.is_err() {
            failed.push(format!("{name}: it hangs"));
            continue;
        }
        let exit = punctual.terminate().await;
        if exit.code != Some(0) || exit.took > STOP {
            failed.push(format!("{name}: {exit:?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_reaches_the_limit_of_file_sizes_does_not_end_the_process() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut punctual = Punctual::spawn_with_limit(&configuration(&redis, &receiver, "log: { level: debug }"), "-f", 8);
    timeout(SOON, punctual.ready()).await.expect("it starts");
    let client = Client::of(&punctual);
    let dropped = async || client.metrics().await.sum("punctual_log_lines_dropped_total", &[]) > 0;
    for n in 1.. {
        client.schedule("web", r#"{"payload":1}"#).await;
        receiver.wait_for(n, SOON).await;
        if dropped().await {
            break;
        }
    }
    assert_eq!(punctual.terminate().await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_at_the_start_ends_the_process_although_nobody_reads_it() {
    let taken = Port::reserve();
    let _listener = std::net::TcpListener::bind(taken.address()).expect("a free port");
    let (_reader, error) = full_pipe();
    let listen = taken.address().to_string();
    let environment = [("PUNCTUAL__SERVER__LISTEN", &*listen)];
    let mut punctual = Punctual::spawn_with_error("redis: { url: embedded }", &environment, Some(error));
    let ended = timeout(SOON, punctual.ended()).await.expect("it ends");
    assert_eq!(ended.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_nobody_reads_are_dropped_counted_and_reported_in_their_place() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Status(200));
    let (reader, error) = full_pipe();
    let configuration = configuration(&redis, &receiver, "log: { format: json }");
    let mut punctual = Punctual::spawn_with_error(&configuration, &[("RUST_LOG", "trace")], Some(error));
    timeout(SOON, punctual.ready()).await.expect("it starts");
    let client = Client::of(&punctual);
    let messages: Vec<_> = (0..300).map(|n| format!(r#"{{"payload":{n}}}"#)).collect();
    let dropped = async || client.metrics().await.sum("punctual_log_lines_dropped_total", &[]);
    eventually("lines are dropped", SOON, async || {
        client.schedule("web", &format!("[{}]", messages.join(","))).await;
        client.drained("web", SOON).await;
        (dropped().await > 0).then_some(())
    })
    .await;
    // From now on it is read.
    let reading = tokio::task::spawn_blocking(move || {
        BufReader::new(reader).lines().map(|line| line.expect("it is read")).collect::<Vec<_>>()
    });
    client.drained("web", SOON).await;
    // Each request is logged.
    let counted = eventually("lines are taken again", SOON, async || {
        let before = dropped().await;
        (dropped().await == before).then_some(before)
    })
    .await;
    assert_eq!(punctual.terminate().await.code, Some(0));
    let lines = timeout(SOON, reading).await.expect("the pipe is closed").expect("it was read");
    let shown = |line: &String| serde_json::from_str::<Value>(line.trim_start_matches('-')).map_err(|_| line.clone());
    let lines: Vec<Value> = lines.iter().map(|line| shown(line).expect("each is a whole line")).collect();
    let notes: Vec<_> = lines.iter().filter_map(|line| line["lines"].as_u64()).collect();
    println!("log: {counted} of {} lines were dropped: {notes:?}", lines.len());
    assert!(notes.iter().sum::<u64>() >= counted, "{notes:?} of {counted}");
    let is_own = |line: &&Value| line["lines"].is_null();
    let times: Vec<_> = lines.iter().filter(is_own).map(|line| line["timestamp"].as_str().expect("a time")).collect();
    let unordered = times.windows(2).filter(|pair| pair[0] > pair[1]).count();
    // Two threads may take their times in one order and their places in another.
    assert!(unordered * 20 < times.len(), "{unordered} of {}", times.len());
    assert_eq!(lines.last().expect("lines")["message"], "stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_counts_of_dead_letters_are_logged_at_the_stop() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Status(400));
    let mut punctual = Punctual::start(&configuration(&redis, &receiver, "log: { format: json }")).await;
    let client = Client::of(&punctual);
    let messages: Vec<_> = (0..50).map(|n| format!(r#"{{"payload":{n}}}"#)).collect();
    client.schedule("web", &format!("[{}]", messages.join(","))).await;
    eventually("all are dead", SOON, async || (client.stats("web").await["dead"] == 50).then_some(())).await;
    punctual.terminate().await;
    let log = punctual.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines = lines.filter(|line| line["message"] == "messages are dead letters now");
    let counts: Vec<u64> = lines.map(|line| line["count"].as_u64().expect("a number")).collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (2, 50), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_with_one_log_file_write_whole_lines() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = configuration(&redis, &receiver, "log: { format: json }");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("log");
    let mut instances = Vec::new();
    for _ in 0..2 {
        let file = File::options().create(true).append(true).open(&path).expect("a log file");
        instances.push(Punctual::spawn_with_error(&configuration, &[("RUST_LOG", "trace")], Some(file.into())));
    }
    for instance in &mut instances {
        instance.ready().await;
    }
    let messages: Vec<_> = (0..200).map(|n| format!(r#"{{"payload":{n}}}"#)).collect();
    for instance in &instances {
        Client::of(instance).schedule("web", &format!("[{}]", messages.join(","))).await;
    }
    receiver.wait_for(400, SOON).await;
    for instance in &mut instances {
        assert_eq!(instance.terminate().await.code, Some(0));
    }
    let log = fs::read_to_string(path).expect("a log file");
    assert!(log.lines().count() > 400, "{}", log.lines().count());
    let torn: Vec<_> = log.lines().filter(|line| serde_json::from_str::<Value>(line).is_err()).collect();
    assert!(torn.is_empty(), "{torn:#?}");
}
