//! TLS to a broker that asks for a client certificate.

use punctual::{
    connector::rabbitmq::RabbitMqSinkSettings,
    sink::{Outcome, Sink},
};

use super::{messages, sink};
use crate::support::{Authority, RabbitMq, send, send_one};

fn encrypted(server: &RabbitMq, host: &str, authority: &Authority, client: bool) -> RabbitMqSinkSettings {
    let mut config = server.config("tls");
    config.url = format!("amqps://{host}:{}/%2f", server.tls_port()).into();
    config.tls.ca_file = Some(authority.file("ca.pem"));
    if client {
        config.tls.cert_file = Some(authority.file("client.pem"));
        config.tls.key_file = Some(authority.file("client.key"));
    }
    config
}

#[tokio::test]
async fn a_broker_that_asks_for_a_client_certificate_gets_it() {
    let server = RabbitMq::shared().await;
    server.declare("tls", "k").await;
    let sink = sink(&encrypted(server, "localhost", &server.authority, true));
    assert_eq!(sink.check().await, Ok(()));
    let outcomes = send(&sink, messages("m", 1500, "k")).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Confirmed));
    sink.close().await;
    assert_eq!(server.drain("tls").await.len(), 1500);
}

#[tokio::test]
async fn no_certificate_another_authority_or_another_name_is_unavailable() {
    let server = RabbitMq::shared().await;
    let (ours, other) = (&server.authority, Authority::new());
    for config in [
        encrypted(server, "localhost", ours, false),
        encrypted(server, "localhost", &other, true),
        encrypted(server, "127.0.0.1", ours, true),
    ] {
        let sink = sink(&config);
        let outcome = send_one(&sink).await;
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
        assert!(sink.check().await.is_err());
    }
}
