//! Ids that a route remembers.

use std::time::Duration;

use punctual::{
    message::Remember,
    store::{ClaimEnd, Partition, Store},
};
use serde_json::json;

use crate::support::{ApiServer, Setup, all};

#[tokio::test]
async fn a_remembered_id_is_not_scheduled_again_and_shows_how_it_ended() {
    let remember = Some(Remember { period: Duration::from_mins(10), max: 10 });
    let server = ApiServer::start_with(Setup { remember, ..Setup::default() }).await;
    server.schedule("a", r#"{"id":"delivered","payload":1}"#).await;
    let partition = Partition { route: "a".into(), index: 0, count: 1 };
    let claimed = server.claim("a").await;
    assert_eq!(claimed.len(), 1);
    let leases = claimed.into_iter().map(|(lease, _)| lease);
    server.store.settle(&partition, &all(leases, &ClaimEnd::Ack)).await.unwrap();
    server.schedule("a", r#"{"id":"cancelled","payload":1,"delay":"1h"}"#).await;
    assert_eq!(server.call("DELETE", "/v1/routes/a/messages/cancelled", "").await.status, 204);

    for id in ["delivered", "cancelled"] {
        let found = server.call("GET", &format!("/v1/routes/a/messages/{id}"), "").await;
        assert_eq!((found.status, &found.json["state"]), (200, &id.into()), "{}", found.text);
        let ended_at = found.json["ended_at"].as_str().unwrap();
        for conflict in ["keep", "replace"] {
            let body = format!(r#"{{"id":"{id}","payload":2,"on_conflict":"{conflict}"}}"#);
            let again = server.call("POST", "/v1/routes/a/messages", &body).await;
            let expected = json!({"id": id, "route": "a", "status": id, "ended_at": ended_at});
            assert_eq!((again.status, &again.json), (200, &expected));
            let many = server.call("POST", "/v1/routes/a/messages", &format!("[{body}]")).await;
            assert_eq!((many.status, many.json), (200, json!({"results": [expected]})));
        }
        for (method, body) in [("PATCH", r#"{"delay":1}"#), ("DELETE", "")] {
            let path = format!("/v1/routes/a/messages/{id}");
            assert_eq!(server.call(method, &path, body).await.problem(404), "unknown-message");
        }
    }
    assert!(server.ids_in("a", "pending").await.is_empty());
    let produced: (String, String, u64) = redis::cmd("EVAL")
        .arg(include_str!("../../../lua/produce.lua"))
        .arg(&["1", "{punctual:a:0/1}:pending", "1", "cancelled", "+0", "x", ""])
        .query_async(&mut server.redis.connection().await)
        .await
        .unwrap();
    assert_eq!((produced.0.as_str(), produced.1.as_str()), ("cancelled", "cancelled"));
}
