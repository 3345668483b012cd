//! Limits of routes, seen from outside the real program.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;

use super::{client::Client, eventually};
use crate::support::{
    RedisServer, noise,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

const MAX_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn due_members_of_a_sorted_set_stay_there_while_their_route_is_full() {
    const MEMBERS: usize = 25;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": { "type": "http", "url": receiver.url() } },
        "routes": { "web": { "sink": "hook", "limits": { "messages": 10, "bytes": "2MiB" } } },
        "sources": { "theirs": { "type": "sorted_set", "key": "delayed", "route": "web", "poll": "50ms" } },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    for n in 0..10 {
        client.schedule("web", &json!({ "id": format!("{n}"), "payload": "x", "delay": "1h" }).to_string()).await;
    }
    let mut raw = redis.connection().await;
    let mut add = redis::cmd("ZADD");
    add.arg("delayed");
    for n in 0..MEMBERS {
        add.arg(1000 + n).arg(format!("member-{n}"));
    }
    let () = add.query_async(&mut raw).await.unwrap();
    // The source polls several times in this time.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let waiting: usize = redis::cmd("ZCARD").arg("delayed").query_async(&mut raw).await.unwrap();
    assert_eq!((waiting, receiver.count()), (MEMBERS, 0));

    assert_eq!(client.call("DELETE", "/v1/routes/web/messages/0", "").await.status, 204);
    let requests = receiver.wait_for(MEMBERS, MAX_WAIT).await;
    assert_eq!(requests.len(), MEMBERS, "one at a time, and all of them");
    eventually("what was delivered is settled", MAX_WAIT, async || {
        (client.stats("web").await["pending"] == 9 && client.stats("web").await["unack"] == 0).then_some(())
    })
    .await;
    let waiting: usize = redis::cmd("ZCARD").arg("delayed").query_async(&mut raw).await.unwrap();
    assert_eq!(waiting, 0);
}

/// Bytes of a payload that no compression shortens.
const LARGE: usize = 48 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn slow_routes_share_the_bytes_under_way_and_leave_room_for_others() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Hang);
    let slow: Vec<String> = (0..10).map(|n| format!("slow-{n}")).collect();
    let mut routes = json!({ "fast": { "sink": "jobs" } });
    for name in &slow {
        routes[name] = json!({ "sink": "hook" });
    }
    let configuration = json!({
        "redis": { "url": redis.url() },
        "server": { "max_payload": "64KiB" },
        "max_in_flight_bytes": "1MiB",
        "sinks": { "hook": { "type": "http", "url": receiver.url() }, "jobs": { "type": "redis_list", "key": "jobs" } },
        "routes": routes,
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    let payload = BASE64_STANDARD.encode(noise(LARGE));
    for name in &slow {
        for n in 0..10 {
            client.schedule(name, &json!({ "id": format!("{n}"), "payload_base64": payload }).to_string()).await;
        }
    }
    let in_flight = async || {
        let mut sum = 0;
        for name in &slow {
            let unack = client.stats(name).await["unack"].as_u64().expect("a number");
            if unack == 0 {
                return None;
            }
            sum += unack;
        }
        Some(sum)
    };
    let held = eventually("every slow route has a message in flight", MAX_WAIT, in_flight).await;
    client.schedule("fast", r#"{ "id": "f", "payload": "x" }"#).await;
    client.drained("fast", MAX_WAIT).await;
    // All of them are 100 messages: of the pool 21, and of each route those that one largest message has room for.
    let after = in_flight().await.expect("they hang");
    assert!((10..=21 + 3 * 10).contains(&held) && (10..=21 + 3 * 10).contains(&after), "{held}, then {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_dead_letters_are_evicted_counted_and_logged() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    receiver.behave(Behaviour::Status(400));
    let configuration = json!({
        "redis": { "url": redis.url() },
        "sinks": { "hook": { "type": "http", "url": receiver.url() } },
        "routes": { "web": { "sink": "hook", "dead": { "max_count": 5, "max_age": "1h" } }, "all": { "sink": "hook" } },
    });
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    for n in 0..9 {
        client.schedule("web", &json!({ "id": format!("{n}"), "payload": "x" }).to_string()).await;
        client.drained("web", MAX_WAIT).await;
        client.schedule("all", &json!({ "id": format!("{n}"), "payload": "x" }).to_string()).await;
    }
    let dead = async || {
        let listed = client.call("GET", "/v1/routes/web/messages?state=dead&order=asc", "").await.json;
        let ids = listed["messages"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    eventually("the newest five are left", MAX_WAIT, async || {
        (dead().await == ["4", "5", "6", "7", "8"]).then_some(())
    })
    .await;
    client.drained("all", MAX_WAIT).await;
    assert_eq!(client.stats("all").await["dead"], 9, "without a limit all are kept");
    let page = client.metrics().await;
    let evicted = |reason| page.sum("punctual_dead_evicted_total", &["route=\"web\"", reason]);
    assert_eq!((evicted("reason=\"count\""), evicted("reason=\"age\"")), (4, 0));
    let log = punctual.log();
    let lines = log.lines().filter(|line| line.contains("dead letters were deleted"));
    assert_eq!(lines.count(), 1, "one at once, the next after a minute: {log}");

    // Long dead: found when the program starts.
    let mut raw = redis.connection().await;
    let key = "{punctual:web:0/1}:dead";
    let () = redis::cmd("ZADD").arg(key).arg(1000).arg("7").query_async(&mut raw).await.unwrap();
    drop(punctual);
    let punctual = Punctual::start(&configuration.to_string()).await;
    let client = Client::of(&punctual);
    eventually("the old one is evicted", MAX_WAIT, async || (client.stats("web").await["dead"] == 4).then_some(()))
        .await;
    assert_eq!(client.metrics().await.sum("punctual_dead_evicted_total", &["route=\"web\"", "reason=\"age\""]), 1);
    let bodies: usize = redis::cmd("HLEN").arg("{punctual:web:0/1}:messages").query_async(&mut raw).await.unwrap();
    assert_eq!(bodies, 4);
}

#[tokio::test]
async fn a_full_embedded_redis_refuses_and_takes_the_bound_of_the_next_start() {
    let configuration = |memory: &str| {
        format!(
            "redis: {{ url: embedded, max_memory: {memory} }}\nserver: {{ max_payload: 1MiB }}\n\
             sinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\nroutes: {{ list: {{ sink: jobs }} }}\n"
        )
    };
    let mut punctual = Punctual::start(&configuration("16MiB")).await;
    let client = Client::of(&punctual);
    let large = BASE64_STANDARD.encode(noise(1_000_000));
    let mut refused = None;
    for n in 0..40 {
        let body = json!({ "id": format!("{n}"), "payload_base64": large, "delay": "1h" }).to_string();
        let answer = client.call("POST", "/v1/routes/list/messages", &body).await;
        if answer.status != 201 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("it is full");
    assert_eq!(refused.problem(503), "unavailable");
    assert!(refused.text.contains("oom"), "{}", refused.text);
    assert_eq!(client.call("DELETE", "/v1/routes/list/messages/0", "").await.status, 204);

    punctual.kill().await;
    std::fs::write(punctual.path("punctual.yaml"), configuration("64MiB")).expect("written");
    punctual.restart().await;
    let body = json!({ "id": "more", "payload_base64": large, "delay": "1h" }).to_string();
    assert_eq!(client.call("POST", "/v1/routes/list/messages", &body).await.status, 201);
    assert!(punctual.log().contains("taken_over=true"), "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_restarts_with_other_settings_while_redis_is_full_delivers() {
    const DUE: usize = 60;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = |route: &str| {
        let (redis, hook) = (redis.url(), receiver.url());
        format!(
            "redis: {{ url: '{redis}' }}\nsinks: {{ hook: {{ type: http, url: '{hook}' }} }}\nroutes: {{ web: {{ sink: hook, {route} }} }}\n"
        )
    };
    let mut punctual = Punctual::start(&configuration("partitions: 1")).await;
    let client = Client::of(&punctual);
    let messages: Vec<_> = (0..DUE).map(|n| json!({ "id": n.to_string(), "payload": "x", "delay": "1h" })).collect();
    client.schedule("web", &json!(messages).to_string()).await;
    let memory = async |bytes: &str| {
        let mut raw = redis.connection().await;
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).exec_async(&mut raw).await.expect("set");
    };
    let routes =
        ["partitions: 1, limits: { messages: 100 }", "partitions: 1, remember: { for: 1h, max: 10 }", "partitions: 4"];
    for (n, route) in routes.into_iter().enumerate() {
        let due = (n + 1) * DUE / routes.len();
        punctual.terminate().await;
        memory("0").await;
        let mut overdue = redis::cmd("ZADD");
        overdue.arg("{punctual:web:0/1}:pending");
        for id in n * DUE / routes.len()..due {
            overdue.arg(0).arg(id);
        }
        overdue.exec_async(&mut redis.connection().await).await.expect("written");
        memory("1").await;
        std::fs::write(punctual.path("punctual.yaml"), configuration(route)).expect("written");
        punctual.restart().await;
        assert_eq!(receiver.wait_for(due, MAX_WAIT).await.len(), due, "{route}");
        let refused = client.call("POST", "/v1/routes/web/messages", r#"{"payload":"x","delay":"1h"}"#).await;
        assert_eq!(refused.problem(503), "unavailable", "{route}");
        assert!(refused.text.contains("oom"), "{route}: {}", refused.text);
    }
    memory("0").await;
    client.schedule("web", r#"{"id":"later","payload":"x","delay":"1h"}"#).await;
}
