//! What cannot be understood or kept.

use lapin::types::AMQPValue;

use super::{configuration, declare, publish, until, wait_for, with_headers};
use crate::support::{RabbitMq, http, punctual::Punctual};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_broken_or_too_large_becomes_a_dead_letter_with_the_reason_and_the_rest_goes_on() {
    let server = RabbitMq::shared().await;
    declare(server, "refusals").await;
    let punctual = Punctual::start(&configuration(server, "refusals", "embedded", ", id_from: message_id")).await;
    let delay = |text: &str, id: &str| with_headers(&[("x-delay", AMQPValue::LongString(text.into()))], id);
    publish(
        server,
        "refusals",
        vec![
            (delay("soon", "broken"), b"kept".to_vec()),
            (delay("0", "large"), vec![b'x'; 2 << 20]),
            (delay("0", "huge"), vec![b'x'; (16 << 20) + 1]),
            (delay("0", "fine"), b"fine".to_vec()),
        ],
    )
    .await;
    let got = wait_for(server, "refusals", 1).await;
    assert_eq!((got.len(), &*got[0].1.id), (1, "fine"));
    until(&punctual, "/v1/routes/r", |route| route["dead"] == 2).await;
    for (id, reason) in [("broken", "x-delay: `soon` is neither"), ("large", "the payload takes 2097152 bytes")] {
        let dead = super::get(&punctual, &format!("/v1/routes/r/messages/{id}")).await;
        assert!(dead["last_error"].as_str().is_some_and(|error| error.contains(reason)), "{dead}");
    }
    until(&punctual, "/v1/sources", |sources| sources["sources"][0]["depth"] == 0).await;
    let page = http::client().get(punctual.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for line in ["taken_total{source=\"in\"} 1", "invalid_total{source=\"in\"} 2", "skipped_total{source=\"in\"} 1"] {
        assert!(page.contains(&format!("punctual_source_{line}")), "{line}:\n{page}");
    }
}
