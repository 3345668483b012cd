//! Messages arrive as they were scheduled: whole, once, not early.

use futures::future::join_all;
use serde_json::Value;

use super::{
    Place,
    producer::{Producer, WAYS, Way},
};
use crate::support::receiver::wall_clock;

/// Milliseconds.
const DELAY: u64 = 1500;
const HEADERS: [(&str, &str); 3] = [("X-Tenant", "acme: \"é\" \\ / € 😀"), ("X-Trace", "a1"), ("X-Empty", "")];

#[tokio::test(flavor = "multi_thread")]
async fn payload_and_headers_of_every_producer_arrive_as_they_were_once_and_not_early() {
    let (place, producers) = (Place::start().await, Producer::all().await);
    let payload: Vec<u8> = (0..=255).chain(*b"\r\n\0 end").collect();
    let headers = HEADERS.map(|(name, value)| format!("{name}: {value}"));
    let (delay, count) = (DELAY.to_string(), producers.len() * WAYS.len());
    let schedule = async |producer: &Producer, way: Way, status: &str| {
        let id = producer.id(way);
        let mut arguments: Vec<&str> = headers.iter().flat_map(|header| ["--header", header]).collect();
        arguments.extend(["nightly", &id, &delay]);
        let started = wall_clock();
        producer.run(&place, way, &arguments, &payload).await.assert_is(&[status], &id);
        (id, started)
    };
    let each = |status: &'static str| {
        let calls = producers.iter().flat_map(|producer| WAYS.map(|way| (producer, way)));
        join_all(calls.map(|(producer, way)| schedule(producer, way, status)).collect::<Vec<_>>())
    };
    let arrivals = async {
        let mut arrived = Vec::new();
        for _ in 0..count {
            arrived.push((place.arrived().await, wall_clock()));
        }
        arrived
    };
    let (started, arrived) = tokio::join!(each("scheduled"), arrivals);
    for (id, started) in &started {
        let (message, at) = arrived.iter().find(|(message, _)| message.id == *id).expect("one delivery of each");
        assert_eq!(message.payload, payload, "{id}");
        assert_eq!(message.headers, HEADERS.into_iter().collect::<Value>(), "{id}");
        assert!(message.due >= started + DELAY, "{id}: due {} ms after the call", message.due - started);
        assert!(*at >= message.due, "{id}: {} ms early", message.due - at);
    }
    each("delivered").await;
    place.assert_drained("nightly").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_call_of_a_waiting_id_changes_nothing_unless_it_replaces() {
    let (place, producers) = (Place::start().await, Producer::all().await);
    let each = producers.iter().flat_map(|producer| WAYS.map(|way| (producer, way)));
    let calls = each.map(async |(producer, way)| {
        let id = producer.id(way);
        let wait = ["nightly", &id, "3600000"];
        producer.run(&place, way, &wait, b"one").await.assert_is(&["scheduled"], &id);
        producer.run(&place, way, &["nightly", &id, "0"], b"two").await.assert_is(&["exists"], &id);
        producer.run(&place, way, &["--replace", "nightly", &id, "0"], b"three").await.assert_is(&["replaced"], &id);
    });
    join_all(calls.collect::<Vec<_>>()).await;
    for _ in 0..producers.len() * WAYS.len() {
        assert_eq!(place.arrived().await.payload, b"three");
    }
    place.assert_drained("nightly").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_the_script_is_sent_only_when_redis_does_not_know_it() {
    let place = Place::start().await;
    let user = "ACL SETUSER caller on >secret ~* &* +@all -eval";
    let mut redis = place.redis.connection().await;
    command(user).exec_async(&mut redis).await.expect("a user");
    let without_eval = place.environment_with("REDIS_URL", &place.redis.url().replace("//", "//caller:secret@"));
    for producer in Producer::all().await {
        let call = async |environment: &[(&'static str, String)], id: &str| {
            producer.start(environment, Way::Script, &["nightly", id, "0"], b"x").await.end().await
        };
        command("SCRIPT FLUSH").exec_async(&mut redis).await.expect("it answers");
        call(&without_eval, "never").await.assert_failed(1, &["eval"]);
        for (environment, number) in [(&place.environment, 1), (&without_eval, 2)] {
            let id = format!("{}.{number}", producer.language);
            call(environment, &id).await.assert_is(&["scheduled"], &id);
            assert_eq!(place.arrived().await.id, id);
        }
    }
    place.assert_drained("nightly").await;
}

fn command(words: &str) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    for word in words.split(' ') {
        command.arg(word);
    }
    command
}
