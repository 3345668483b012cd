//! Kafka: the sink, the source, and their shared client properties and reports.

mod reports;
pub mod sink;
pub mod source;

use rdkafka::{
    ClientConfig,
    config::RDKafkaLogLevel,
    error::{KafkaError, KafkaResult},
};

pub use self::reports::Reports;
use crate::{config::KafkaServer, secret::Secret};

/// Sets brokers, TLS, SASL and `options`. The caller then sets the properties that delivery guarantees depend on.
pub fn connect(settings: &mut ClientConfig, server: &KafkaServer) {
    let files = [
        ("ssl.ca.location", &server.ca_file),
        ("ssl.certificate.location", &server.cert_file),
        ("ssl.key.location", &server.key_file),
    ];
    for (name, file) in files {
        if let Some(file) = file {
            settings.set(name, file.to_string_lossy());
        }
    }
    if let Some(username) = &server.username {
        settings.set("sasl.mechanism", "PLAIN").set("sasl.username", username);
        settings.set("sasl.password", server.password.as_ref().map_or("", Secret::expose));
    }
    let protocol = match (server.username.is_some(), server.ca_file.is_some() || server.cert_file.is_some()) {
        (false, false) => "plaintext",
        (false, true) => "ssl",
        (true, false) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    settings.set("security.protocol", protocol);
    for (name, value) in &server.options {
        settings.set(name, value.expose());
    }
    settings.set("bootstrap.servers", server.brokers.join(","));
    // The filter of tracing selects.
    settings.set_log_level(RDKafkaLogLevel::Debug);
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
