//! Checks of a server, and texts for operators about them.

use super::{super::safety::SafetyError, *};

#[tokio::test(start_paused = true)]
async fn operators_are_told_what_the_replicas_that_are_there_guarantee() {
    let redis = Simulated::start([route()]).await;
    let said = async |reply: fn() -> Reply| {
        redis.server.reply_with(move |command| (command[0] == "INFO").then(reply));
        redis.store.guarantee().await.unwrap()
    };
    let begins = |text: Option<String>, begin: &str| assert!(text.as_deref().unwrap().starts_with(begin), "{text:?}");
    begins(said(|| Reply::bulk("role:master\r\nconnected_slaves:1\r\n")).await, "1 replica, not waited for");
    begins(said(|| Reply::bulk("role:master\r\nconnected_slaves:2\r\n")).await, "2 replicas, not waited for");
    begins(said(|| Reply::error("NOPERM no INFO")).await, "replicas are not waited for");
    assert_eq!(said(|| Reply::bulk("connected_slaves:0\r\n")).await, None);
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_missing_for_a_list_are_named() {
    let redis = Simulated::start([]).await;
    let missing = async |list: Option<&str>, refused: Option<(&'static str, &'static str)>| {
        redis.server.reply_with(move |command| {
            let error = refused.filter(|(name, _)| command[0] == *name).map(|(_, error)| Reply::error(error));
            error.or_else(|| (command[0] != "MULTI").then(|| Reply::Status("QUEUED".into()))).or(Some(Reply::ok()))
        });
        match rights::check_list(&redis.connection(), list, false).await {
            Ok(()) => String::new(),
            Err(SafetyError::Denied { rights }) => rights,
            Err(error) => panic!("{error}"),
        }
    };
    let command = "NOPERM User u has no permissions to run the 'rpush' command";
    let key = "NOPERM No permissions to access a key";
    assert_eq!(missing(Some("jobs"), None).await, "");
    assert_eq!(missing(Some("jobs"), Some(("RPUSH", command))).await, "+rpush");
    assert_eq!(missing(Some("jobs"), Some(("RPUSH", key))).await, "~jobs");
    assert_eq!(missing(None, Some(("RPUSH", key))).await, "", "its key is not known");
    assert_eq!(missing(None, Some(("RPUSH", command))).await, "+rpush");
    assert_eq!(missing(Some("jobs"), Some(("RPUSH", "OOM command not allowed"))).await, "", "a state of the server");
    // Nothing can be tested.
    let multi = Some(("MULTI", "NOPERM no permissions to run the 'multi' command"));
    assert_eq!(missing(Some("jobs"), multi).await, "+multi +rpush +type ~jobs");
    assert_eq!(missing(None, multi).await, "+multi +rpush +type");
}

#[tokio::test(start_paused = true)]
async fn all_missing_rights_of_a_source_are_named_at_once() {
    const KEY: &str = "NOPERM No permissions to access a key";
    const COMMAND: &str = "NOPERM User u has no permissions to run the command";
    let redis = Simulated::start([]).await;
    let place = ExternalPlace::Hashes { key: "set".into(), unit: 1, prefix: "task:".into() };
    let missing = async |refused: fn(&str, &str) -> Option<&'static str>| {
        redis.server.reply_with(move |command| match &*command[0] {
            "MULTI" => Some(Reply::ok()),
            name => refused(name, &command[1]).map(Reply::error).or(Some(Reply::Status("QUEUED".into()))),
        });
        match rights::check_place(&redis.connection(), &place).await {
            Err(SafetyError::Denied { rights }) => rights,
            other => panic!("{other:?}"),
        }
    };
    let named = missing(|_, key| key.starts_with("task:").then_some(KEY)).await;
    assert_eq!(named, "~task:*", "the right to one key would not suffice");
    let named = missing(|name, key| if key == "set" && name != "TYPE" { Some(COMMAND) } else { None }).await;
    assert_eq!(named, "+zadd +zcard +zmscore +zrangebyscore +zrem", "its key was tested by TYPE");
    let named = missing(|_, key| key.starts_with("task:").then_some(COMMAND)).await;
    assert_eq!(named, "+del +hkeys +hlen +hstrlen +hvals +type ~task:*", "no command tested its key");
}

#[tokio::test(start_paused = true)]
async fn rights_that_cannot_be_checked_at_present_are_not_taken_for_granted() {
    let redis = Simulated::start([]).await;
    let check = async |error: &'static str| {
        redis.server.reply_with(move |command| (command[0] == "MULTI").then(|| Reply::error(error)));
        rights::check_list(&redis.connection(), Some("jobs"), false).await
    };
    let failed = check("LOADING Redis is loading").await;
    assert!(matches!(failed, Err(SafetyError::Store(StoreError::Unavailable { kind: "loading", .. }))), "{failed:?}");
    assert_eq!(check("ERR unknown command 'MULTI'").await, Ok(()), "a server without transactions");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_a_write_is_not_writable() {
    let redis = Simulated::start([]).await;
    assert_eq!(redis.store.check_writable().await, Ok(()));
    redis.server.reply_with(|command| (command[0] == "HDEL").then(|| Reply::error("READONLY a replica")));
    let refused = redis.store.check_writable().await;
    assert!(matches!(refused, Err(StoreError::Unavailable { kind: "readonly", .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_detected_by_its_error_for_keys_of_several_slots() {
    let redis = Simulated::start([]).await;
    // This user has a right to neither HELLO nor INFO.
    let check = async |reply: fn() -> Reply| {
        redis.server.reply_with(move |command| match &*command[0] {
            "EXISTS" => Some(reply()),
            name @ ("HELLO" | "INFO") => {
                Some(Reply::error(format!("NOPERM no permissions to run the '{name}' command")))
            }
            _ => None,
        });
        redis.store.check_safety(false).await
    };
    let unchecked = check(|| Reply::Int(0)).await.unwrap().unchecked;
    assert_eq!(unchecked, ["version", "role", "eviction policy"]);
    assert_eq!(check(|| Reply::error("CROSSSLOT Keys in request")).await, Err(SafetyError::Cluster));
    let failed = check(|| Reply::error("LOADING Redis is loading")).await;
    assert!(matches!(failed, Err(SafetyError::Store(StoreError::Unavailable { kind: "loading", .. }))), "{failed:?}");
}
