//! `check`, `schema`, `schedule` and `stats`, beside a running instance and without one.

use std::{
    fs::File,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::{client::Client, refusals::content};
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
    assert_eq!(valid.out, "the configuration is valid: 1 routes, 1 sinks, 0 sources\n");
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
async fn schedule_keeps_to_the_largest_payload_registered_for_its_route() {
    let redis = RedisServer::start().await;
    for (route, max_payload) in [("small", 10), ("web", 20)] {
        let settings = format!(r#"{{"version":1,"partitions":1,"max_payload":{max_payload}}}"#);
        let mut register = redis::cmd("HSET");
        register.arg(&["punctual:routes", route, &settings]);
        register.exec_async(&mut redis.connection().await).await.expect("registered");
    }
    let workplace = Workplace::with(&format!("redis: {{ url: '{}' }}", redis.url()));
    for (route, bytes, code) in [("small", 10, 0), ("small", 11, 1), ("web", 20, 0), ("web", 21, 1)] {
        let ended = workplace.run(&["schedule", route, "--payload", &"x".repeat(bytes)]).await;
        assert_eq!(ended.code, Some(code), "{bytes} bytes on {route}: {ended:?}");
        assert!(code == 0 || ended.error.contains(&format!("takes {bytes} bytes, at most")), "{ended:?}");
    }
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
async fn schedule_and_stats_work_beside_an_instance_and_without_one() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = configuration(&redis, &receiver);
    let workplace = Workplace::with(&configuration);
    let unknown = workplace.run(&["schedule", "web", "--payload", "x"]).await;
    assert_eq!(unknown.code, Some(3), "no instance has registered it yet: {unknown:?}");

    let mut punctual = Punctual::start(&configuration).await;
    let before = content(&redis).await;
    for (arguments, code, text) in [
        (&["schedule", "none", "--payload", "x"][..], 3, "there is no route `none`"),
        (&["schedule", "web", "--payload", "x", "--delay", "later"], 2, "--delay"),
        (&["schedule", "web", "--payload", "x", "--delay=-1s"], 2, "--delay"),
        (&["schedule", "web", "--payload", "x", "--deliver-at", "today"], 2, "--deliver-at"),
        (&["schedule", "web", "--payload", "x", "--id", "a b"], 2, "--id"),
        (&["schedule", "web", "--payload", "x", "--header", "Host: a"], 2, "header"),
        (&["schedule", "web", "--payload", "x", "--delay", "1s", "--deliver-at", "1"], 2, "cannot be used with"),
        (&["schedule", "web", "--payload-file", "missing"], 2, "missing"),
        (&["stats", "none"], 3, "there is no route `none`"),
    ] {
        let ended = workplace.run(arguments).await;
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        assert!(ended.error.contains(text) && ended.out.is_empty(), "{arguments:?}: {ended:?}");
    }
    assert_eq!(content(&redis).await, before, "nothing was written");

    let now =
        workplace.run_with_input(&["schedule", "web", "--id", "piped", "--header", "X-A: b"], b"from stdin").await;
    assert_eq!(now.code, Some(0), "{now:?}");
    assert!(now.out.starts_with("scheduled piped for 20"), "{now:?}");
    let request = receiver.wait_for(1, Duration::from_secs(5)).await.remove(0);
    assert_eq!((request.id(), request.header("x-a"), &request.body[..]), ("piped", "b", &b"from stdin"[..]));

    assert_eq!(punctual.terminate().await.code, Some(0));
    let later = workplace.run(&["schedule", "web", "--id", "later", "--delay", "1h", "--payload", "x", "--json"]).await;
    assert_eq!(later.code, Some(0), "{later:?}");
    let answer: Value = serde_json::from_str(&later.out).unwrap();
    assert_eq!((&answer["id"], &answer["status"]), (&"later".into(), &"scheduled".into()));
    let again = workplace.run(&["schedule", "web", "--id", "later", "--delay", "2h", "--payload", "y"]).await;
    assert!(again.out.starts_with("exists later for"), "{again:?}");

    let table = workplace.run(&["stats"]).await;
    assert_eq!(table.code, Some(0), "{table:?}");
    let lines: Vec<&str> = table.out.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("ROUTE") && lines[1].starts_with("web "), "{}", table.out);
    let json: Value = serde_json::from_str(&workplace.run(&["stats", "web", "--json"]).await.out).unwrap();
    assert_eq!((&json[0]["route"], &json[0]["pending"], &json[0]["due"]), (&"web".into(), &1.into(), &0.into()));
    assert_eq!(json[0]["next_due"], answer["deliver_at"]);

    punctual.restart().await;
    let shown = Client::of(&punctual).call("GET", "/v1/routes/web/messages/later", "").await;
    assert_eq!((&shown.json["state"], &shown.json["payload"]), (&"pending".into(), &"x".into()));
}
