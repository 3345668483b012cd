//! Secrets stay out of reports and debug output.

use super::*;

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
  c: { type: kafka, topic: t, brokers: 'b:1', username: u, password: hunter2, options: { ssl.key.password: hunter2, security.protocol: sasl_ssl } }
  d: { type: rabbitmq, exchange: e, url: 'amqp://u:hunter2@host', password: hunter2 }
"],
        &[],
    );
    let shown = format!("{:?}", right.load().unwrap_or_else(|errors| panic!("{errors}")));
    assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
}
