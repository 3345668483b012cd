use std::time::Duration;

use super::{eventually, metrics_page::MetricsPage};
use crate::support::{
    RedisServer, answer, http,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

const TOKEN: &str = "token-81fa6c2d";
const PASSWORD: &str = "password-7c1e90ab";
const SIGNING: &str = "whsec_c2lnbmluZy1zZWNyZXQtNWQ0Yzc4LTI0";
const SINK_PASSWORD: &str = "sink-password-2b7d";
const HEADER: &str = "header-secret-0f3a";
const PAYLOAD: &str = "payload-secret-66e1";

/// At the most talkative level, through success, failure and outage; the endpoint echoes what it refuses.
#[tokio::test]
async fn no_token_password_or_payload_is_in_log_metrics_or_errors() {
    let (mut redis, receiver) = (RedisServer::start().await, Receiver::start());
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("punctual").arg("on").arg(format!(">{PASSWORD}")).arg("~*").arg("&*").arg("+@all");
    let () = user.query_async(&mut redis.connection().await).await.unwrap();
    let port = redis.port();
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}', username: punctual, password: {PASSWORD} }}\n\
         server: {{ auth: {{ tokens: [{TOKEN}] }} }}\nlog: {{ level: trace }}\n\
         sinks:\n  hook: {{ type: http, url: '{}', signing_secrets: [{SIGNING}], headers: {{ X-Secret: {HEADER} }} }}\n  \
         far: {{ type: redis_list, key: far, url: 'redis://default:{SINK_PASSWORD}@127.0.0.1:{port}/1' }}\n\
         routes: {{ web: {{ sink: hook }}, list: {{ sink: far }} }}\n",
        redis.url(),
        receiver.url()
    ))
    .await;
    let http = http::client();
    let schedule = async |route: &str, token: &str| {
        let request = http.post(punctual.url(&format!("/v1/routes/{route}/messages"))).bearer_auth(token);
        answer(request.body(format!(r#"{{"payload":"{PAYLOAD}"}}"#))).await.status
    };
    assert_eq!(schedule("web", TOKEN).await, 201);
    assert_eq!(schedule("list", TOKEN).await, 201);
    receiver.wait_for(1, Duration::from_secs(5)).await;
    let page = async || answer(http.get(punctual.url("/metrics")).bearer_auth(TOKEN)).await.text;
    eventually("the list has it", Duration::from_secs(5), async || {
        page().await.contains("punctual_messages_delivered_total{route=\"list\",sink=\"far\"} 1").then_some(())
    })
    .await;
    receiver.behave(Behaviour::Echo(400));
    assert_eq!(schedule("web", TOKEN).await, 201);
    receiver.wait_for(2, Duration::from_secs(5)).await;
    let get = async |path: &str| answer(http.get(punctual.url(path)).bearer_auth(TOKEN)).await.json;
    let error = eventually("it is dead", Duration::from_secs(5), async || {
        get("/v1/routes/web/messages?state=dead").await["messages"][0]["last_error"].as_str().map(str::to_owned)
    })
    .await;
    // The reply with the headers and the body of the request: the message's own payload may be in there.
    assert!(error.starts_with("rejected: HTTP 400: {") && error.contains("[redacted]"), "{error}");
    assert!(![TOKEN, PASSWORD, SIGNING, HEADER].iter().any(|secret| error.contains(secret)), "{error}");
    let sinks = get("/v1/sinks").await.to_string();
    assert!(sinks.contains("\"HTTP 400\""), "{sinks}");
    assert_eq!(schedule("web", &TOKEN[..10]).await, 401);
    // It comes back without the user: authentication fails.
    redis.restart().await;
    eventually("the refusal is counted", Duration::from_secs(10), async || {
        let counted = MetricsPage::parse(&page().await).sum("punctual_redis_errors_total", &["kind=\"auth\""]) > 0;
        if !counted {
            schedule("web", TOKEN).await;
        }
        counted.then_some(())
    })
    .await;

    let (log, page) = (punctual.log(), page().await);
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "it is talkative: {log}");
    for secret in [TOKEN, PASSWORD, SIGNING, SINK_PASSWORD, HEADER, PAYLOAD, "c2lnbmluZy1zZWNyZXQ"] {
        let found = log.lines().chain(page.lines()).chain([&*sinks]).find(|line| line.contains(secret));
        assert_eq!(found, None, "{secret}");
    }
}
