//! HTTP endpoints that work, but not as one imagines.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{io::AsyncWriteExt, time::Instant};

use super::{client::Client, eventually};
use crate::support::{RawServer, RedisServer, punctual::Punctual, read_request};

const MESSAGES: usize = 800;

/// A route `web` to the endpoint.
async fn serve(redis: &RedisServer, endpoint: &RawServer) -> Punctual {
    Punctual::start(&format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: 'http://127.0.0.1:{}/due' }} }}\n\
         routes: {{ web: {{ sink: hook, retry: {{ max_attempts: 2, initial: 10ms }} }} }}\n",
        redis.url(),
        endpoint.port()
    ))
    .await
}

async fn schedule(client: &Client, count: usize) {
    let messages: Vec<String> = (0..count).map(|n| format!(r#"{{"id":"m{n}","payload":"x"}}"#)).collect();
    client.schedule("web", &format!("[{}]", messages.join(","))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_resets_reused_connections_is_up_and_gets_each_message_once() {
    let redis = RedisServer::start().await;
    let answered: Arc<Mutex<HashMap<String, String>>> = Arc::default();
    let seen = Arc::clone(&answered);
    let endpoint = RawServer::start(move |mut stream| {
        let seen = Arc::clone(&seen);
        async move {
            let Some(head) = read_request(&mut stream).await else { return };
            let header =
                |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).expect("a header").to_owned();
            let twice = seen.lock().unwrap().insert(header("punctual-id: "), header("punctual-attempt: "));
            assert_eq!(twice, None);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            read_request(&mut stream).await;
            stream.set_zero_linger().expect("a socket option");
        }
    });
    let punctual = serve(&redis, &endpoint).await;
    let client = Client::of(&punctual);
    let started = Instant::now();
    schedule(&client, MESSAGES).await;
    let stats = client.drained("web", Duration::from_secs(30)).await;
    let took = started.elapsed();
    println!("{MESSAGES} messages in {took:?}");
    assert_eq!((stats["dead"].as_u64(), answered.lock().unwrap().len()), (Some(0), MESSAGES));
    // Were each loss an outage of the sink, this would take 17 s.
    assert!(took < Duration::from_secs(10), "{took:?}");
    let attempts = answered.lock().unwrap().values().filter(|attempt| *attempt != "1").count();
    assert_eq!(attempts, 0, "a loss counts no attempt");
    assert!(!punctual.log().contains("the sink is down"), "{}", punctual.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_of_every_message_counts_attempts_and_names_its_location() {
    let redis = RedisServer::start().await;
    let endpoint = RawServer::start(|mut stream| async move {
        let reply =
            b"HTTP/1.1 301 Moved\r\nlocation: https://login.example/due?token=s3cret\r\ncontent-length: 0\r\n\r\n";
        while read_request(&mut stream).await.is_some() && stream.write_all(reply).await.is_ok() {}
    });
    let punctual = serve(&redis, &endpoint).await;
    let client = Client::of(&punctual);
    schedule(&client, 1).await;
    let dead = eventually("it is dead", Duration::from_secs(10), async || {
        let message = client.call("GET", "/v1/routes/web/messages/m0", "").await.json;
        (message["state"] == "dead").then_some(message)
    })
    .await;
    assert_eq!(dead["attempts"], 2);
    assert_eq!(dead["last_error"], "attempts: HTTP 301: Location: https://login.example/due");
    assert!(!punctual.log().contains("login.example"), "{}", punctual.log());
}
