//! Calls that repeating does not help: they fail at once, with a reason.

use std::time::Duration;

use futures::future::join_all;

use super::{
    Place,
    producer::{Ended, Producer, WAYS, Way},
};
use crate::support::receiver::Behaviour;

/// One call of each producer by each way, to its end.
async fn each(environment: &[(&'static str, String)], ways: &[Way], arguments: &[&str]) -> Vec<(Way, Ended)> {
    let each = Producer::all().await.iter().flat_map(|producer| ways.iter().map(move |way| (producer, *way)));
    let calls =
        each.map(async |(producer, way)| (way, producer.start(environment, way, arguments, b"x").await.end().await));
    join_all(calls.collect::<Vec<_>>()).await
}

fn assert_refused(calls: Vec<(Way, Ended)>, code: i32, over_http: &[&str], in_redis: &[&str]) {
    for (way, ended) in calls {
        ended.assert_failed(code, if way == Way::Http { over_http } else { in_redis });
        assert_eq!(ended.repeated(), 0, "{ended:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_call_fails_at_once_with_the_reason() {
    let place = Place::start().await;
    let right = &place.environment;
    assert_refused(each(right, &WAYS, &["full", "a", "3600001"]).await, 1, &["429", "limit-delay"], &["limit-delay"]);
    place.assert_drained("nightly").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn each_other_invalid_call_fails_at_once_with_the_reason() {
    let place = Place::start().await;
    let right = &place.environment;
    assert_refused(each(right, &WAYS, &["nightly", "a", "soon"]).await, 2, &["usage"], &["usage"]);
    assert_refused(each(right, &WAYS, &["missing", "a", "0"]).await, 1, &["404"], &["no route missing"]);
    assert_refused(each(right, &WAYS, &["nightly", "an id", "0"]).await, 1, &["invalid"], &["PUNCTUAL invalid-id"]);
    let reserved = ["--header", "Host: a", "nightly", "a", "0"];
    assert_refused(each(right, &WAYS, &reserved).await, 1, &["422"], &["PUNCTUAL invalid-options"]);
    place.assert_drained("nightly").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_and_a_wrong_password_fail_at_once() {
    let place = Place::start().await;
    let wrong = place.environment_with("PUNCTUAL_TOKEN", "another-token-of-the-shop");
    assert_refused(each(&wrong, &[Way::Http], &["nightly", "a", "0"]).await, 1, &["401"], &[]);
    let wrong = place.environment_with("REDIS_URL", &place.redis.url().replace("//", "//shop:wrong@"));
    // Redis says WRONGPASS; some clients leave the word out.
    assert_refused(each(&wrong, &[Way::Script], &["nightly", "a", "0"]).await, 1, &[], &["invalid username-password"]);
    place.assert_drained("nightly").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_flight_is_not_replaced_and_the_call_says_so() {
    let place = Place::start().await;
    let Some(first) = Producer::all().await.first() else { return };
    place.receiver.behave(Behaviour::Hang);
    first.run(&place, Way::Http, &["held", "busy", "0"], b"x").await.assert_is(&["scheduled"], "busy");
    place.receiver.wait_for(1, Duration::from_secs(10)).await;
    let said = ["busy is being sent and was not replaced"];
    assert_refused(each(&place.environment, &WAYS, &["--replace", "held", "busy", "0"]).await, 1, &said, &said);
    place.receiver.behave(Behaviour::Status(200));
}
