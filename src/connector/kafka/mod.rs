//! Kafka: the sink, the source, and their shared client properties and reports.

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

/// Sets brokers, TLS, SASL and `options`. The caller then sets the properties that delivery guarantees depend on.
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
    // The filter of tracing selects.
    settings.set_log_level(RDKafkaLogLevel::Debug);
}

/// Appends the command that creates the topic, if `code` means that it does not exist.
pub fn with_remedy(error: String, code: RDKafkaErrorCode, brokers: &str, topic: &str) -> String {
    if !matches!(code, RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) {
        return error;
    }
    format!("{error}: create it with `kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic}`")
}

/// # Errors
/// The settings that librdkafka rejects, without their values.
pub fn made<T>(client: KafkaResult<T>) -> Result<T, String> {
    client.map_err(|error| match error {
        // `Display` of these errors shows the value too, which may be a secret.
        KafkaError::ClientConfig(_, text, ..) | KafkaError::ClientCreation(text) => text,
        other => other.to_string(),
    })
}

/// # Errors
/// The text of a panic.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| panic.to_string())
}
