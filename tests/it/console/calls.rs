//! Calls of the API for the console: the work of the instance, the rights of the token, listings without payloads.

use std::{process::Command, time::Duration};

use serde_json::{Value, json};

use crate::{
    program::{client::Client, eventually},
    support::{answer, http, punctual::Punctual},
};

const MAX_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_has_the_work_of_the_instance_and_who_it_is() {
    let punctual = Punctual::start(
        "redis: { url: embedded }\nsinks: { jobs: { type: redis_list, key: jobs } }\n\
         routes: { a: { sink: jobs }, b: { sink: jobs } }\n",
    )
    .await;
    let client = Client::of(&punctual);
    let overview = async || client.call("GET", "/v1/overview", "").await.json;
    let before = overview().await;
    assert_eq!(before["token"], json!({ "name": null, "rights": ["schedule", "read", "admin"], "routes": null }));
    let host = Command::new("uname").arg("-n").output().expect("a command");
    assert_eq!(before["instance"]["host"], String::from_utf8_lossy(&host.stdout).trim());
    assert_eq!(before["instance"]["process"], punctual.pid().as_raw_nonzero().get());
    assert_eq!(before["activity"]["routes"]["a"]["delivered"], 0);
    for id in ["one", "two"] {
        client.schedule("a", &format!(r#"{{"id":"{id}","payload":1}}"#)).await;
    }
    let activity = eventually("both are counted", MAX_WAIT, async || {
        let activity = overview().await["activity"].clone();
        (activity["routes"]["a"]["delivered"] == 2).then_some(activity)
    })
    .await;
    let bounds = activity["lateness_bounds_seconds"].as_array().expect("a list");
    let lateness = activity["routes"]["a"]["lateness"].as_array().expect("a list");
    assert_eq!((lateness.len(), lateness.last()), (bounds.len() + 1, Some(&json!(2))));
    assert!(lateness.is_sorted_by_key(Value::as_u64), "cumulative: {lateness:?}");
    assert_eq!(activity["routes"]["b"]["delivered"], 0);

    // The charts count these deliveries too, in the sum and for each route.
    let charts = client.call("GET", "/v1/charts", "").await.json;
    let sum = |chart: &Value, name: &str| {
        chart[name].as_array().expect("a list").iter().filter_map(Value::as_u64).sum::<u64>()
    };
    assert_eq!(charts["instance"]["process"], before["instance"]["process"]);
    assert_eq!((sum(&charts, "delivered"), sum(&charts, "failed")), (2, 0), "{charts}");
    let late = charts["p99_seconds"].as_array().expect("a list");
    assert!(late.iter().any(Value::is_number), "{charts}");
    let routes = charts["routes"].as_object().expect("an object");
    assert_eq!(routes.keys().collect::<Vec<_>>(), ["a"], "only those with deliveries");
    assert_eq!(sum(&charts["routes"]["a"], "delivered"), 2);
    let chart = async |route: &str| client.call("GET", &format!("/v1/routes/{route}/chart"), "").await.json;
    assert_eq!(sum(&chart("a").await, "delivered"), 2);
    assert_eq!(sum(&chart("b").await, "delivered"), 0);
}

/// The development clock passes the steps that a test cannot wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_chart_has_a_step_for_every_five_minutes_of_the_last_day() {
    let punctual =
        Punctual::start_dev("sinks: { jobs: { type: redis_list, key: jobs } }\nroutes: { a: { sink: jobs } }\n", &[])
            .await;
    let client = Client::of(&punctual);
    for delay in ["1h", "1h", "3h", "9h"] {
        client.schedule("a", &format!(r#"{{"delay":"{delay}","payload":1}}"#)).await;
    }
    let at_steps = async || {
        let chart = client.call("GET", "/v1/routes/a/chart", "").await.json;
        assert_eq!(chart["step_seconds"], 300);
        let delivered: Vec<u64> = serde_json::from_value(chart["delivered"].clone()).expect("numbers");
        let steps: Vec<_> =
            delivered.iter().enumerate().filter(|(_, count)| **count > 0).map(|(n, count)| (n, *count)).collect();
        (delivered.len(), steps)
    };
    client.call("POST", "/v1/clock/advance", r#"{"by":"4h"}"#).await;
    let (length, steps) = at_steps().await;
    assert!((49..=50).contains(&length), "{length}");
    let [(first, 2), (second, 1)] = steps[..] else { panic!("{steps:?}") };
    assert!((12..=13).contains(&first) && second == first + 24, "{steps:?}");
    // A day after the start its first hours are gone.
    client.call("POST", "/v1/clock/advance", r#"{"by":"23h"}"#).await;
    let (length, steps) = at_steps().await;
    assert_eq!((length, steps.len()), (288, 1), "{steps:?}");

    // The instance ends a step by itself, and reads how many messages are pending.
    client.schedule("a", r#"{"delay":"90d","payload":1}"#).await;
    let now = client.call("GET", "/v1/clock", "").await.json["now"].as_str().expect("a time").to_owned();
    let millis = now.parse::<jiff::Timestamp>().expect("a time").as_millisecond();
    let left = 300_000 - millis % 300_000;
    client.call("POST", "/v1/clock/advance", &format!(r#"{{"by":"{}"}}"#, (left - 500).max(0))).await;
    eventually("a step with one pending message", MAX_WAIT, async || {
        let chart = client.call("GET", "/v1/routes/a/chart", "").await.json;
        chart["pending"].as_array().expect("a list").contains(&json!(1)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_some_routes_sees_the_work_of_these_alone() {
    let punctual = Punctual::start(
        "redis: { url: embedded }\nsinks: { jobs: { type: redis_list, key: jobs } }\n\
         routes: { a: { sink: jobs }, b: { sink: jobs } }\n\
         server: { auth: { tokens: [{ token: secret-0123456789, name: shop, rights: [read], routes: [b] }] } }\n",
    )
    .await;
    let call = http::client().get(punctual.url("/v1/overview")).bearer_auth("secret-0123456789");
    let overview = answer(call).await.json;
    assert_eq!(overview["token"], json!({ "name": "shop", "rights": ["read"], "routes": ["b"] }));
    let routes = overview["activity"]["routes"].as_object().expect("an object");
    assert_eq!(routes.keys().collect::<Vec<_>>(), ["b"]);
    let of_all =
        async |path: &str| answer(http::client().get(punctual.url(path)).bearer_auth("secret-0123456789")).await;
    assert_eq!(of_all("/v1/charts").await.status, 200);
    assert_eq!(of_all("/v1/forecast").await.json["failed"], json!([]));
    of_all("/v1/routes/a/chart").await.problem(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_leaves_out_payloads_if_asked_to() {
    let punctual = Punctual::start(
        "redis: { url: embedded }\nsinks: { jobs: { type: redis_list, key: jobs } }\nroutes: { a: { sink: jobs } }\n",
    )
    .await;
    let client = Client::of(&punctual);
    client
        .schedule(
            "a",
            r#"[{"id":"text","delay":"1h","payload":"x"},{"id":"bytes","delay":"2h","payload_base64":"/w=="}]"#,
        )
        .await;
    let list = async |query: &str| client.call("GET", &format!("/v1/routes/a/messages?{query}"), "").await;
    let with = list("payload=true").await.json;
    assert_eq!(
        (&with["messages"][0]["payload"], &with["messages"][1]["payload_base64"]),
        (&json!("x"), &json!("/w=="))
    );
    let mut expected = with.clone();
    for message in expected["messages"].as_array_mut().expect("a list") {
        let fields = message.as_object_mut().expect("an object");
        fields.retain(|name, _: &mut Value| !name.starts_with("payload"));
    }
    assert_eq!(list("payload=false").await.json, expected);
    assert_eq!(list("").await.json, with);
    list("payload=no").await.problem(400);
}
