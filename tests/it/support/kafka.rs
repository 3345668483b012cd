//! Apache Kafka: a broker that all tests share, and brokers that a test may stop.
//!
//! Jars in target/kafka/libs (`tests/run.sh` puts them there) are run with the installed Java. Where there are none,
//! tests of a real broker are skipped, except with `CI=true`: then they fail.

mod broker;
mod client;
mod mock;

use std::{env, time::Duration};

use tokio::sync::OnceCell;

pub use self::{
    broker::{Broker, Listener, tool},
    client::{
        Member, Record, add_partitions, commit, committed, consume, count, count_of, create_topic, create_topic_on,
        delete_records, delete_topic, until,
    },
    mock::{MockBroker, mock_broker},
};
use punctual::{
    config::{Period, Property},
    connector::kafka::{KafkaSinkSettings, Sasl},
    sink::template::{Allow, Place, Template},
    tls::TlsFiles,
};

/// `host:port` of the broker that all tests share: that of `PUNCTUAL_TEST_KAFKA`, or one that ends with this process.
/// `None`: the test cannot run.
pub async fn shared() -> Option<String> {
    static SHARED: OnceCell<String> = OnceCell::const_new();
    if let Ok(named) = env::var("PUNCTUAL_TEST_KAFKA") {
        return Some(named);
    }
    if !installed() {
        return None;
    }
    Some(SHARED.get_or_init(broker::start_shared).await.clone())
}

/// A sink to `topic`, with properties of librdkafka.
pub fn sink_config(brokers: &str, topic: &str, timeout: Duration, options: &[(&str, &str)]) -> KafkaSinkSettings {
    KafkaSinkSettings {
        brokers: [brokers.to_owned()].into_iter().collect(),
        topic: Template::parse(topic, Place::Topic).expect("a valid topic"),
        allow: Allow::default(),
        timeout: Period(timeout),
        sasl: Sasl::default(),
        tls: TlsFiles::default(),
        options: options.iter().map(|(name, value)| ((*name).to_owned(), Property((*value).into()))).collect(),
    }
}

/// A name that no other test has, nor any run before on a broker that keeps running.
pub fn topic_name() -> String {
    format!("punctual-test-{}", ulid::Ulid::generate())
}

/// Whether brokers can be started; with `CI=true` they must.
pub fn installed() -> bool {
    let installed = broker::libs().is_dir();
    if !installed {
        assert!(env::var("CI").as_deref() != Ok("true"), "no Kafka in target/kafka/libs: tests/run.sh fetches it");
        eprintln!("skipped: there is no Kafka in target/kafka/libs");
    }
    installed
}
