//! Calls that wait for their turn in the process while Redis does not answer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use punctual::{
    message::{MessageId, Metadata, NewMessage, OnConflict},
    queue::{Queue, QueueError},
    store::{
        StoreError,
        redis::{RedisStore, RouteSettings, connection::Connection},
    },
    time::Due,
};

use crate::support::RedisServer;

/// Timeout of the store's calls.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Time without an answer of Redis: two rounds of calls are over at its end, and a third one is under way.
const PAUSE: Duration = Duration::from_millis(1250);
/// More than are gathered: each call of the handle is a call of the script.
const MESSAGES: usize = 300;
/// Two are under way at once, and the others wait.
const CALLS: usize = 10;

#[tokio::test]
async fn what_waits_longer_than_the_timeout_fails_and_is_not_written_later() {
    let redis = RedisServer::start().await;
    let connection = Connection::new(redis::Client::open(redis.url()).expect("a URL"), TIMEOUT);
    let store = Arc::new(RedisStore::new(Arc::new(connection), "p", [RouteSettings::plain("r", 100)]));
    store.register().await.expect("nothing is registered yet");
    let queue = Queue::new(store, &BTreeMap::new(), false);
    queue.schedule("r", "test", messages("before")).await.expect("scheduled");

    let mut raw = redis.connection().await;
    let mut pause = redis::cmd("CLIENT");
    let millis = u64::try_from(PAUSE.as_millis()).expect("small");
    pause.arg("PAUSE").arg(millis).arg("ALL").exec_async(&mut raw).await.expect("paused");
    let names: Vec<String> = (0..CALLS).map(|n| format!("call-{n}")).collect();
    let answers = join_all(names.iter().map(|name| queue.schedule("r", "test", messages(name)))).await;
    // Redis runs again.
    let () = redis::cmd("PING").query_async(&mut raw).await.expect("an answer");
    for (name, answer) in names.iter().zip(answers).skip(4) {
        let busy = matches!(&answer, Err(QueueError::Store(StoreError::Unavailable { kind: "busy", .. })));
        assert!(busy, "{name}: {:?}", answer.map(|answers| answers.len()));
        let found = queue.get("r", &id(name, 0)).await.expect("an answer");
        assert!(found.is_none(), "{name} was written though it had failed");
    }
    queue.schedule("r", "test", messages("after")).await.expect("scheduled");
}

fn id(name: &str, number: usize) -> MessageId {
    MessageId::parse(&format!("{name}-{number}")).expect("an id")
}

fn messages(name: &str) -> Vec<NewMessage> {
    let message = |number| NewMessage {
        id: id(name, number),
        due: Due::After(3_600_000),
        payload: "payload".into(),
        metadata: Metadata::default(),
        on_conflict: OnConflict::Keep,
        debounce: None,
        record: None,
    };
    (0..MESSAGES).map(message).collect()
}
