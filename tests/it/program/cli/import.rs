//! `import`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Scene, lines};
use crate::{
    program::{eventually, refusals::content},
    support::receiver::Behaviour,
};

#[tokio::test]
async fn a_wrong_line_is_named_and_not_scheduled() {
    let scene = Scene::start().await;
    let before = content(&scene.redis).await;
    for (input, text) in [
        ("\n\n{\"payload\":2}\n", "line 3: has no `id`"),
        ("\nx\n", "line 2: not a JSON object"),
        ("{\"id\":\"b c\",\"payload\":1,\"delay\":true}\n", "line 1: id: an id is 1 to 128 of A-Za-z0-9._:~-; delay: "),
        ("{\"id\":\"a\",\"payload\":1,\"dely\":1}\n", "line 1: unknown field `dely`"),
        ("{\"id\":\"a\"}\n", "line 1: exactly one of `payload`"),
        ("{\"id\":\"a\",\"state\":\"dead\",\"unreadable\":\"lost\"}\n", "line 1: its stored body could not be read"),
    ] {
        let ended = scene.run_with_input(&["import", "web", "-"], input.as_bytes()).await;
        assert_eq!((ended.code, &*ended.out), (Some(1), "1 invalid\n"), "{input}: {ended:?}");
        assert!(ended.error.contains(text), "{input}: {ended:?}");
        assert!(ended.error.ends_with("punctual: 1 message was not scheduled\n"), "{input}: {ended:?}");
    }
    assert_eq!(content(&scene.redis).await, before, "nothing was written");
    scene.refused(&["import", "web", "missing.ndjson"], 2, "missing.ndjson").await;
    let unknown = scene.run_with_input(&["import", "none"], b"{\"id\":\"a\",\"payload\":1}\n").await;
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
    let none = scene.run_with_input(&["import", "web"], b"").await;
    assert_eq!((none.code, &*none.out), (Some(0), "no messages\n"));
}

#[tokio::test]
async fn the_lines_beside_wrong_ones_are_scheduled() {
    let scene = Scene::start().await;
    let line = |n: u32| match n {
        7 => "no json\n".to_owned(),
        8 => "{\"id\":\"m8\",\"delay\":\"1h\",\"payload\":1,\"key\":7}\n".to_owned(),
        400 | 1100 => format!("{{\"id\":\"m{n}\",\"payload\":\"{}\"}}\n", "x".repeat(2 * 1024 * 1024)),
        _ => format!("{{\"id\":\"m{n}\",\"delay\":\"1h\",\"payload\":1}}\n"),
    };
    let mut input = lines(0..1200, line).into_bytes();
    input.extend_from_slice(b"{\"id\":\"\xff\",\"payload\":1}\n");
    // More than a request may have.
    input.extend_from_slice(
        format!("{{\"id\":\"large\",\"payload\":\"{}\"}}\n", "x".repeat(17 * 1024 * 1024)).as_bytes(),
    );
    input.extend_from_slice(b"{\"id\":\"last\",\"delay\":\"1h\",\"payload\":1}\n");
    let ended = scene.run_with_input(&["import", "web"], &input).await;
    assert_eq!((ended.code, &*ended.out), (Some(1), "6 invalid, 1197 scheduled\n"), "{ended:?}");
    for wrong in [
        "line 8: not a JSON",
        "line 9: key: ",
        "line 401: payload: ",
        "line 1101: payload: ",
        "line 1201: ",
        "line 1202: ",
    ] {
        assert_eq!(ended.error.matches(wrong).count(), 1, "{wrong}: {ended:?}");
    }
    assert_eq!(scene.json(&["status"]).await["routes"][0]["pending"], 1197);
}

