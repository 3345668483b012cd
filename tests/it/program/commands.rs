//! `check`, `schema` and `lua`: commands that need no instance. Those of operators are in `cli`.

use std::{
    fs::File,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::refusals::content;
use crate::support::{RedisServer, command::Workplace, punctual::Punctual, receiver::Receiver};

fn configuration(redis: &RedisServer, receiver: &Receiver) -> String {
    format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ web: {{ sink: hook }} }}\n",
        redis.url(),
        receiver.url()
    )
}

#[tokio::test]
async fn check_reports_whether_everything_answers() {
    let (mut redis, mut receiver) = (RedisServer::start().await, Receiver::start());
    let workplace = Workplace::with(&configuration(&redis, &receiver));
    let valid = workplace.run(&["check"]).await;
    assert_eq!((valid.code, &*valid.error), (Some(0), ""));
    assert!(valid.out.starts_with("the configuration is valid: 1 route, 1 sink, 0 sources\ndigest "), "{}", valid.out);
    let all_answer = workplace.run(&["check", "--connect", "--json"]).await;
    assert_eq!(all_answer.code, Some(0), "{all_answer:?}");
    let answers: Value = serde_json::from_str(&all_answer.out).unwrap();
    assert_eq!(answers["answers"], serde_json::json!({ "redis": "ok", "sinks.hook": "ok" }));
    assert_eq!(receiver.count(), 0, "asking sends nothing");
    assert!(content(&redis).await.is_empty(), "and writes nothing");

    receiver.refuse();
    let sink_away = workplace.run(&["check", "--connect"]).await;
    assert_eq!(sink_away.code, Some(1), "{sink_away:?}");
    assert!(sink_away.out.contains("sinks.hook") && sink_away.error.contains("1 of 2"), "{sink_away:?}");
    redis.kill();
    let both_away = workplace.run(&["check", "--connect"]).await;
    assert_eq!(both_away.code, Some(1));
    assert!(both_away.error.contains("2 of 2"), "{both_away:?}");
}

#[tokio::test]
async fn check_says_that_a_redis_may_not_speak_tls() {
    let redis = RedisServer::start().await;
    let url = redis.url().replace("redis://", "rediss://");
    let workplace = Workplace::with(&format!(
        "redis: {{ url: '{url}', timeout: 1s }}\nsinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\n\
         routes: {{ list: {{ sink: jobs }} }}\n"
    ));
    let ended = workplace.run(&["check", "--connect"]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("may not speak TLS"), "{ended:?}");
}

#[tokio::test]
async fn check_says_what_the_start_would_do_with_another_number_of_partitions() {
    let redis = RedisServer::start().await;
    let with = |partitions: u16| {
        format!(
            "redis: {{ url: '{}' }}\nsinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\n\
             routes: {{ list: {{ sink: jobs, partitions: {partitions} }}, new: {{ sink: jobs }} }}\n",
            redis.url()
        )
    };
    let start = async |partitions: u16| {
        let mut punctual = Punctual::start(&with(partitions)).await;
        assert_eq!(punctual.terminate().await.code, Some(0));
    };
    let check = async |partitions: u16| {
        let ended = Workplace::with(&with(partitions)).run(&["check", "--connect", "--json"]).await;
        let shown: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
        (ended.code, shown["answers"]["routes.list"].clone(), shown["advice"]["routes.list"].clone())
    };
    let ok = |advice: Value| (Some(0), Value::from("ok"), advice);
    start(1).await;
    assert_eq!(check(1).await, (Some(0), Value::Null, Value::Null), "nothing to say");
    let before = content(&redis).await;
    assert_eq!(check(2).await, ok("the start moves its messages from 1 to 2 partitions".into()));
    assert_eq!(content(&redis).await, before, "asking changes nothing");
    start(2).await;
    let (code, refused, advice) = check(1).await;
    assert_eq!((code, advice), (Some(1), Value::Null));
    assert!(refused.as_str().is_some_and(|text| text.contains("run `punctual repartition list 1`")), "{refused}");
    start(2).await;
}

#[tokio::test]
async fn check_says_of_a_list_on_the_own_redis_what_it_says_of_that_redis() {
    let mut redis = RedisServer::start().await;
    let workplace = Workplace::with(&format!(
        "redis: {{ url: '{}', timeout: 1s }}\nsinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\n\
         routes: {{ list: {{ sink: jobs }} }}\n",
        redis.url()
    ));
    let answers = async || {
        let ended = workplace.run(&["check", "--connect", "--json"]).await;
        let answers: Value = serde_json::from_str(&ended.out).expect("JSON");
        (ended.code, answers["answers"].clone())
    };
    assert_eq!(answers().await, (Some(0), serde_json::json!({ "redis": "ok", "sinks.jobs": "ok" })));
    redis.kill();
    let (code, answers) = answers().await;
    assert_eq!(code, Some(1));
    assert_eq!(answers["sinks.jobs"], answers["redis"], "it shares its fate");
    let address = format!("127.0.0.1:{}", redis.port());
    assert!(answers["redis"].as_str().expect("text").contains(&address), "{answers}");
}

#[tokio::test]
async fn schema_describes_the_configuration() {
    let ended = Workplace::with("").run(&["schema"]).await;
    assert_eq!(ended.code, Some(0));
    let schema: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert!(schema["properties"]["routes"].is_object());
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_failure_and_a_full_disk_is_one() {
    let run = |out: Stdio| {
        let ended = Command::new(env!("CARGO_BIN_EXE_punctual")).arg("schema").stdout(out).output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(run(writer.into()), (Some(0), String::new()));
    let (code, error) = run(File::options().write(true).open("/dev/full").unwrap().into());
    assert!(code == Some(1) && error.starts_with("punctual: standard output: "), "{code:?} {error}");
}

#[tokio::test]
async fn scripts_and_completions_are_printed() {
    let workplace = Workplace::with("");
    let produce = include_str!("../../../lua/produce.lua");
    for arguments in [&["lua"][..], &["lua", "produce"]] {
        assert_eq!(workplace.run(arguments).await.out, produce);
    }
    for shell in ["bash", "zsh", "fish"] {
        let ended = workplace.run(&["completions", shell]).await;
        assert!(ended.code == Some(0) && ended.out.contains("redrive"), "{shell}: {ended:?}");
    }
    // As a file: an argument has 128 KiB at most.
    let script = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(script.path(), workplace.run(&["completions", "bash"]).await.out).expect("written");
    let syntax = Command::new("bash").arg("-n").arg(script.path()).status();
    assert!(syntax.unwrap().success());
}
