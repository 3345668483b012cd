//! Secrets stay out of reports and debug output.

use super::*;

#[test]
fn no_report_holds_a_password_of_an_odd_url() {
    for url in [
        "redis://user:12/hunter2@host:6379/0",
        "redis://user:1?hunter2@host",
        "redis://user:1#hunter2@host",
        "redis://user:hunter2@",
        "redis:user:hunter2@host",
        "redis:/user:hunter2@host",
        "rediss:///user:hunter2@host",
        "unix:user:hunter2@host",
        "unix://user:hunter2@host/",
        "hunter2@host:6379",
        "://user:hunter2@host",
        "user:hunter2@host:6379",
        "http://user:12/hunter2@host",
        "amqp://user:12/hunter2@host/x",
        "amqp:user:hunter2@host",
        "amqp://user:1?hunter2@host",
    ] {
        let sinks = format!(
            "{{ a: {{ type: http, url: '{url}' }}, b: {{ type: redis_list, key: k, url: '{url}' }}, \
             c: {{ type: rabbitmq, exchange: e, url: '{url}' }} }}"
        );
        let setup = Setup::new(&[&format!("redis: {{ url: '{url}' }}\nsinks: {sinks}\n")], &[]);
        let reports = setup.problems().join("\n");
        assert!(!reports.is_empty() && !reports.contains("hunter2"), "{url}: {reports}");
        assert!(!SecretUrl::from(url).to_string().contains("hunter2"), "{url}: {}", SecretUrl::from(url));
    }
}

#[test]
fn no_report_and_no_debug_output_holds_a_secret() {
    let wrong = Setup::new(
        &["
redis: { url: 'http://u:hunter2@host', username: [hunter2], password: { hunter2: hunter2 } }
server: { auth: hunter2 }
sinks:
  a: { type: http, url: 'hunter2', signing_secrets: [hunter2, [hunter2]], headers: { Host: hunter2, X: \"hunter2\\n\" } }
  b: { type: redis_list, key: k, url: 'redis://:hunter2@host:port', password: '${hunter' }
  c: { type: rabbitmq, exchange: e, url: 'amqp://u:hunter2@host/?hunter2=hunter2' }
"],
        &[("PUNCTUAL__REDIS__TIMEOUT__X", "hunter2"), ("PUNCTUAL__SERVER__AUTH__TOKENS", "hunter2 ")],
    );
    let reports = wrong.problems().join("\n");
    assert!(reports.lines().count() >= 9, "{reports}");
    assert!(!reports.replace("{ hunter2", "").contains("hunter2"), "{reports}");

    let right = Setup::new(
        &["
redis: { url: 'redis://u:hunter2@host', password: hunter2 }
server: { auth: { tokens: [hunter2] } }
sinks:
  a: { type: http, url: 'https://u:hunter2@host/?k=hunter2', signing_secrets: [whsec_hunter2hunter2hunter2hunter2hunt], headers: { X: hunter2 } }
  b: { type: redis_list, key: k, url: 'redis://:hunter2@host', password: hunter2 }
  c: { type: kafka, topic: t, brokers: 'b:1', sasl: { username: u, password: hunter2 }, options: { ssl.key.password: hunter2, security.protocol: sasl_ssl } }
  d: { type: rabbitmq, exchange: e, url: 'amqp://u:hunter2@host', password: hunter2 }
"],
        &[],
    );
    let shown = format!("{:?}", right.load().unwrap_or_else(|errors| panic!("{errors}")));
    assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
}
