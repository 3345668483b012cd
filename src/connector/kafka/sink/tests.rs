//! The sink and its producers, on librdkafka's mock cluster.

use rdkafka::{
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use tokio::time::{advance, sleep, timeout};

use super::{producer::REBUILD_INTERVAL, *};
use crate::{
    config::{Period, Property},
    connector::kafka::Sasl,
    log_lines::LogLines,
    message::{MessageId, Metadata},
    sink::{
        Reported,
        template::{Allow, Place, Template},
    },
    time::UnixMillis,
    tls::TlsFiles,
};

const TIMEOUT: Duration = Duration::from_secs(10);

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// With the topic `t` of three partitions.
fn cluster() -> Cluster {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 3, 1).expect("a topic");
    cluster
}

fn settings(cluster: &Cluster, topic: &str, options: &[(&str, &str)]) -> KafkaSinkSettings {
    KafkaSinkSettings {
        brokers: [cluster.bootstrap_servers()].into_iter().collect(),
        topic: Template::parse(topic, Place::Topic).expect("a template"),
        allow: Allow::new(["*"]).expect("a pattern"),
        timeout: Period(TIMEOUT),
        sasl: Sasl::default(),
        tls: TlsFiles::default(),
        options: options.iter().map(|(name, value)| ((*name).to_owned(), Property((*value).into()))).collect(),
    }
}

fn sink(cluster: &Cluster, topic: &str, options: &[(&str, &str)]) -> KafkaSink {
    KafkaSink::new(&settings(cluster, topic, options)).expect("valid settings")
}

fn delivery(key: Option<&str>) -> Delivery {
    Delivery {
        id: MessageId::parse("m").unwrap(),
        route: "r".into(),
        attempt: 1,
        due: UnixMillis::default(),
        metadata: Metadata { key: key.map(str::to_owned), ..Metadata::default() },
        payload: "x".into(),
        send_until: None,
    }
}

/// The only report about a message without a key.
async fn sent(sink: &KafkaSink) -> Reported {
    let (report, mut outcomes) = Report::channel();
    sink.send(vec![delivery(None)], report).await;
    let reported = outcomes.try_recv().expect("an outcome");
    assert!(outcomes.try_recv().is_err(), "one outcome");
    reported
}

#[tokio::test]
async fn records_of_a_rejected_batch_are_sent_again_alone_and_then_rejected() {
    let cluster = cluster();
    let sink = sink(&cluster, "t", &[]);
    let (lines, _guard) = LogLines::collect();
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[too_large]);
    assert_eq!(sent(&sink).await.outcome, Outcome::Confirmed);
    let warning = lines.take().pop().expect("a warning");
    let name = format!("{}/t", cluster.bootstrap_servers());
    assert!(warning.starts_with("WARN a batch was rejected") && warning.contains(&name), "{warning}");
    cluster.request_errors(RDKafkaApiKey::Produce, &[too_large, too_large]);
    let Reported { domain, outcome, .. } = sent(&sink).await;
    assert!(matches!(outcome, Outcome::Rejected { .. }), "{outcome:?}");
    assert!(domain.is_some(), "a broker is reachable");
}

#[tokio::test]
async fn the_domain_of_a_message_with_a_key_is_its_partition() {
    let cluster = cluster();
    let constant = sink(&cluster, "t", &[]);
    assert!(sent(&constant).await.domain.is_some_and(|domain| domain.starts_with("t/")));
    // The number of partitions is requested in the background.
    let expected: Domain = format!("t/{}", murmur2::partition(b"k", 3)).into();
    let found = async {
        loop {
            if let Some(domain) = constant.domain(&delivery(Some("k"))) {
                return domain;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert_eq!(timeout(TIMEOUT, found).await, Ok(expected));
    for key in [None, Some("")] {
        assert_eq!(constant.domain(&delivery(key)), None, "{key:?}");
    }
    // Another partitioner of librdkafka chooses another partition.
    let other = sink(&cluster, "t", &[("partitioner", "consistent_random")]);
    other.partitions.refresh(&other.shared.get().unwrap(), "t");
    let known = async {
        while other.partitions.get("t").is_none() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, known).await.expect("the number of partitions");
    assert_eq!(other.domain(&delivery(Some("k"))), None);
}

#[test]
fn the_partitioner_is_that_of_the_java_producer_unless_set() {
    let cluster = cluster();
    let partitioner = |options| KafkaSink::partitioner(&settings(&cluster, "t", options));
    assert_eq!(partitioner(&[]), "murmur2_random");
    assert_eq!(partitioner(&[("partitioner", "consistent")]), "consistent");
}

#[tokio::test]
async fn a_check_is_about_the_topic_unless_messages_name_it() {
    let cluster = cluster();
    let constant = sink(&cluster, "t", &[]);
    let of_messages = sink(&cluster, "{key}", &[]);
    assert_eq!((constant.has_destinations(), of_messages.has_destinations()), (false, true));
    assert_eq!((constant.check().await, of_messages.check().await), (Ok(()), Ok(())));
    cluster.topic_error("t", RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).expect("a topic");
    let error = constant.check().await.expect_err("the topic has an error");
    assert!(error.starts_with("topic t: "), "{error}");
    assert_eq!(of_messages.check().await, Ok(()));
}

#[tokio::test]
async fn a_closed_sink_has_ended_its_producers() {
    let cluster = cluster();
    let sink = sink(&cluster, "t", &[]);
    let producers = [&sink.shared, sink.solo().unwrap()].map(|producer| Arc::downgrade(&producer.get().unwrap()));
    sink.close().await;
    assert!(producers.iter().all(|producer| producer.upgrade().is_none()));
    assert_eq!(sent(&sink).await.outcome.error(), Some("the sink is closed"));
}

fn producer(cluster: &Cluster) -> Producer {
    Producer::new(properties::producer(&settings(cluster, "t", &[])), "test".into()).expect("valid settings")
}

#[tokio::test(start_paused = true)]
async fn a_producer_is_replaced_after_many_topics_but_not_at_once() {
    let cluster = cluster();
    let producer = producer(&cluster);
    let first = producer.get().unwrap();
    let topics: Vec<_> = (0..1000).map(|topic| topic.to_string()).collect();
    let all = || topics.iter().map(String::as_str);
    producer.get_for(all().skip(1)).unwrap();
    // Topics count once.
    producer.get_for(all().skip(1)).unwrap();
    advance(REBUILD_INTERVAL).await;
    assert!(Arc::ptr_eq(&first, &producer.get_for(all()).unwrap()));
    let second = producer.get().unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    producer.get_for(all()).unwrap();
    advance(Duration::from_millis(999)).await;
    assert!(Arc::ptr_eq(&second, &producer.get().unwrap()), "it is too new");
    advance(Duration::from_millis(1)).await;
    assert!(!Arc::ptr_eq(&second, &producer.get().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_producer_is_made_again_a_second_after_it_failed_for_good() {
    let cluster = cluster();
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &[denied]);
    let producer = producer(&cluster);
    let first = producer.get().unwrap();
    for _ in 0..2000 {
        if first.client().fatal_error().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let (lines, _guard) = LogLines::collect();
    let error = producer.get().err().expect("a fatal error");
    assert_eq!(lines.take(), Vec::<String>::new());
    advance(REBUILD_INTERVAL).await;
    assert!(!Arc::ptr_eq(&first, &producer.get().unwrap()));
    let line = format!("WARN the producer failed and is created again: {error} kafka=\"test\"");
    assert_eq!(lines.take(), [line]);
}
