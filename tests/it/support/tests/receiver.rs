//! The recording HTTP endpoint itself.

use std::time::Duration;

use crate::support::{
    http,
    receiver::{Behaviour, Receiver, wall_clock},
};

/// Far beyond the time of any step: only a test that fails waits for all of it.
const MAX_WAIT: Duration = Duration::from_secs(10);

fn post(receiver: &Receiver, id: &str) -> reqwest::RequestBuilder {
    let headers = [("Punctual-Id", id), ("Punctual-Attempt", "2"), ("Punctual-Due", "1700000000000")];
    let request = http::client().post(receiver.url()).body("payload");
    headers.into_iter().fold(request, |request, (name, value)| request.header(name, value))
}

#[tokio::test]
async fn a_request_is_recorded_as_it_came() {
    let receiver = Receiver::start();
    let before = wall_clock();
    let answer = post(&receiver, "a").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let [request] = receiver.wait_for(1, MAX_WAIT).await.try_into().unwrap();
    assert_eq!((request.id(), request.attempt(), request.due()), ("a", 2, 1_700_000_000_000));
    assert_eq!((request.path.as_str(), &request.body[..]), ("/due", &b"payload"[..]));
    assert!((before..=wall_clock()).contains(&request.arrived));
}

#[tokio::test]
async fn a_hanging_request_is_answered_when_the_behaviour_changes() {
    let receiver = Receiver::start();
    receiver.behave(Behaviour::Hang);
    let mut answer = tokio::spawn(post(&receiver, "a").send());
    receiver.wait_for(1, MAX_WAIT).await;
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut answer).await.is_err(), "it hangs");
    receiver.behave(Behaviour::Status(503));
    assert_eq!(answer.await.unwrap().unwrap().status(), 503);
    receiver.behave(Behaviour::Delay(Duration::from_millis(1)));
    assert_eq!(post(&receiver, "b").send().await.unwrap().status(), 200);
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn refusing_closes_what_is_open_and_listening_again_takes_the_same_port() {
    let mut receiver = Receiver::start();
    receiver.behave(Behaviour::Hang);
    let unanswered = tokio::spawn(post(&receiver, "a").send());
    receiver.wait_for(1, MAX_WAIT).await;
    receiver.refuse();
    assert!(unanswered.await.unwrap().is_err());
    assert!(post(&receiver, "b").send().await.unwrap_err().is_connect());
    receiver.behave(Behaviour::Status(200));
    receiver.listen();
    assert_eq!(post(&receiver, "c").send().await.unwrap().status(), 200);
    let ids: Vec<_> = receiver.requests().iter().map(|request| request.id().to_owned()).collect();
    assert_eq!(ids, ["a", "c"]);
}
