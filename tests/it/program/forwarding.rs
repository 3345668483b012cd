//! Dead letters that are forwarded to another route.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{client::Client, eventually};
use crate::support::{
    RedisServer, kafka,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
    scale::rounds,
};

const SOON: Duration = Duration::from_secs(30);

fn configuration(redis: &RedisServer, endpoint: &Receiver, desk: &Receiver, then: &str) -> String {
    format!(
        "redis: {{ url: '{}' }}\n\
         sinks:\n  shop: {{ type: http, url: '{}', timeout: 5s }}\n  desk: {{ type: http, url: '{}', timeout: 5s }}\n\
         routes:\n  orders: {{ sink: shop, partitions: 3, retry: {{ max_attempts: 1 }}, dead: {{ forward: support, then: {then} }} }}\n  \
         support: {{ sink: desk, limits: {{ messages: 5000 }} }}\n",
        redis.url(),
        endpoint.url(),
        desk.url(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_arrives_at_the_other_route_and_tells_of_itself() {
    let (redis, shop, desk) = (RedisServer::start().await, Receiver::start(), Receiver::start());
    shop.behave(Behaviour::Status(400));
    let punctual = Punctual::start(&configuration(&redis, &shop, &desk, "keep")).await;
    let client = Client::of(&punctual);
    client.schedule("orders", r#"{"id":"a","headers":{"X-Tenant":"t"},"payload":{"order":1}}"#).await;
    let arrived = desk.wait_for(1, Duration::from_secs(5)).await.remove(0);
    let stats = eventually("it is dead, and forwarded", SOON, async || {
        let stats = client.stats("orders").await;
        (stats["dead"] == 1).then_some(stats)
    })
    .await;
    assert_eq!(stats["pending"], 0);
    assert!(arrived.id().starts_with("dead~orders~a~"), "{}", arrived.id());
    assert_eq!(&arrived.body[..], br#"{"order":1}"#);
    for (name, value) in [
        ("x-tenant", "t"),
        ("punctual-dead-route", "orders"),
        ("punctual-dead-reason", "rejected"),
        ("punctual-dead-attempts", "1"),
        ("punctual-dead-id", "a"),
    ] {
        assert_eq!(arrived.header(name), value, "{name}");
    }
    assert!(arrived.header("punctual-dead-error").contains("400"), "{:?}", arrived.headers);
    assert!(arrived.header("punctual-dead-due").ends_with('Z'));

    // Once redriven, it dies again: another death, another id.
    client.call("POST", "/v1/routes/orders/dead/redrive", r#"{"all":true}"#).await;
    let again = desk.wait_for(2, SOON).await.remove(1);
    assert_ne!(again.id(), arrived.id());
    // By request a death is forwarded again, with its id.
    let forwarded = punctual.command(&["dead", "forward", "orders", "--all", "--yes", "-c", "punctual.yaml"]).await;
    assert_eq!(forwarded.code, Some(0), "{forwarded:?}");
    let third = desk.wait_for(3, SOON).await.remove(2);
    assert_eq!(third.id(), again.id());
    let refused = client.call("POST", "/v1/routes/support/dead/forward", r#"{"all":true}"#).await;
    assert_eq!(refused.status, 409, "{}", refused.text);
    let page = client.call("GET", "/metrics", "").await.text;
    assert!(page.contains("punctual_dead_forwarded_total{route=\"orders\"} 3"), "{page}");
    assert!(page.contains("punctual_dead_unforwarded{route=\"orders\"} 0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_a_full_route_and_a_pause_lose_no_death() {
    let Some(brokers) = kafka::shared().await else { return };
    let (count, kills) = rounds((3000, 6), (100_000, 20));
    let (redis, shop, topic) = (RedisServer::start().await, Receiver::start(), kafka::topic_name());
    kafka::create_topic(&brokers, &topic, 3, &[]).await;
    shop.behave(Behaviour::Status(400));
    let text = configuration(&redis, &shop, &shop, "purge").replace("messages: 5000", "messages: 1000");
    let http = format!("desk: {{ type: http, url: '{}', timeout: 5s }}", shop.url());
    assert!(text.contains(&http), "{text}");
    let text = text.replace(&http, &format!("desk: {{ type: kafka, brokers: ['{brokers}'], topic: {topic} }}"));
    let arrived = async || usize::try_from(kafka::count(&brokers, &topic).await.unwrap_or(0)).expect("a count");
    let mut instances = [Punctual::start(&text).await, Punctual::start(&text).await];
    let client = Client::of(&instances[1]);
    client.call("POST", "/v1/routes/support/pause", "").await;
    for chunk in 0..count / 100 {
        let messages: Vec<_> =
            (0..100).map(|n| json!({ "id": format!("m{}", chunk * 100 + n), "payload": n })).collect();
        client.schedule("orders", &json!(messages).to_string()).await;
    }
    eventually("the other route is full", SOON, async || {
        (client.stats("support").await["pending"] == 1000).then_some(())
    })
    .await;
    client.call("POST", "/v1/routes/support/resume", "").await;
    for round in 0..kills {
        let wanted = (arrived().await + count / 10 / kills).min(count);
        eventually("further ones arrive", SOON, async || (arrived().await >= wanted).then_some(())).await;
        let victim = &mut instances[round % 2];
        victim.kill().await;
        victim.restart().await;
    }
    eventually("all were forwarded", Duration::from_mins(rounds(2, 8)), async || {
        let (orders, support) = (client.stats("orders").await, client.stats("support").await);
        let is_over = [&orders["pending"], &orders["unack"], &orders["dead"], &support["pending"], &support["unack"]];
        is_over.iter().all(|count| **count == 0).then_some(())
    })
    .await;
    let mut by_message: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in kafka::consume(&brokers, &topic).await {
        by_message.entry(record.header("Punctual-Dead-Id").to_owned()).or_default().push(record.id().to_owned());
    }
    assert_eq!(by_message.len(), count, "each death arrived");
    let doubles = by_message.values().filter(|ids| ids.len() > 1).count();
    println!("forwarding: {doubles} of {count} arrived more than once after {kills} kills");
    for ids in by_message.values() {
        assert!(ids.iter().all(|id| *id == ids[0]), "a death has one id: {ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_that_cannot_be_forwarded_holds_up_no_other() {
    let (redis, shop, desk) = (RedisServer::start().await, Receiver::start(), Receiver::start());
    shop.behave(Behaviour::Status(400));
    let text = configuration(&redis, &shop, &desk, "purge");
    let mut punctual = Punctual::start(&text.replace("dead: { forward: support, then: purge }", "dead: { }")).await;
    let client = Client::of(&punctual);
    let messages: Vec<_> = (0..50)
        .map(
            |n| json!({ "id": format!("m{n}"), "payload": if n % 10 == 0 { "x".repeat(9000) } else { n.to_string() } }),
        )
        .collect();
    client.schedule("orders", &json!(messages).to_string()).await;
    eventually("all are dead", SOON, async || (client.stats("orders").await["dead"] == 50).then_some(())).await;
    punctual.terminate().await;
    // Payloads of this size are no longer accepted.
    std::fs::write(punctual.path("punctual.yaml"), format!("{text}server: {{ max_payload: 4KiB }}\n"))
        .expect("written");
    punctual.restart().await;
    client.call("POST", "/v1/routes/orders/dead/forward", r#"{"all":true}"#).await;
    desk.wait_for(45, Duration::from_secs(10)).await;
    let stats = eventually("the others are left", SOON, async || {
        let stats = client.stats("orders").await;
        (stats["dead"] == 5).then_some(stats)
    })
    .await;
    assert_eq!(stats["pending"], 0);
    eventually("they are counted", SOON, async || {
        let page = client.call("GET", "/metrics", "").await.text;
        page.contains("punctual_dead_unforwarded{route=\"orders\"} 5").then_some(())
    })
    .await;
    let log = punctual.log();
    assert!(log.contains("cannot be forwarded") && log.contains("too-large"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn instances_that_stop_in_order_forward_nothing_twice() {
    const COUNT: usize = 4000;
    let (redis, shop, desk) = (RedisServer::start().await, Receiver::start(), Receiver::start());
    shop.behave(Behaviour::Status(400));
    let mut instances = Vec::new();
    for _ in 0..2 {
        instances.push(Punctual::start(&configuration(&redis, &shop, &desk, "purge")).await);
    }
    let client = Client::of(&instances[1]);
    for chunk in 0..COUNT / 500 {
        let messages: Vec<_> =
            (0..500).map(|n| json!({ "id": format!("m{}", chunk * 500 + n), "payload": n })).collect();
        client.schedule("orders", &json!(messages).to_string()).await;
    }
    for stop in 0.. {
        let seen = desk.count();
        if seen >= COUNT || stop == 8 {
            break;
        }
        desk.wait_for((seen + 200).min(COUNT), SOON).await;
        let one = &mut instances[stop % 2];
        one.terminate().await;
        one.restart().await;
    }
    desk.wait_for(COUNT, Duration::from_mins(1)).await;
    eventually("nothing is left", SOON, async || {
        let (orders, support) = (client.stats("orders").await, client.stats("support").await);
        [&orders["dead"], &support["pending"], &support["unack"]].iter().all(|count| **count == 0).then_some(())
    })
    .await;
    assert_eq!(desk.count(), COUNT, "each death arrived once");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_full_route_is_not_asked_again_and_again() {
    let (redis, shop, desk) = (RedisServer::start().await, Receiver::start(), Receiver::start());
    shop.behave(Behaviour::Status(400));
    let text = configuration(&redis, &shop, &desk, "keep").replace("messages: 5000", "messages: 5");
    let punctual = Punctual::start(&text).await;
    let client = Client::of(&punctual);
    client.call("POST", "/v1/routes/support/pause", "").await;
    for chunk in 0..12 {
        let messages: Vec<_> =
            (0..500).map(|n| json!({ "id": format!("m{}", chunk * 500 + n), "payload": n })).collect();
        client.schedule("orders", &json!(messages).to_string()).await;
    }
    eventually("all are dead", SOON, async || (client.stats("orders").await["dead"] == 6000).then_some(())).await;
    let calls = async || {
        let page = client.call("GET", "/metrics", "").await.text;
        let line = page.lines().find(|line| line.starts_with("punctual_redis_script_seconds_count{script=\"forward\""));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).expect("a count")
    };
    let (before, began) = (calls().await, Instant::now());
    // A call for each of three partitions and each second, and those after a delivery.
    eventually("it was tried again", SOON, async || (calls().await > before + 30).then_some(())).await;
    assert!(began.elapsed() > Duration::from_secs(4), "{} calls in {:?}", calls().await - before, began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_forwarded_is_not_evicted() {
    let (redis, shop, desk) = (RedisServer::start().await, Receiver::start(), Receiver::start());
    shop.behave(Behaviour::Status(400));
    desk.behave(Behaviour::Status(200));
    let text = configuration(&redis, &shop, &desk, "keep")
        .replace("then: keep", "then: keep, max_count: 3")
        .replace("messages: 5000", "messages: 5");
    let punctual = Punctual::start(&text).await;
    let client = Client::of(&punctual);
    client.call("POST", "/v1/routes/support/pause", "").await;
    let messages: Vec<_> = (0..20).map(|n| json!({ "id": format!("m{n}"), "payload": n })).collect();
    client.schedule("orders", &json!(messages).to_string()).await;
    eventually("five were forwarded", SOON, async || (client.stats("support").await["pending"] == 5).then_some(()))
        .await;
    let left = eventually("forwarded ones are evicted", Duration::from_mins(1), async || {
        let stats = client.stats("orders").await;
        // Before that, some have not died yet.
        let all_died = stats["pending"] == 0 && stats["unack"] == 0;
        stats["dead"].as_u64().filter(|left| all_died && *left < 20)
    })
    .await;
    assert!(left >= 15, "the others wait to be forwarded: {left}");
    client.call("POST", "/v1/routes/support/resume", "").await;
    eventually("all arrived, and the limit holds", Duration::from_mins(1), async || {
        let is_over = desk.count() == 20 && client.stats("orders").await["dead"].as_u64().unwrap() <= 3;
        is_over.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_shows_what_waits_to_be_forwarded() {
    let (redis, shop, desk) = (RedisServer::start().await, Receiver::start(), Receiver::start());
    shop.behave(Behaviour::Status(400));
    let punctual = Punctual::start(&configuration(&redis, &shop, &desk, "purge")).await;
    let (client, mut raw) = (Client::of(&punctual), redis.connection().await);
    let limit = async |raw: &mut redis::aio::MultiplexedConnection, bytes: u64| {
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", &bytes.to_string()]).exec_async(raw).await.expect("set");
    };
    // Deaths need no memory.
    client.schedule("orders", r#"{"id":"a","delay":"1s","payload":1}"#).await;
    limit(&mut raw, 1).await;
    eventually("it waits, and the log says so", SOON, async || {
        let page = client.call("GET", "/metrics", "").await.text;
        let is_shown = page.contains("punctual_dead_unforwarded{route=\"orders\"} 1");
        (is_shown && punctual.log().contains("dead letters cannot be forwarded now")).then_some(())
    })
    .await;
    limit(&mut raw, 0).await;
    desk.wait_for(1, SOON).await;
    eventually("none waits", SOON, async || {
        let page = client.call("GET", "/metrics", "").await.text;
        page.contains("punctual_dead_unforwarded{route=\"orders\"} 0").then_some(())
    })
    .await;
}
