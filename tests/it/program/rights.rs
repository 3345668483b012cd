//! Redis users without all rights: punctual starts, works and warns.

use std::time::Duration;

use super::{client::Client, eventually};
use crate::support::{RedisServer, command::Workplace, punctual::Punctual, receiver::Receiver};

const PAGE: &str = include_str!("../../../docs/redis.md");

fn configuration(redis: &RedisServer, receiver: &Receiver) -> String {
    format!(
        "redis: {{ url: 'redis://127.0.0.1:{}/0', username: limited, password: secret }}\n\
         sinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ web: {{ sink: hook }} }}\nmax_sleep: 1s\n",
        redis.port(),
        receiver.url()
    )
}

/// A running instance that has delivered a message. Its Redis user has these rights.
async fn delivering(rights: &[&str]) -> (RedisServer, Punctual) {
    delivering_on(RedisServer::start().await, rights).await
}

async fn delivering_on(redis: RedisServer, rights: &[&str]) -> (RedisServer, Punctual) {
    let receiver = Receiver::start();
    limit(&redis, rights).await;
    let punctual = Punctual::start(&configuration(&redis, &receiver)).await;
    let client = Client::of(&punctual);
    client.schedule("web", r#"{"id":"x","delay":"100ms","payload":""}"#).await;
    receiver.wait_for(1, Duration::from_secs(5)).await;
    client.drained("web", Duration::from_secs(5)).await;
    (redis, punctual)
}

/// Makes the user `limited` with the password `secret` and these rights.
pub async fn limit(redis: &RedisServer, rights: &[&str]) {
    let user = [&["SETUSER", "limited", "on", ">secret"], rights].concat();
    redis::cmd("ACL").arg(&user).exec_async(&mut redis.connection().await).await.expect("a user");
}

/// Rights that the page about Redis adds for this setting.
pub fn documented_with(setting: &str) -> Vec<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("With `{setting}`: `")).expect("its rights");
    rest.split('`').next().expect("their end").split_whitespace().collect()
}

/// Rights that the page about Redis grants on this server in any case, and those that it adds for lists, sources and
/// replicas, but not for clusters.
pub fn documented() -> (Vec<&'static str>, Vec<&'static str>) {
    let (_, rest) = PAGE.split_once("ACL SETUSER punctual on >PASSWORD ").expect("a rule");
    let (rule, rest) = rest.split_once("```").expect("its end");
    let (further, _) = rest.split_once("redis.url: embedded").expect("the next paragraph");
    let further = further.split('`').filter(|part| part.starts_with(['+', '&'])).flat_map(str::split_whitespace);
    // Redis 6.2 has not all of these commands.
    let of_clusters = documented_with("redis.cluster");
    let further = further.filter(|right| !of_clusters.contains(right));
    let rule = rule.split_whitespace().filter(|word| *word != "\\");
    (rule.collect(), further.collect())
}

pub async fn assert_nothing_was_denied(redis: &RedisServer) {
    let mut log = redis::cmd("ACL");
    let denied: Vec<redis::Value> = log.arg("LOG").query_async(&mut redis.connection().await).await.expect("a log");
    assert!(denied.is_empty(), "{denied:?}");
}

