//! What a Kafka sink and a Kafka source share: the way into a cluster, and what librdkafka says of it.

mod reports;
mod settings;
pub mod sink;
pub mod source;

use rdkafka::{
    ClientConfig,
    config::RDKafkaLogLevel,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};

pub use self::{
    reports::Reports,
    settings::{Cluster, KafkaSinkSettings, KafkaSourceSettings, Mechanism, Sasl, Start},
};
use crate::secret::Secret;

/// Brokers, TLS, SASL and `options`. What promises rest on is set after it.
pub fn connect(settings: &mut ClientConfig, cluster: Cluster<'_>) {
    let Cluster { sasl, tls, .. } = cluster;
    let files = [
        ("ssl.ca.location", &tls.ca_file),
        ("ssl.certificate.location", &tls.cert_file),
        ("ssl.key.location", &tls.key_file),
    ];
    for (name, file) in files {
        if let Some(file) = file {
            settings.set(name, file.to_string_lossy());
        }
    }
    if let Some(username) = &sasl.username {
        settings.set("sasl.mechanism", sasl.mechanism.name()).set("sasl.username", username);
        settings.set("sasl.password", sasl.password.as_ref().map_or("", Secret::expose));
    }
    let protocol = match (sasl.username.is_some(), !tls.is_empty()) {
        (false, false) => "plaintext",
        (false, true) => "ssl",
        (true, false) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    settings.set("security.protocol", protocol);
    for (name, value) in cluster.options {
        settings.set(name, value.0.expose());
    }
    settings.set("bootstrap.servers", cluster.addresses());
    // What is shown of it, tracing's own filter decides.
    settings.set_log_level(RDKafkaLogLevel::Debug);
}

/// With the command that creates the topic, where `code` says that there is none.
pub fn with_remedy(error: String, code: RDKafkaErrorCode, brokers: &str, topic: &str) -> String {
    if !matches!(code, RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) {
        return error;
    }
    format!("{error}: create it with `kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic}`")
}

/// # Errors
/// Which settings librdkafka does not take.
pub fn made<T>(client: KafkaResult<T>) -> Result<T, String> {
    client.map_err(|error| match error {
        // Their own `Display` shows the value too, which may be a secret.
        KafkaError::ClientConfig(_, text, ..) | KafkaError::ClientCreation(text) => text,
        other => other.to_string(),
    })
}
