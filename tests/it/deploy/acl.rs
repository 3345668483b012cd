//! `deploy/redis/`: what the users may do is enough for everything, and for nothing else.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use tempfile::TempDir;

use super::{path, text};
use crate::{
    program::{client::Client, eventually},
    support::{
        RedisServer,
        punctual::Punctual,
        receiver::{Behaviour, Receiver},
    },
};

const ROUTES: &str = "deploy/redis/users.acl";
const SOURCES: &str = "deploy/redis/users-sources.acl";
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Commands that redis-rs sends by itself.
const OF_THE_CLIENT: [&str; 3] = ["ping", "select", "subscribe"];

/// A server with these users. The default user stays, for what tests look at.
async fn server(users: &str) -> (TempDir, RedisServer) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("users.acl");
    let default = "user default off";
    let users = text(users);
    assert!(users.starts_with(default), "the default user has no rights");
    let users = users.replace(default, "user default on nopass ~* &* +@all").replace("CHANGE_ME", "secret");
    fs::write(&file, users).expect("written");
    let file = file.display().to_string();
    let redis = RedisServer::start_with(&["--aclfile", &file, "--notify-keyspace-events", "Kzl"]).await;
    (directory, redis)
}

/// Words of the rule that begin with this sign.
fn granted(users: &str, sign: char) -> BTreeSet<String> {
    text(users).split_whitespace().filter_map(|word| word.strip_prefix(sign)).map(str::to_owned).collect()
}

async fn assert_nothing_was_denied(redis: &RedisServer, punctual: &Punctual) {
    let mut log = redis::cmd("ACL");
    let denied: Vec<redis::Value> = log.arg("LOG").query_async(&mut redis.connection().await).await.expect("a log");
    assert!(denied.is_empty(), "{denied:#?}\n{}", punctual.log());
}