fn warnings(punctual: &Punctual) -> Vec<String> {
    // That there are no tokens is another matter.
    let of_rights = |line: &&str| !line.contains("the API asks for no token");
    let loud = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    punctual.log().lines().filter(loud).filter(of_rights).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rights_to_dangerous_commands_the_unchecked_settings_are_logged() {
    let (_redis, punctual) = delivering(&["~*", "&*", "+@all", "-@dangerous"]).await;
    assert_eq!(Client::of(&punctual).call("GET", "/readyz", "").await.status, 200);
    let warnings = warnings(&punctual);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("eviction policy") && warnings[0].contains("+info"), "{warnings:#?}");
    assert!(!warnings[0].contains("role"), "HELLO reported it: {warnings:#?}");
    let denied = Client::of(&punctual).metrics().await.sum("punctual_redis_errors_total", &["kind=\"noperm\""]);
    assert_eq!(denied, 0, "what was to be expected is no error");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_hello_too_a_replica_is_found_out_by_a_write() {
    // Redis itself lets every user call HELLO; a proxy in front of it may not know the command.
    let redis = RedisServer::start_with(&["--rename-command", "HELLO", ""]).await;
    let (redis, punctual) = delivering_on(redis, &["~*", "&*", "+@all", "-@dangerous"]).await;
    let warnings = warnings(&punctual);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    for unchecked in ["version", "role", "eviction policy", "+info"] {
        assert!(warnings[0].contains(unchecked), "{unchecked}: {warnings:#?}");
    }
    redis::cmd("REPLICAOF").arg(&["127.0.0.1", "1"]).exec_async(&mut redis.connection().await).await.expect("demoted");
    let answer = Client::of(&punctual).readiness().await;
    assert!(answer.status == 503 && answer.text.contains("readonly"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_script_load_scripts_are_sent_when_they_are_called() {
    let (redis, punctual) = delivering(&["~*", "&*", "+@all", "-script"]).await;
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).exec_async(&mut redis.connection().await).await.expect("cut");
    let client = Client::of(&punctual);
    // The call that finds the link cut may fail.
    let ready = async || (client.readiness().await.status == 200).then_some(());
    eventually("it is prepared again", Duration::from_secs(5), ready).await;
    let complaints = warnings(&punctual).iter().filter(|line| line.contains("SCRIPT LOAD")).count();
    assert_eq!(complaints, 1, "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn wake_ups_that_may_not_be_published_are_counted_and_logged_once() {
    let (_redis, punctual) = delivering(&["~*", "&*", "+@all", "-publish"]).await;
    let metrics = Client::of(&punctual).metrics().await;
    assert!(metrics.sum("punctual_wakeups_denied_total", &[]) >= 1);
    let warnings = warnings(&punctual);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("PUBLISH") && warnings[0].contains("max_sleep"), "{warnings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_that_the_documents_list_are_enough() {
    let (redis, punctual) = delivering(&documented().0).await;
    let client = Client::of(&punctual);
    for id in ["kept", "moved", "cancelled"] {
        client.schedule("web", &format!(r#"{{"id":"{id}","delay":"1h","payload":""}}"#)).await;
    }
    client.schedule("web", r#"{"id":"kept","delay":"2h","payload":"","on_conflict":"replace"}"#).await;
    for (method, path, body, status) in [
        ("PATCH", "messages/moved", r#"{"delay":"3h"}"#, 200),
        ("DELETE", "messages/cancelled", "", 204),
        ("GET", "messages/kept", "", 200),
        ("GET", "messages", "", 200),
        ("POST", "pause", "", 204),
        ("POST", "resume", "", 204),
        ("POST", "messages/kept/deliver", "", 200),
        ("GET", "messages?state=dead&reason=expired", "", 200),
        ("GET", "dead/summary", "", 200),
        ("GET", "forecast", "", 200),
        ("POST", "dead/redrive", r#"{"all":true}"#, 200),
        ("POST", "dead/purge", r#"{"all":true}"#, 200),
    ] {
        let answer = client.call(method, &format!("/v1/routes/web/{path}"), body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
    }
    assert_eq!(client.call("GET", "/readyz", "").await.status, 200);
    assert_eq!(warnings(&punctual), [""; 0]);
    assert_nothing_was_denied(&redis).await;
}

/// A message of each source arrives in the list.
async fn both_sources_deliver(redis: &RedisServer) {
    let mut pipe = redis::pipe();
    pipe.hset("task:1", "field", "value").zadd("theirs", "task:1", 1);
    pipe.set_ex("dp:q:msg:one", "body", 100).hset("dp:q:retry:cnt", "one", 1).zadd("dp:q:pending", "one", 1);
    pipe.exec_async(&mut redis.connection().await).await.expect("written");
    eventually("both are delivered", Duration::from_secs(5), async || (length(redis, "jobs").await == 2).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_further_rights_are_enough_for_lists_and_sources_on_the_same_redis() {
    let redis = RedisServer::start_with(&["--notify-keyspace-events", "Kzl"]).await;
    let (rule, further) = documented();
    limit(&redis, &[&rule[..], &further, &PATTERNS].concat()).await;
    let punctual = Punctual::start(&with_list_and_sources(&redis)).await;
    both_sources_deliver(&redis).await;
    let sources = Client::of(&punctual).call("GET", "/v1/sources", "").await;
    assert_eq!(sources.status, 200);
    assert_eq!(warnings(&punctual), [""; 0]);
    assert_nothing_was_denied(&redis).await;
}

/// Keys of the sink and the sources below, in patterns.
const PATTERNS: [&str; 4] = ["~jobs", "~theirs", "~task:*", "~dp:q:*"];

fn with_list_and_sources(redis: &RedisServer) -> String {
    format!(
        "redis: {{ url: 'redis://127.0.0.1:{}/0', username: limited, password: secret }}\n\
         sinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\nroutes: {{ list: {{ sink: jobs }} }}\nsources:\n\
         \x20 set: {{ type: sorted_set, key: theirs, payload: hash, hash_prefix: 'task:', route: list }}\n\
         \x20 go: {{ type: delayqueue, name: q, hash_tag: false, prefix: dp, route: list }}\n",
        redis.port()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_of_lists_and_sources_that_is_missing_alone_is_named_by_the_check() {
    let redis = RedisServer::start_with(&["--notify-keyspace-events", "Kzl"]).await;
    let (rule, further) = documented();
    let all: Vec<&str> = [&rule[..], &further, &PATTERNS].concat();
    let workplace = Workplace::with(&with_list_and_sources(&redis));
    let mut raw = redis.connection().await;
    let mut pipe = redis::pipe();
    pipe.rpush("jobs", "theirs").zadd("theirs", "task:1", "9e12").hset("task:1", "field", "value");
    pipe.exec_async(&mut raw).await.expect("written");
    let writes = async || {
        let info: String =
            redis::cmd("INFO").arg("persistence").query_async(&mut redis.connection().await).await.expect("facts");
        info.lines().find(|line| line.starts_with("rdb_changes_since_last_save")).expect("a count").to_owned()
    };
    let before = writes().await;
    let check = async || {
        let ended = workplace.run(&["check", "--connect", "--json"]).await;
        let report: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
        (ended.code, report)
    };
    limit(&redis, &[&["reset"][..], &["on", ">secret"], &all].concat()).await;
    let (code, report) = check().await;
    assert_eq!((code, report["advice"].to_string()), (Some(0), "{}".into()), "{report}");
    assert_nothing_was_denied(&redis).await;
    // Rights of replication, and those that the log names at the start.
    let others = ["+role", "+wait", "&__keyspace@*", "+info", "+script|load", "+publish"];
    for missing in further.iter().chain(&PATTERNS).filter(|right| !others.contains(right)) {
        let granted: Vec<&str> = all.iter().copied().filter(|right| right != missing).collect();
        limit(&redis, &[&["reset"][..], &["on", ">secret"], &granted].concat()).await;
        let (code, report) = check().await;
        let is_optional = *missing == "+config|get";
        assert_eq!(code, Some(i32::from(!is_optional)), "{missing}: {report}");
        let said = if is_optional { &report["advice"] } else { &report["answers"] };
        let said: Vec<String> = said.as_object().expect("answers").values().map(ToString::to_string).collect();
        let names = if *missing == "~dp:q:*" { &["~dp:q:pending", "~dp:q:msg:*"][..] } else { &[*missing] };
        let is_named = |name: &&str| said.iter().any(|text| text.contains(*name));
        assert!(names.iter().all(is_named), "{missing}: {said:?}");
    }
    assert_eq!(writes().await, before, "nothing is written");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_check_names_all_missing_rights_and_they_are_enough() {
    let redis = RedisServer::start_with(&["--notify-keyspace-events", "Kzl"]).await;
    limit(&redis, &documented().0).await;
    let workplace = Workplace::with(&with_list_and_sources(&redis));
    let ended = workplace.run(&["check", "--connect", "--json"]).await;
    let report: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
    for subject in ["sinks.jobs", "sources.go", "sources.set"] {
        let text = report["answers"][subject].as_str().expect("an answer");
        let (_, rights) = text.split_once("ACL SETUSER <user> ").unwrap_or_else(|| panic!("{subject}: {text}"));
        let rights = rights.split('`').next().expect("their end").split_whitespace();
        limit(&redis, &rights.collect::<Vec<_>>()).await;
    }
    let ended = workplace.run(&["check", "--connect"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.out);
    let _punctual = Punctual::start(&with_list_and_sources(&redis)).await;
    both_sources_deliver(&redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_of_a_list_or_a_source_is_named_before_a_message_is_due() {
    let redis = RedisServer::start_with(&["--notify-keyspace-events", "Kzl"]).await;
    let (rule, further) = documented();
    limit(&redis, &[&rule[..], &further, &PATTERNS, &["-ltrim", "-hkeys"]].concat()).await;
    let punctual = Punctual::start(&with_list_and_sources(&redis)).await;
    let client = Client::of(&punctual);
    eventually("each is named in the log", Duration::from_secs(5), async || {
        let log = punctual.log();
        let named = |subject: &str, right: &str| {
            log.lines().any(|line| line.contains("WARN") && line.contains(subject) && line.contains(right))
        };
        let all =
            named("sink=\"jobs\"", "+ltrim") && named("source=\"set\"", "+hkeys") && named("source=\"go\"", "+ltrim");
        all.then_some(())
    })
    .await;
    let check = client.sink("jobs").await["check"].clone();
    assert!(check.as_str().is_some_and(|text| text.contains("+ltrim")), "{check}");
    assert_eq!(client.readiness().await.status, 200, "other routes are not affected");

    limit(&redis, &["+ltrim", "+hkeys"]).await;
    eventually("the sources take messages", Duration::from_secs(15), async || {
        let answer = client.call("GET", "/v1/sources", "").await;
        let sources = answer.json["sources"].as_array().expect("sources").clone();
        sources.iter().all(|source| source["state"] == "running").then_some(())
    })
    .await;
    eventually("the sink is usable", Duration::from_secs(15), async || {
        (client.sink("jobs").await["check"] == "ok").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_on_another_redis_is_named_and_nothing_is_pushed() {
    let (queue, other) = (RedisServer::start().await, RedisServer::start().await);
    let workplace = Workplace::with(&format!(
        "redis: {{ url: '{}' }}\nroutes: {{ one: {{ sink: jobs }}, many: {{ sink: varying }} }}\nsinks:\n\
         \x20 jobs: {{ type: redis_list, key: jobs, url: 'redis://limited:secret@127.0.0.1:{port}/0' }}\n\
         \x20 varying:\n    {{ type: redis_list, key: 'jobs-{{key}}', allow: ['jobs-*'],\n\
         \x20     url: 'redis://limited:secret@127.0.0.1:{port}/0' }}\n",
        queue.url(),
        port = other.port()
    ));
    let all = ["-@all", "+ping", "+select", "+type", "+rpush", "+multi", "~jobs", "~jobs-*"];
    for (missing, name, also_varying) in [
        ("", "ok", true),
        ("+type", "+type", true),
        ("+rpush", "+rpush", true),
        ("+multi", "+multi", true),
        ("~jobs", "~jobs", false),
    ] {
        let granted: Vec<&str> = all.iter().copied().filter(|right| *right != missing).collect();
        limit(&other, &[&["reset"][..], &["on", ">secret"], &granted].concat()).await;
        let ended = workplace.run(&["check", "--connect", "--json"]).await;
        let report: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
        for (sink, is_missing) in [("sinks.jobs", true), ("sinks.varying", also_varying)] {
            let said = report["answers"][sink].as_str().expect("an answer");
            assert!(said.contains(if is_missing { name } else { "ok" }), "{missing}: {report}");
        }
    }
    let keys: usize = redis::cmd("DBSIZE").query_async(&mut other.connection().await).await.expect("a number");
    assert_eq!(keys, 0, "nothing is pushed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_while_messages_wait_is_named_and_costs_none_of_them() {
    const COUNT: usize = 500;
    let redis = RedisServer::start().await;
    let receiver = Receiver::start();
    limit(&redis, &documented().0).await;
    let punctual = Punctual::start(&configuration(&redis, &receiver)).await;
    let client = Client::of(&punctual);
    let messages: Vec<String> = (0..COUNT).map(|n| format!(r#"{{"id":"m{n}","delay":"2s","payload":""}}"#)).collect();
    let answer = client.call("POST", "/v1/routes/web/messages", &format!("[{}]", messages.join(","))).await;
    assert!(answer.status < 300, "{}", answer.text);

    limit(&redis, &["-zadd"]).await;
    // One more is found by the claim that is denied, without a question.
    eventually("the outage is logged", Duration::from_secs(10), async || {
        punctual.log().contains("redis cannot be used").then_some(())
    })
    .await;
    let answer = client.readiness().await;
    assert!(answer.status == 503 && answer.text.contains("+zadd"), "{}", answer.text);
    let checked = punctual.command(&["check", "--connect", "-c", "punctual.yaml"]).await;
    assert!(checked.code != Some(0), "{checked:?}");
    assert!(format!("{checked:?}").contains("+zadd"), "{checked:?}");
    let stats = client.stats("web").await;
    assert_eq!((&stats["pending"], &stats["unack"]), (&COUNT.into(), &0.into()), "{stats}");
    assert_eq!(receiver.count(), 0);

    limit(&redis, &["+zadd"]).await;
    receiver.wait_for(COUNT, Duration::from_secs(10)).await;
    client.drained("web", Duration::from_secs(5)).await;
    assert_eq!(receiver.count(), COUNT, "none twice");
    eventually("it is ready again", Duration::from_secs(5), async || {
        (client.readiness().await.status == 200).then_some(())
    })
    .await;
    let lines = punctual.log().lines().filter(|line| line.contains("redis cannot be used")).count();
    assert_eq!(lines, 1, "{}", punctual.log());
}

async fn length(redis: &RedisServer, list: &str) -> usize {
    redis::cmd("LLEN").arg(list).query_async(&mut redis.connection().await).await.expect("a list")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_the_user_is_not_allowed_to_push_to_is_down_until_it_is() {
    const COUNT: usize = 500;
    let redis = RedisServer::start().await;
    let receiver = Receiver::start();
    let (rule, further) = documented();
    limit(&redis, &[&rule[..], &further, &["~jobs"]].concat()).await;
    let configuration = format!(
        "redis: {{ url: 'redis://127.0.0.1:{}/0', username: limited, password: secret }}\n\
         sinks: {{ jobs: {{ type: redis_list, key: jobs }}, hook: {{ type: http, url: '{}' }} }}\n\
         routes: {{ list: {{ sink: jobs, retry: {{ max_attempts: 1 }} }}, web: {{ sink: hook }} }}\n",
        redis.port(),
        receiver.url()
    );
    let punctual = Punctual::start(&configuration).await;
    let client = Client::of(&punctual);
    for (round, (denied, granted)) in [("-rpush", "+rpush"), ("-type", "+type")].into_iter().enumerate() {
        limit(&redis, &[denied]).await;
        let messages: Vec<String> = (0..COUNT).map(|n| format!(r#"{{"id":"m{n}","payload":""}}"#)).collect();
        client.schedule("list", &format!("[{}]", messages.join(","))).await;
        eventually("the sink is down", Duration::from_secs(5), async || {
            (client.metrics().await.sum("punctual_sink_up", &["sink=\"jobs\""]) == 0).then_some(())
        })
        .await;
        eventually("the messages wait", Duration::from_secs(5), async || {
            let stats = client.stats("list").await;
            let is_late = stats["oldest_overdue_seconds"].as_f64().expect("seconds") > 0.5;
            (is_late && stats["pending"].as_u64() > Some(COUNT as u64 - 5)).then_some(())
        })
        .await;
        let log = punctual.log();
        assert!(log.contains("--connect") && !log.contains("store does not answer"), "{log}");
        assert_eq!(client.readiness().await.status, 200, "the other sink can be used");
        client.schedule("web", &format!(r#"{{"id":"w{round}","payload":""}}"#)).await;
        receiver.wait_for(round + 1, Duration::from_secs(5)).await;

        limit(&redis, &[granted]).await;
        client.drained("list", Duration::from_secs(10)).await;
        assert_eq!(length(&redis, "jobs").await, (round + 1) * COUNT, "each once");
    }
    assert_eq!(client.stats("list").await["dead"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_list_of_many_that_the_user_is_not_allowed_to_use_does_not_stop_the_others() {
    let redis = RedisServer::start().await;
    let (rule, further) = documented();
    limit(&redis, &[&rule[..], &further, &["~jobs-*"]].concat()).await;
    let configuration = format!(
        "redis: {{ url: 'redis://127.0.0.1:{}/0', username: limited, password: secret }}\n\
         sinks: {{ lists: {{ type: redis_list, key: '{{key}}', allow: ['*'] }} }}\n\
         routes: {{ list: {{ sink: lists, retry: {{ initial: 1s, factor: 1, jitter: 0 }} }} }}\n",
        redis.port()
    );
    let punctual = Punctual::start(&configuration).await;
    let client = Client::of(&punctual);
    let key = |n: usize| ["jobs-a", "jobs-b", "theirs"][n % 3];
    let messages: Vec<String> =
        (0..30).map(|n| format!(r#"{{"id":"m{n}","payload":"","key":"{}"}}"#, key(n))).collect();
    client.schedule("list", &format!("[{}]", messages.join(","))).await;
    eventually("the others are delivered", Duration::from_secs(5), async || {
        (length(&redis, "jobs-a").await == 10 && length(&redis, "jobs-b").await == 10).then_some(())
    })
    .await;
    eventually("ten are retried", Duration::from_secs(5), async || {
        (client.stats("list").await["retrying"] == 10).then_some(())
    })
    .await;
    let message = client.call("GET", "/v1/routes/list/messages/m2", "").await;
    let error = message.json["last_error"].as_str().expect("an error");
    assert!(error.contains("`theirs`") && error.contains("`ACL SETUSER <user> ~theirs`"), "{error}");
    assert!(!error.contains("--connect"), "the check does not know this list: {error}");
    limit(&redis, &["~theirs"]).await;
    client.drained("list", Duration::from_secs(10)).await;
    assert_eq!(length(&redis, "theirs").await, 10);

    limit(&redis, &["-rpush"]).await;
    client.schedule("list", &format!("[{}]", messages.join(","))).await;
    eventually("all wait", Duration::from_secs(5), async || {
        let stats = client.stats("list").await;
        (stats["pending"] == 30 && client.sink("lists").await["breaker"] != "closed").then_some(())
    })
    .await;
    let lines = punctual.log().lines().filter(|line| line.contains("the sink is down")).count();
    assert_eq!(lines, 1, "all lists have one cause: {}", punctual.log());
    limit(&redis, &["+rpush"]).await;
    client.drained("list", Duration::from_secs(10)).await;
    assert_eq!(length(&redis, "theirs").await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_in_no_set_are_found_at_the_start_and_are_pending_at_their_due_time() {
    let redis = RedisServer::start().await;
    let receiver = Receiver::start();
    limit(&redis, &documented().0).await;
    let mut punctual = Punctual::start(&configuration(&redis, &receiver)).await;
    let client = Client::of(&punctual);
    client.call("POST", "/v1/routes/web/pause", "").await;
    let messages: Vec<String> = (0..300).map(|n| format!(r#"{{"id":"m{n}","delay":"0s","payload":"{n}"}}"#)).collect();
    client.call("POST", "/v1/routes/web/messages", &format!("[{}]", messages.join(","))).await;
    client.schedule("web", r#"{"id":"later","delay":"1h","payload":""}"#).await;
    client.schedule("web", r#"{"id":"kept","delay":"1h","payload":""}"#).await;
    let mut raw = redis.connection().await;
    let mut lost: Vec<String> = (0..300).filter(|n| n % 2 == 0).map(|n| format!("m{n}")).collect();
    lost.push("later".into());
    let removed: usize =
        redis::cmd("ZREM").arg("{punctual:web:0/1}:pending").arg(&lost).query_async(&mut raw).await.expect("removed");
    assert_eq!(removed, 151);
    client.call("POST", "/v1/routes/web/resume", "").await;
    receiver.wait_for(150, Duration::from_secs(5)).await;

    punctual.terminate().await;
    punctual.restart().await;
    receiver.wait_for(300, Duration::from_secs(10)).await;
    let client = Client::of(&punctual);
    eventually("two wait", Duration::from_secs(5), async || {
        let stats = client.stats("web").await;
        (stats["pending"] == 2 && stats["unack"] == 0).then_some(())
    })
    .await;
    assert_eq!(receiver.count(), 300, "none twice");
    assert_eq!(client.metrics().await.sum("punctual_messages_restored_total", &[]), 151);
    assert!(punctual.log().contains("messages=151"), "{}", punctual.log());
}