#[tokio::test]
async fn an_export_restores_the_same_messages() {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Status(422));
    let messages = [
        r#"{"id":"bare","payload_base64":"dGV4dA=="}"#,
        r#"{"id":"bytes","payload_base64":"AP8=","deliver_at":1600000000000}"#,
        r#"{"id":"empty","payload":""}"#,
        r#"{"id":"json","payload":{"a":1.10},"headers":{"X-A":"b"},"key":"k","flow":"tenant:7","group":"order:7","max_attempts":3}"#,
        r#"{"id":"own","payload":"é","content_type":"text/csv","expires_at":4102444800000,"properties":{"correlation_id":"c","priority":4}}"#,
    ];
    assert_eq!(scene.run_with_input(&["import", "web"], messages.join("\n").as_bytes()).await.out, "5 scheduled\n");
    eventually("all are dead", Duration::from_secs(20), async || {
        (scene.json(&["status"]).await["routes"][0]["dead"] == 5).then_some(())
    })
    .await;
    let exported = scene.done(&["dead", "export", "web"]).await;
    assert_eq!(exported.matches(r#""flow":"tenant:7""#).count(), 1, "{exported}");
    assert_eq!(exported.matches(r#""group":"order:7""#).count(), 1, "{exported}");
    let import = async || scene.run_with_input(&["import", "web"], exported.as_bytes()).await;
    let again = import().await;
    assert_eq!((again.code, &*again.out), (Some(0), "5 exists_dead\n"), "{again:?}");

    scene.done(&["pause", "web", "--yes"]).await;
    scene.done(&["dead", "purge", "web", "--all", "--yes"]).await;
    assert_eq!(import().await.out, "5 scheduled\n");
    assert_eq!(import().await.out, "5 exists\n");
    let kept = |message: &str| -> Value {
        let mut message: Value = serde_json::from_str(message).expect("JSON");
        let fields = message.as_object_mut().expect("an object");
        fields.retain(|name, _| {
            let own =
                ["state", "last_error", "last_error_at", "died_at", "next_attempt_at", "accepted_at", "attempt_log"];
            !own.contains(&&**name)
        });
        // An imported message begins anew.
        fields.insert("attempts".into(), json!(0));
        message
    };
    let sorted = |text: &str| {
        let mut all: Vec<Value> = text.lines().map(kept).collect();
        all.sort_by_key(|message| message["id"].as_str().map(str::to_owned));
        all
    };
    let listed = scene.done(&["list", "web", "--json"]).await;
    assert_eq!(sorted(&listed), sorted(&exported));
}

#[tokio::test]
async fn an_exported_message_of_thousands_of_headers_and_an_empty_key_is_restored() {
    let scene = Scene::start().await;
    // As from Kafka: small headers, as many as the metadata of a message can hold.
    let headers: Vec<Value> = (0..1400).map(|n| json!({ "name": (n % 10).to_string(), "type": "null" })).collect();
    let exported = json!({
        "id": "many", "route": "web", "state": "dead", "deliver_at": "2100-01-01T00:00:00Z", "attempts": 1, "key": "",
        "key_base64": "",
        "last_error": "rejected: x", "headers": headers, "payload": "x", "content_type": null,
    });
    let imported = scene.run_with_input(&["import", "web"], exported.to_string().as_bytes()).await;
    assert_eq!(imported.out, "1 scheduled\n", "{imported:?}");
    let shown = scene.json(&["get", "web", "many"]).await;
    assert_eq!(shown["headers"].as_array().map(Vec::len), Some(1400));
    assert_eq!((&shown["key"], &shown["content_type"]), (&json!(""), &Value::Null));
}

#[tokio::test]
async fn an_import_keeps_to_the_rate_of_its_token() {
    let scene = Scene::with(
        "server: { auth: { tokens: [{ token: 0123456789abcdef, rights: [schedule], limits: { messages_per_second: 1000 } }] } }\n",
    )
    .await;
    let input = lines(0..2500, |n| format!("{{\"id\":\"m{n}\",\"delay\":\"1h\",\"payload\":1}}\n"));
    let import = ["import", "web", "--token", "0123456789abcdef", "--json"];
    let ended = scene.run_with_input(&import, input.as_bytes()).await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "{\"scheduled\":2500}\n"), "{ended:?}");
}

#[tokio::test]
async fn what_a_limit_of_the_route_refuses_is_counted_and_fails() {
    let scene = Scene::with_environment("", &[("PUNCTUAL__ROUTES__WEB__LIMITS__MESSAGES", "3")]).await;
    let input = lines(0..5, |n| format!("{{\"id\":\"m{n}\",\"delay\":\"1h\",\"payload\":1}}\n"));
    let ended = scene.run_with_input(&["import", "web"], input.as_bytes()).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.out, "2 limit_messages, 3 scheduled\n");
}
