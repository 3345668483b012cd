use std::time::Duration;

use super::{client::Client, eventually};
use crate::support::punctual::Punctual;

#[tokio::test]
async fn serve_needs_no_file_and_brings_its_own_redis() {
    let mut punctual = Punctual::start_without_file().await;
    let client = Client::of(&punctual);
    assert_eq!(client.call("GET", "/v1/routes", "").await.json, serde_json::json!({ "routes": [] }));
    let status = punctual.command(&["status", "--json"]).await;
    let shown: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
    assert_eq!((status.code, &shown["routes"]), (Some(0), &serde_json::json!([])), "{status:?}");
    let connects = async |option: &str, value: &str| {
        let ended = punctual.command(&["check", "--connect", option, value]).await;
        assert!(ended.code == Some(0) && ended.out.contains("redis  ok"), "{ended:?}");
    };
    connects("--redis-url", "embedded").await;
    std::fs::write(punctual.path("url"), "embedded\n").unwrap();
    connects("--redis-url-file", "url").await;
    let both = punctual.command(&["check", "--redis-url", "embedded", "--redis-url-file", "url"]).await;
    assert_eq!(both.code, Some(2), "{both:?}");
    let exit = punctual.terminate().await;
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    let log = punctual.log();
    let warned = log.lines().filter(|line| line.contains("WARN") && line.contains("the API asks for no token"));
    assert_eq!(warned.count(), 1, "{log}");
    let warned = log.lines().filter(|line| line.contains("WARN") && line.contains("no configuration file"));
    assert_eq!(warned.count(), 1, "{log}");
    assert!(!punctual.path("data/redis.sock").exists(), "its redis ended with it");
}

#[tokio::test]
async fn commands_work_beside_an_embedded_redis_and_its_data_outlives_a_stop() {
    let mut punctual = Punctual::start(
        "redis: { url: embedded }\nsinks: { jobs: { type: redis_list, key: jobs } }\nroutes: { list: { sink: jobs } }\n",
    )
    .await;
    let scheduled = punctual
        .command(&["schedule", "list", "--payload", "hello", "--delay", "1h", "--id", "kept", "-c", "punctual.yaml"])
        .await;
    assert_eq!(scheduled.code, Some(0), "{scheduled:?}");
    let status = punctual.command(&["status", "-c", "punctual.yaml"]).await;
    assert!(status.code == Some(0) && status.out.contains("list "), "{status:?}");
    assert_eq!(punctual.terminate().await.code, Some(0), "{}", punctual.log());
    let away = punctual.command(&["status", "-c", "punctual.yaml"]).await;
    assert_eq!(away.code, Some(1), "{away:?}");
    assert!(away.error.contains("no answer from http://127.0.0.1:"), "{away:?}");

    punctual.restart().await;
    let client = Client::of(&punctual);
    assert_eq!(client.call("PATCH", "/v1/routes/list/messages/kept", r#"{"delay":0}"#).await.status, 200);
    client.drained("list", Duration::from_secs(5)).await;
    let socket = format!("unix://{}", punctual.path("data/redis.sock").display());
    let mut connection = redis::Client::open(socket).unwrap().get_multiplexed_async_connection().await.unwrap();
    let value: String = eventually("it is in the list", Duration::from_secs(5), async || {
        redis::cmd("LPOP").arg("jobs").query_async(&mut connection).await.unwrap()
    })
    .await;
    assert_eq!(value, "hello");
}
