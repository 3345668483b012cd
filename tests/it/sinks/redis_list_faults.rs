//! Faults of another Redis: the sink is unavailable, nothing is dead, and it delivers again once the key, the memory or
//! the server is right.

use std::time::Duration;

use punctual::{
    config::Period,
    connector::redis_list::{RedisListSettings, RedisListSink},
    sink::{
        Delivery, Outcome, Sink,
        envelope::ListFormat,
        template::{Allow, Place, Template},
    },
    tls::TlsFiles,
};
use redis::AsyncCommands;
use tokio::time::timeout;

use crate::support::{RedisServer, delivery, send, send_one};

fn sink(server: &RedisServer, timeout: Duration) -> RedisListSink {
    sink_to("jobs", server, timeout)
}

fn sink_to(key: &str, server: &RedisServer, timeout: Duration) -> RedisListSink {
    let place = Place::ListKey { key_prefix: "punctual".into() };
    let config = RedisListSettings {
        key: Template::parse(key, place).expect("a valid key"),
        allow: Allow::new(["jobs*"]).expect("a valid pattern"),
        format: ListFormat::Payload,
        timeout: Period(timeout),
        url: Some(server.url().into()),
        username: None,
        password: None,
        tls: TlsFiles::default(),
    };
    RedisListSink::new(&config).expect("a valid configuration")
}

async fn command(server: &RedisServer, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let _: redis::Value = command.query_async(&mut server.connection().await).await.expect("the command is right");
}

const MIB: usize = 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_list_of_the_wrong_type_is_unavailable_and_left_alone() {
    let server = RedisServer::start().await;
    let sink = sink(&server, TIMEOUT);
    command(&server, &["SET", "jobs", "foreign"]).await;
    let outcome = send_one(&sink).await;
    assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
    assert!(sink.check().await.unwrap_err().contains("string"));
    let kept: String = server.connection().await.get("jobs").await.unwrap();
    assert_eq!(kept, "foreign");

    command(&server, &["DEL", "jobs"]).await;
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    assert_eq!(sink.check().await, Ok(()));
}

#[tokio::test]
async fn a_server_that_repeats_what_it_was_sent_shows_no_payload() {
    let server = RedisServer::start_with(&["--rename-command", "RPUSH", "''"]).await;
    let outcome = send_one(&sink(&server, TIMEOUT)).await;
    assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
    let error = outcome.error().unwrap();
    assert!(error.contains("unknown command") && !error.contains("payload"), "{error}");
}

#[tokio::test]
async fn each_message_goes_to_its_own_list_and_a_wrong_one_fails_alone() {
    let server = RedisServer::start().await;
    command(&server, &["SET", "jobs:wrong", "foreign"]).await;
    let sink = sink_to("{key}", &server, TIMEOUT);
    assert_eq!(sink.check().await, Ok(()));
    let to = |key: &str| {
        let mut delivery = delivery("m", key.to_owned());
        delivery.metadata.key = Some(key.into());
        delivery
    };
    let batch: Vec<Delivery> =
        ["jobs:a", "jobs:wrong", "other", "jobs:b", "jobs:a", "{punctual:r:0/1}:dead", "jobs:b"].map(to).into();
    let outcomes = send(&sink, batch).await;
    let kinds: Vec<_> = outcomes.iter().map(Outcome::failure_kind).collect();
    let rejected = Some("rejected");
    assert_eq!(kinds, [None, Some("failed"), rejected, None, None, rejected, None]);
    assert_eq!(outcomes[2].error(), Some("the key `other` is not allowed: no pattern of `allow` matches"));
    let mut connection = server.connection().await;
    for key in ["jobs:a", "jobs:b"] {
        let elements: Vec<String> = connection.lrange(key, 0, -1).await.unwrap();
        assert_eq!(elements, [key, key]);
    }
    let mut keys: Vec<String> = connection.keys("*").await.unwrap();
    keys.sort();
    assert_eq!(keys, ["jobs:a", "jobs:b", "jobs:wrong"]);
}

#[tokio::test]
async fn a_redis_that_takes_no_writes_is_unavailable_until_it_does() {
    let server = RedisServer::start().await;
    let sink = sink(&server, TIMEOUT);
    for (wrong, right) in [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
        (["CONFIG", "SET", "min-replicas-to-write", "1"], ["CONFIG", "SET", "min-replicas-to-write", "0"]),
    ] {
        command(&server, &wrong).await;
        let outcome = send_one(&sink).await;
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{wrong:?}: {outcome:?}");
        command(&server, &right).await;
        assert_eq!(send_one(&sink).await, Outcome::Confirmed, "{right:?}");
    }
    command(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_eq!(send_one(&sink).await.failure_kind(), Some("unavailable"));
    command(&server, &["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
}

#[tokio::test]
async fn a_missing_right_is_unavailable() {
    let server = RedisServer::start().await;
    command(&server, &["ACL", "SETUSER", "default", "-rpush"]).await;
    assert_eq!(send_one(&sink(&server, TIMEOUT)).await.failure_kind(), Some("unavailable"));
}

#[tokio::test]
async fn a_restarted_redis_gets_what_follows() {
    let mut server = RedisServer::start().await;
    let sink = sink(&server, TIMEOUT);
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    server.kill();
    let outcome = send_one(&sink).await;
    assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
    server.restart().await;
    // The connection is made anew at most ten times a second.
    let back = async { while send_one(&sink).await != Outcome::Confirmed {} };
    timeout(Duration::from_secs(2), back).await.expect("it delivers again");
}

#[tokio::test]
async fn a_command_without_an_answer_in_time_may_have_been_carried_out() {
    let server = RedisServer::start().await;
    let sink = sink(&server, Duration::from_millis(500));
    assert_eq!(send_one(&sink).await, Outcome::Confirmed);
    command(&server, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let outcome = send_one(&sink).await;
    assert_eq!(outcome.failure_kind(), Some("throttled"), "{outcome:?}");
}

#[tokio::test]
async fn a_value_that_redis_would_not_take_is_rejected_and_the_others_arrive() {
    let server = RedisServer::start_with(&["--proto-max-bulk-len", "2mb"]).await;
    let sink = sink(&server, TIMEOUT);
    let batch = vec![
        delivery("fits", vec![b'a'; 2 * MIB]),
        delivery("too-large", vec![b'b'; 2 * MIB + 1]),
        delivery("small", "c"),
    ];
    let kinds: Vec<_> = send(&sink, batch).await.iter().map(Outcome::failure_kind).collect();
    assert_eq!(kinds, [None, Some("rejected"), None]);
    let length: usize = server.connection().await.llen("jobs").await.unwrap();
    assert_eq!(length, 2);
}
