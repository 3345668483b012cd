use serde_json::json;

use super::{declare, publish, with_headers};
use crate::{
    sources::reload::{COUNT, STEP, arrived, configuration, reload},
    support::{RabbitMq, RedisServer, punctual::Punctual},
};

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_once_while_their_source_is_replaced() {
    let (server, redis) = (RabbitMq::shared().await, RedisServer::start().await);
    declare(server, "reload").await;
    let source = json!({
        "type": "rabbitmq", "url": format!("amqp://127.0.0.1:{}/%2f", server.port()), "queue": "reload-in",
        "route": "jobs", "id_from": "message_id",
    });
    let mut whole = configuration(&redis, &source);
    whole["routes"]["jobs"]["remember"] = json!({ "for": "10m" });
    let punctual = Punctual::start(&whole.to_string()).await;
    for begin in (0..COUNT).step_by(STEP) {
        let message = |n: usize| (with_headers(&[], &format!("m{n}")), n.to_string().into_bytes());
        publish(server, "reload", (begin..begin + STEP).map(message).collect()).await;
        whole["sources"]["in"]["prefetch"] = (200 + begin / STEP).into();
        reload(&punctual, &whole).await;
    }
    let counts = arrived(&redis).await;
    let twice = counts.values().filter(|count| **count > 1).count();
    println!("reload: {COUNT} messages of RabbitMQ over {} sources: {twice} twice", COUNT / STEP + 1);
    assert_eq!(twice, 0, "the route remembers their ids");
}
