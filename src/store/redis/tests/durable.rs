//! Calls that wait for replicas.

use super::*;
use crate::store::{Edit, Edited};

/// Two replicas, for half a second.
fn durable(redis: &Simulated, route: RouteSettings) -> RedisStore {
    let durability = Durability { replicas: 2, timeout: Duration::from_millis(500) };
    redis.store.serving([route]).confirming_over(Arc::new(redis.connection()), durability)
}

#[tokio::test(start_paused = true)]
async fn durable_calls_succeed_once_replicas_have_them() {
    let redis = Simulated::start([route()]).await;
    let store = durable(&redis, route());
    let confirmed = Arc::new(Mutex::new((2, Vec::new())));
    let replies = confirmed.clone();
    redis.server.reply_with(move |command| {
        let (replicas, waits) = &mut *replies.lock();
        (command[0] == "WAIT").then(|| {
            waits.push(command[1..].join(" "));
            Reply::Int(*replicas)
        })
    });
    let schedule = async |name: &str| store.schedule(&partition(), &[message(name)]).await.map(drop);
    assert_eq!((schedule("a").await, store.check_durable().await), (Ok(()), Ok(())));
    assert_eq!(std::mem::take(&mut confirmed.lock().1), ["2 500", "2 500"]);
    // A call that changes nothing waits, too: an earlier one may not be confirmed.
    assert_eq!((schedule("a").await, confirmed.lock().1.len()), (Ok(()), 1));
    assert_eq!(store.fence(&partition()).await, Ok(()));
    confirmed.lock().0 = 1;
    let unconfirmed = |answer: Result<(), StoreError>| {
        let error = answer.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { kind: "noreplicas", .. }), "{error}");
    };
    unconfirmed(schedule("b").await);
    unconfirmed(schedule("a").await);
    unconfirmed(store.check_durable().await);
    unconfirmed(store.fence(&partition()).await);
    unconfirmed(store.reschedule(&partition(), &id("a"), None).await.map(drop));
    unconfirmed(store.cancel(&partition(), &id("a").into()).await.map(drop));
    unconfirmed(store.bury(&partition(), Death::INVALID, &[(message("c"), String::new())]).await.map(drop));
    unconfirmed(store.pause(&partition(), "", "").await.map(drop));
    unconfirmed(store.resume(&partition()).await.map(drop));
    unconfirmed(store.purge_pending(&partition(), None, 10, false, None).await.map(drop));
    assert_eq!(store.purge_pending(&partition(), None, 10, true, None).await, Ok((0, 0)));
    confirmed.lock().0 = 3;
    assert_eq!((schedule("d").await, store.check_durable().await), (Ok(()), Ok(())));
    assert_eq!(redis.store.check_durable().await, Ok(()), "not asked for");
}

/// The number of scripts that a call makes.
async fn scripts<T>(redis: &Simulated, call: impl Future<Output = Result<T, StoreError>>) -> (T, u64) {
    let before = redis.calls();
    let answer = call.await.unwrap();
    (answer, redis.calls() - before)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_changed_something_needs_no_fence_and_another_one_does() {
    let settings = RouteSettings { forwards: true, ..route() };
    let redis = Simulated::start([settings.clone()]).await;
    let store = durable(&redis, settings);
    redis.server.reply_with(|command| (command[0] == "WAIT").then_some(Reply::Int(2)));
    let later = |name: &str, group: &str| NewMessage {
        due: Due::After(60_000),
        metadata: Metadata { group: Some(group.to_owned()), ..Metadata::default() },
        ..message(name)
    };
    let batch = [later("a", "one"), later("b", "two"), later("c", "two"), later("d", ""), later("e", "")];
    assert_eq!(scripts(&redis, store.schedule(&partition(), &batch)).await.1, 1);
    assert_eq!(scripts(&redis, store.schedule(&partition(), &batch)).await.1, 2);

    for (name, count) in [("a", 1), ("unknown", 2)] {
        assert_eq!(scripts(&redis, store.reschedule(&partition(), &id(name), None)).await.1, count, "{name}");
    }
    let partition = partition();
    for (group, cancelled, count) in [("one", 1, 1), ("two", 2, 1), ("two", 0, 2)] {
        let (answer, scripts) = scripts(&redis, store.cancel_group(&partition, group, None, 10, None)).await;
        assert_eq!((answer.count, scripts), (cancelled, count), "{group}");
    }
    for (limit, cancelled, count) in [(1, 1, 1), (10, 1, 1), (10, 0, 2)] {
        let ((answer, _), scripts) = scripts(&redis, store.purge_pending(&partition, None, limit, false, None)).await;
        assert_eq!((answer, scripts), (cancelled, count), "{limit}");
    }

    // An edit also reads the dead letter.
    let edit = Edit { payload: Some("new".into()), ..Edit::default() };
    store.bury(&partition, Death::INVALID, &[(message("dead"), "e".into())]).await.unwrap();
    let (edited, count) = scripts(&redis, store.edit(&partition, &id("dead"), &edit, None)).await;
    assert_eq!((edited, count), (Edited::Forwarding, 3));
    let outbox = store.take_outbox(&partition).await.unwrap();
    store.end_turn(&partition, &outbox.taken, Turn::Keep).await.unwrap();
    let (edited, count) = scripts(&redis, store.edit(&partition, &id("dead"), &edit, None)).await;
    assert!(matches!(edited, Edited::Done { .. }) && count == 2, "{edited:?} {count}");
}
