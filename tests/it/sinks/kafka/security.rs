//! Brokers that ask for a certificate or for a password.

use std::{fs, time::Duration};

use futures::future::join_all;
use punctual::{
    connector::kafka::{KafkaSinkSettings, sink::KafkaSink},
    sink::{Outcome, Sink},
};
use serde_json::{Value, json};

use crate::support::{
    Authority, answer, delivery, http,
    kafka::{self, Broker, Listener},
    port::Port,
    punctual::Punctual,
    send, send_one,
};

const TIMEOUT: Duration = Duration::from_secs(5);
const TOPIC: &str = "secured";
/// Has all characters that URLs and shells treat specially.
const PASSWORD: &str = "p@ss/wörd:%\"'";

/// A broker with listeners for TLS with client certificates, for SASL PLAIN, and for both at once.
struct Secured {
    broker: Broker,
    authority: Authority,
    tls: Port,
    sasl: Port,
    sasl_tls: Port,
}

impl Secured {
    async fn start() -> Option<Self> {
        let (tls, sasl, sasl_tls) = (Port::reserve(), Port::reserve(), Port::reserve());
        let authority = Authority::new();
        let broker = Broker::start_with(|directory| {
            // Kafka reads the key and its chain from one file.
            let store = directory.join("server.store.pem");
            let read = |name| fs::read_to_string(authority.file(name)).expect("it was written");
            fs::write(&store, read("server.key") + &read("server.pem")).expect("it is written");
            let quoted = PASSWORD.replace('"', "\\\\\"").replace('ö', "\\u00f6");
            let login =
                format!("org.apache.kafka.common.security.plain.PlainLoginModule required user_punctual=\"{quoted}\";");
            let settings = format!(
                "ssl.keystore.type=PEM\nssl.keystore.location={}\nssl.truststore.type=PEM\nssl.truststore.location={}\n\
                 ssl.client.auth=none\nlistener.name.ssl.ssl.client.auth=required\n\
                 sasl.enabled.mechanisms=PLAIN\nlistener.name.sasl_plaintext.plain.sasl.jaas.config={login}\n\
                 listener.name.sasl_ssl.plain.sasl.jaas.config={login}\n",
                store.display(),
                authority.file("ca.pem").display(),
            );
            let ports = [("SSL", &tls), ("SASL_PLAINTEXT", &sasl), ("SASL_SSL", &sasl_tls)];
            let listener = |(name, port): (&'static str, &Port)| Listener {
                name,
                protocol: name,
                port: port.number(),
                advertised: port.number(),
            };
            (ports.map(listener).into(), settings)
        })
        .await?;
        kafka::create_topic(&broker.address(), TOPIC, 1, &[]).await;
        Some(Self { broker, authority, tls, sasl, sasl_tls })
    }

    async fn arrived(&self) -> usize {
        kafka::consume(&self.broker.address(), TOPIC).await.len()
    }
}

fn config(port: &Port) -> KafkaSinkSettings {
    kafka::sink_config(&format!("localhost:{}", port.number()), TOPIC, TIMEOUT, &[])
}

fn with_certificates(mut config: KafkaSinkSettings, authority: &Authority, client: bool) -> KafkaSinkSettings {
    config.tls.ca_file = Some(authority.file("ca.pem"));
    if client {
        config.tls.cert_file = Some(authority.file("client.pem"));
        config.tls.key_file = Some(authority.file("client.key"));
    }
    config
}

fn with_password(mut config: KafkaSinkSettings, password: &str) -> KafkaSinkSettings {
    config.sasl.username = Some("punctual".into());
    config.sasl.password = Some(password.into());
    config
}

fn sink(config: &KafkaSinkSettings) -> KafkaSink {
    KafkaSink::new(config).expect("a valid configuration")
}

