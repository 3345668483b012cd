//! What the API has for the console: the work of the instance, the rights of the token, listings without payloads.

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