async fn shell(redis: &RedisServer, words: &[&str]) {
    redis::cmd(words[0]).arg(&words[1..]).exec_async(&mut redis.connection().await).await.expect("it is done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_works_with_the_rights_of_the_file() {
    let (receiver, (_users, redis)) = (Receiver::start(), server(ROUTES).await);
    let configuration = format!(
        "redis: {{ url: 'redis://127.0.0.1:{}/0', username: punctual, password: secret }}\n\
         sinks: {{ hook: {{ type: http, url: '{}' }} }}\n\
         routes:\n  web: {{ sink: hook, partitions: 2, lease: 11s, remember: {{ for: 10m }}, limits: {{ messages: 1000 }},\n\
         \x20        dead: {{ max_count: 2 }}, retry: {{ max_attempts: 2, initial: 10ms }} }}\n",
        redis.port(),
        receiver.url()
    );
    let punctual = Punctual::start(&configuration).await;
    let client = Client::of(&punctual);
    let schedule = async |body: &str| client.schedule("web", body).await;
    let call = async |method: &str, path: &str, body: &str| {
        let answer = client.call(method, &format!("/v1/routes/web/{path}"), body).await;
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text);
    };

    // Delivered, retried, dead, redriven, delivered.
    schedule(r#"[{"id":"a","payload":1},{"id":"b","delay":"100ms","payload":2,"headers":{"X-A":"1"}}]"#).await;
    receiver.wait_for(2, MAX_WAIT).await;
    // Answered, too.
    client.drained("web", MAX_WAIT).await;
    receiver.behave(Behaviour::Status(500));
    schedule(r#"{"id":"dies","payload":3}"#).await;
    let dead = async || (client.stats("web").await["dead"] == 1).then_some(());
    eventually("it is dead", MAX_WAIT, dead).await;
    assert_eq!(receiver.count(), 4, "it was tried twice");
    call("GET", "messages?state=dead", "").await;
    receiver.behave(Behaviour::Status(200));
    call("POST", "dead/redrive", r#"{"ids":["dies"]}"#).await;
    receiver.wait_for(5, MAX_WAIT).await;

    // All that an operator and a producer may do to messages that wait; also where Redis has lost the scripts.
    shell(&redis, &["SCRIPT", "FLUSH"]).await;
    for id in ["kept", "moved", "cancelled"] {
        schedule(&format!(r#"{{"id":"{id}","delay":"1h","payload":""}}"#)).await;
    }
    schedule(r#"{"id":"kept","delay":"2h","payload":"","on_conflict":"replace"}"#).await;
    call("PATCH", "messages/moved", r#"{"delay":"3h"}"#).await;
    call("DELETE", "messages/cancelled", "").await;
    call("POST", "raw?delay=1h", "as it is").await;
    call("GET", "messages/kept", "").await;
    call("GET", "messages", "").await;
    call("GET", "messages?state=retrying&contains=HTTP", "").await;
    call("GET", "forecast", "").await;
    call("POST", "messages/moved/deliver", "").await;
    receiver.wait_for(6, MAX_WAIT).await;
    call("POST", "pause", r#"{"note":"repair"}"#).await;
    call("POST", "resume", "").await;
    call("POST", "purge", r#"{"all":true}"#).await;

    // More dead letters than the limit: one is evicted.
    receiver.behave(Behaviour::Echo(422));
    schedule(r#"[{"id":"c","payload":1},{"id":"d","payload":2},{"id":"e","payload":3}]"#).await;
    eventually("one is evicted", MAX_WAIT, async || {
        let evicted = client.metrics().await.sum("punctual_dead_evicted_total", &["route=\"web\""]);
        (evicted == 1 && client.stats("web").await["dead"] == 2).then_some(())
    })
    .await;
    call("GET", "dead/summary", "").await;
    call("POST", "dead/purge", r#"{"all":true}"#).await;
    let overview = client.call("GET", "/v1/overview", "").await;
    assert_eq!(overview.json["redis"]["up"], true, "{}", overview.text);
    let drained = client.drained("web", MAX_WAIT).await;
    assert_eq!(drained["dead"], 0, "{drained}");
    assert_eq!(client.readiness().await.status, 200);
    let metrics = client.metrics().await;
    assert_eq!(metrics.sum("punctual_wakeups_denied_total", &[]), 0);
    assert_eq!(metrics.sum("punctual_redis_errors_total", &["kind=\"noperm\""]), 0);
    assert_nothing_was_denied(&redis, &punctual).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_sources_on_the_same_redis_work_with_the_rights_of_the_other_file() {
    let (_users, redis) = server(SOURCES).await;
    let configuration = format!(
        "redis: {{ url: 'redis://127.0.0.1:{}/0', username: punctual, password: secret }}\n\
         sinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\nroutes: {{ list: {{ sink: jobs }} }}\nsources:\n\
         \x20 set: {{ type: sorted_set, key: reminders, payload: hash, hash_prefix: 'reminder:', route: list }}\n\
         \x20 go: {{ type: delayqueue, name: orders, route: list }}\n",
        redis.port()
    );
    let punctual = Punctual::start(&configuration).await;
    let mut pipe = redis::pipe();
    pipe.hset("reminder:1", "field", "value").zadd("reminders", "reminder:1", 1);
    pipe.set_ex("dp:orders:msg:one", "body", 100).hset("dp:orders:retry:cnt", "one", 1);
    pipe.zadd("dp:orders:pending", "one", 1);
    pipe.exec_async(&mut redis.connection().await).await.expect("written");
    Client::of(&punctual).schedule("list", r#"{"id":"own","payload":1}"#).await;
    eventually("all three are delivered", MAX_WAIT, async || {
        let mut length = redis::cmd("LLEN");
        let count: u64 = length.arg("jobs").query_async(&mut redis.connection().await).await.expect("a list");
        (count == 3).then_some(())
    })
    .await;
    assert_nothing_was_denied(&redis, &punctual).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_keys_channels_and_commands_are_refused() {
    let (_users, redis) = server(ROUTES).await;
    let client = redis::Client::open(format!("redis://punctual:secret@127.0.0.1:{}/0", redis.port())).expect("a URL");
    let mut limited = client.get_multiplexed_async_connection().await.expect("the password is right");
    for allowed in [
        &["GET", "{punctual:web:0/1}:route"][..],
        &["PUBLISH", "{punctual:web:0/1}:wake", "x"],
        &["EVAL", "return redis.call('HLEN', KEYS[1])", "1", "punctual:routes"],
    ] {
        let answer = redis::cmd(allowed[0]).arg(&allowed[1..]).exec_async(&mut limited).await;
        assert!(answer.is_ok(), "{allowed:?}: {answer:?}");
    }
    for refused in [
        // Keys of others, also within scripts; what begins alike is another's.
        &["GET", "session:1"][..],
        &["DEL", "jobs"],
        &["GET", "punctual2:routes"],
        &["GET", "{punctual2:web:0/1}:route"],
        &["EVAL", "return redis.call('GET', 'session:1')", "0"],
        &["EVAL", "return redis.call('SET', KEYS[1], '1')", "1", "session:1"],
        &["PUBLISH", "news", "x"],
        &["SUBSCRIBE", "news"],
        // Commands that show, change or stop more than its own.
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["CONFIG", "GET", "*"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["SHUTDOWN", "NOSAVE"],
        &["ACL", "LIST"],
        &["CLIENT", "LIST"],
        &["SCRIPT", "FLUSH"],
        &["DEBUG", "SLEEP", "0"],
        &["REPLICAOF", "NO", "ONE"],
        &["RENAME", "punctual:routes", "x"],
        &["EXPIRE", "punctual:routes", "1"],
        &["MONITOR"],
    ] {
        let answer = redis::cmd(refused[0]).arg(&refused[1..]).exec_async(&mut limited).await;
        let error = answer.expect_err(&format!("{refused:?} is allowed")).to_string();
        assert!(
            error.contains("NOPERM") || error.contains("can't access") || error.contains("permissions"),
            "{refused:?}: {error}"
        );
    }
    let wrong = redis::Client::open(format!("redis://punctual:wrong@127.0.0.1:{}/0", redis.port())).expect("a URL");
    assert!(wrong.get_multiplexed_async_connection().await.is_err(), "a wrong password");
}

/// Commands in the text of scripts: words in capitals and quotes.
fn in_scripts(directory: &str, is_included: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files(&path(directory)) {
        let name = file.strip_prefix(path("")).expect("below the root").display().to_string();
        if is_included(&name) {
            let script = fs::read_to_string(&file).expect("readable");
            // Comments have apostrophes.
            for line in script.lines().map(|line| line.split("--").next().unwrap_or_default()) {
                let quoted = line.split('\'').skip(1).step_by(2);
                let words = quoted.filter(|word| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase()));
                found.extend(words.map(str::to_lowercase));
            }
        }
    }
    found
}

/// Commands that the program names: words in capitals and quotes; after the next quote a subcommand.
fn in_program(directories: &[&str]) -> BTreeSet<String> {
    let is_command = |word: &str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let mut found = BTreeSet::new();
    for file in directories.iter().flat_map(|directory| files(&path(directory))) {
        let source = fs::read_to_string(&file).expect("readable");
        let parts: Vec<&str> = source.split('"').collect();
        for (at, command) in parts.iter().enumerate().filter(|(_, part)| is_command(part)) {
            found.insert(command.to_lowercase());
            if let [between, subcommand, ..] = parts[at + 1..]
                && between.contains("arg(")
            {
                found.insert(format!("{command}|{subcommand}").to_lowercase());
            }
        }
    }
    found
}

fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test]
async fn each_command_that_is_granted_is_used_and_the_other_way_round() {
    let redis = RedisServer::start().await;
    let known: Vec<String> =
        redis::cmd("COMMAND").arg("LIST").query_async(&mut redis.connection().await).await.expect("names");
    let known: BTreeSet<String> = known.into_iter().collect();
    let is_external = |name: &str| {
        name.contains("/take_") || name.contains("external") || name.contains("persist") || name.contains("due.lua")
    };
    let is_transfer = |name: &str| name.contains("transfer");
    let own = |name: &str| !is_external(name) && !is_transfer(name);
    for (users, scripts, directories) in [
        (ROUTES, in_scripts("lua", own), &["src/store/redis"][..]),
        (
            SOURCES,
            in_scripts("lua", |_| true),
            &["src/store/redis", "src/connector/redis_list", "src/connector/redis_sets"],
        ),
    ] {
        let mut scripts: BTreeSet<String> = scripts.intersection(&known).cloned().collect();
        // Scripts call SPUBLISH on a cluster only, and Redis 6.2 refuses a file that grants it.
        scripts.remove("spublish");
        let granted = granted(users, '+');
        let missing: Vec<&String> = scripts.difference(&granted).collect();
        assert!(missing.is_empty(), "{users} does not grant what scripts call: {missing:?}");
        let mut used = in_program(directories);
        used.extend(scripts);
        used.extend(OF_THE_CLIENT.map(str::to_owned));
        let unused: Vec<&String> = granted.difference(&used).collect();
        assert!(unused.is_empty(), "{users} grants what is not used: {unused:?}");
    }
}

#[test]
fn the_page_about_redis_grants_the_same() {
    let page = text("docs/redis.md");
    let (_, rule) = page.split_once("ACL SETUSER punctual on >PASSWORD ").expect("a rule");
    let rule: BTreeSet<&str> =
        rule.split("```").next().expect("its end").split_whitespace().filter(|word| *word != "\\").collect();
    let users = text(ROUTES);
    let (_, file) = users.split_once(">CHANGE_ME ").expect("a rule");
    assert_eq!(rule, file.split_whitespace().collect(), "left: docs/redis.md, right: {ROUTES}");
}