#[tokio::test]
async fn certificates_and_passwords_are_used_and_wrong_ones_are_unavailable() {
    let Some(secured) = Secured::start().await else { return };
    let (ours, other) = (&secured.authority, Authority::new());
    let (tls, sasl, sasl_tls) = (config(&secured.tls), config(&secured.sasl), config(&secured.sasl_tls));
    let good = [
        with_certificates(tls.clone(), ours, true),
        with_password(sasl.clone(), PASSWORD),
        with_password(with_certificates(sasl_tls.clone(), ours, false), PASSWORD),
    ];
    for config in &good {
        let sink = sink(config);
        assert_eq!(sink.check().await, Ok(()));
        let batch = (0..500).map(|n| delivery(&format!("m{n}"), "x")).collect();
        assert_eq!(send(&sink, batch).await, vec![Outcome::Confirmed; 500]);
    }
    assert_eq!(secured.arrived().await, 500 * good.len());

    let mut by_address = with_certificates(tls.clone(), ours, true);
    by_address.brokers = [secured.tls.address().to_string()].into_iter().collect();
    let bad = [
        ("no client certificate", with_certificates(tls.clone(), ours, false), "ssl"),
        ("another authority", with_certificates(tls.clone(), &other, true), "certificate verify failed"),
        ("another name", by_address, "certificate verify failed"),
        ("no TLS", tls, ""),
        ("a wrong password", with_password(sasl.clone(), "hunter2"), "uthentication failed"),
        ("no password", sasl, ""),
        ("no TLS for SASL", with_password(sasl_tls, PASSWORD), ""),
    ];
    // At once, for each takes as long as it may.
    let refused = join_all(bad.map(async |(name, config, expected)| {
        let sink = sink(&config);
        let (outcome, checked) = tokio::join!(send_one(&sink), sink.check());
        (name, outcome, checked.expect_err(name), expected)
    }));
    for (name, outcome, error, expected) in refused.await {
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{name}: {outcome:?}");
        for error in [outcome.error().expect("a text"), &error] {
            assert!(error.to_lowercase().contains(&expected.to_lowercase()), "{name}: {error}");
            assert!(!error.contains("hunter2") && !error.contains(PASSWORD), "{error}");
        }
    }
    assert_eq!(secured.arrived().await, 500 * good.len(), "nothing came another way");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_delivers_over_tls_and_sasl_and_check_reports_errors() {
    let Some(secured) = Secured::start().await else { return };
    let file = |name| secured.authority.file(name).display().to_string();
    let (tls, sasl) = (format!("localhost:{}", secured.tls.number()), format!("localhost:{}", secured.sasl.number()));
    let configuration = |password: &str, topic: &str| {
        json!({
            "redis": { "url": "embedded" },
            "sinks": {
                "tls": {
                    "type": "kafka", "brokers": [tls], "topic": topic, "timeout": "5s",
                    "tls": { "ca_file": file("ca.pem"), "cert_file": file("client.pem"), "key_file": file("client.key") },
                },
                "sasl": {
                    "type": "kafka", "brokers": [sasl], "topic": TOPIC, "timeout": "5s",
                    "sasl": { "username": "punctual", "password": password },
                    "options": { "security.protocol": "sasl_plaintext" },
                },
            },
            "routes": { "a": { "sink": "tls" }, "b": { "sink": "sasl" } },
        })
        .to_string()
    };
    let punctual = Punctual::start(&configuration(PASSWORD, TOPIC)).await;
    for route in ["a", "b"] {
        let post = http::client().post(punctual.url(&format!("/v1/routes/{route}/messages")));
        assert_eq!(answer(post.body(json!({ "id": "same", "payload": route }).to_string())).await.status, 201);
    }
    crate::program::eventually("both arrive", Duration::from_secs(20), async || {
        (secured.arrived().await == 2).then_some(())
    })
    .await;
    let check = async |configuration: String| {
        fs::write(punctual.path("check.yaml"), configuration).expect("it is written");
        let ended = punctual.command(&["--json", "check", "--connect", "-c", "check.yaml"]).await;
        let answers: Value = serde_json::from_str(&ended.out).expect("JSON");
        (ended.code, answers["answers"].clone(), ended.out)
    };
    let (code, answers, _) = check(configuration(PASSWORD, TOPIC)).await;
    assert_eq!((code, &answers["sinks.tls"], &answers["sinks.sasl"]), (Some(0), &json!("ok"), &json!("ok")));
    let (code, answers, shown) = check(configuration("hunter2", "not-there")).await;
    assert_eq!(code, Some(1));
    assert!(answers["sinks.tls"].as_str().expect("a text").contains("not-there"), "{answers}");
    assert!(answers["sinks.sasl"].as_str().expect("a text").contains("uthentication failed"), "{answers}");
    assert!(!shown.contains("hunter2") && !punctual.log().contains(PASSWORD), "{shown}");
}
