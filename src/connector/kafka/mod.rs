//! Kafka: the sink, the source, and their shared client properties and callbacks.

mod callbacks;
mod settings;
pub mod sink;
pub mod source;

use rdkafka::{
    ClientConfig,
    config::RDKafkaLogLevel,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};

pub use self::{
    callbacks::Callbacks,
    settings::{Cluster, KafkaSinkSettings, KafkaSourceSettings, Mechanism, Sasl, Start, Tombstones},
};
use crate::secret::Secret;

/// Brokers, TLS, SASL and `options`, which override `defaults`. The caller then sets the properties that delivery
/// guarantees depend on.
pub fn client_config(defaults: &[(&str, &str)], cluster: Cluster<'_>) -> ClientConfig {
    let mut settings: ClientConfig =
        defaults.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let Cluster { sasl, tls, .. } = cluster;
    // An OpenSSL that is compiled in does not know where the system has its certificates. librdkafka looks for them.
    if cfg!(feature = "vendored") {
        settings.set("ssl.ca.location", "probe");
    }
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
    // The filter of tracing selects. `Callbacks` needs the line of a failed commit.
    settings.set_log_level(RDKafkaLogLevel::Debug);
    settings
}

/// Appends the command that creates the topic, if `code` means that it does not exist.
pub fn with_remedy(error: String, code: RDKafkaErrorCode, brokers: &str, topic: &str) -> String {
    if !is_missing(code) {
        return error;
    }
    format!("{error}: create it with `kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic}`")
}

/// Whether `code` means that the topic does not exist.
pub fn is_missing(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic)
}

/// # Errors
/// The settings that librdkafka rejects, without their values.
pub fn made<T>(client: KafkaResult<T>) -> Result<T, String> {
    client.map_err(|error| match error {
        // `Display` of these errors also shows the value, which can be a secret.
        KafkaError::ClientConfig(_, text, ..) | KafkaError::ClientCreation(text) => text,
        other => other.to_string(),
    })
}

/// # Errors
/// The text of a panic.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| panic.to_string())
}
