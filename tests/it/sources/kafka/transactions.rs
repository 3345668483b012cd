//! Topics of transactional producers.

use rdkafka::{
    ClientConfig,
    producer::{BaseProducer, BaseRecord, Producer},
};

use super::{MAX_WAIT, arrived, into_list, status, until};
use crate::support::{RedisServer, kafka, punctual::Punctual};

/// Four records and two markers: two records are committed and two aborted, in this order.
async fn produce(brokers: &str, topic: &str) {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    let produced = tokio::task::spawn_blocking(move || {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", brokers).set("transactional.id", &topic);
        let producer: BaseProducer = settings.create().expect("valid settings");
        producer.init_transactions(MAX_WAIT).expect("the broker knows it");
        for is_committed in [true, false] {
            producer.begin_transaction().expect("none is open");
            for number in ["1", "2"] {
                producer.send(BaseRecord::<str, str>::to(&topic).payload(number)).expect("there is room");
            }
            producer.flush(MAX_WAIT).expect("the broker takes them");
            let ended =
                if is_committed { producer.commit_transaction(MAX_WAIT) } else { producer.abort_transaction(MAX_WAIT) };
            ended.expect("the broker ends it");
        }
    });
    produced.await.expect("it is produced");
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_records_and_markers_are_neither_delivered_nor_left_as_depth() {
    let Some(broker) = kafka::shared().await else { return };
    let topic = kafka::topic_name();
    kafka::create_topic(&broker, &topic, 1, &[]).await;
    let redis = RedisServer::start().await;
    let punctual = Punctual::start(&into_list(&redis.url(), &broker, &topic).to_string()).await;
    produce(&broker, &topic).await;
    until("both committed records are delivered", async || arrived(&redis).await.len() == 2).await;
    until("the depth is 0", async || status(&punctual).await["depth"] == 0).await;
    until("the group is at the end", async || kafka::committed(&broker, &topic, &topic, 1).await == [Some(6)]).await;
    assert_eq!(arrived(&redis).await, [(1, 1), (2, 1)].into());
}
