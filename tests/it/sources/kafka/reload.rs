use super::{Sent, produce, source};
use crate::{
    sources::reload::{COUNT, STEP, arrived, configuration, reload},
    support::{RedisServer, kafka, punctual::Punctual},
};

#[tokio::test(flavor = "multi_thread")]
async fn records_arrive_once_while_their_source_is_replaced() {
    let Some(broker) = kafka::shared().await else { return };
    let (topic, redis) = (kafka::topic_name(), RedisServer::start().await);
    kafka::create_topic(&broker, &topic, 3, &[]).await;
    let mut whole = configuration(&redis, &source(&broker, &topic, "jobs"));
    let punctual = Punctual::start(&whole.to_string()).await;
    for begin in (0..COUNT).step_by(STEP) {
        let record = |n: usize| {
            let text = Some(n.to_string().into_bytes());
            Sent { key: text.clone(), value: text, headers: vec![("punctual-delay", b"10".to_vec())] }
        };
        produce(&broker, &topic, (begin..begin + STEP).map(record)).await;
        whole["sources"]["in"]["options"]["fetch.wait.max.ms"] = (100 + begin / STEP).into();
        reload(&punctual, &whole).await;
    }
    let counts = arrived(&redis).await;
    let twice = counts.values().filter(|count| **count > 1).count();
    println!("reload: {COUNT} records of Kafka over {} sources: {twice} twice", COUNT / STEP + 1);
    assert_eq!(twice, 0, "the route remembers the position of each");
}
