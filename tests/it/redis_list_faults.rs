//! What goes wrong with another Redis: the sink is unavailable, nothing is dead, and it delivers again once
//! the key, the memory or the server is right.

use std::time::Duration;

use punctual::{
    config::{ListFormat, RedisListConfig, RemoteRedis},
    outcome::Outcome,
    sink::{Sink, redis_list::RedisListSink},
};
use redis::AsyncCommands;
use tokio::time::timeout;

use crate::support::{RedisServer, delivery, send, send_one};

fn sink(server: &RedisServer, timeout: Duration) -> RedisListSink {
    let remote = RemoteRedis {
        url: server.url().into(),
        username: None,
        password: None,
        ca_file: None,
        cert_file: None,
        key_file: None,
    };
    let config = RedisListConfig { key: "jobs".into(), format: ListFormat::Payload, server: Some(remote), timeout };
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
