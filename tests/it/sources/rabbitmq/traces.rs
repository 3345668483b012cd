//! The traces of messages of RabbitMQ.

use lapin::types::AMQPValue;

use super::{configuration, declare, header, publish, wait_for, with_headers};
use crate::support::{RabbitMq, punctual::Punctual};

const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[tokio::test(flavor = "multi_thread")]
async fn a_message_keeps_its_trace_and_an_invalid_one_is_dropped() {
    let server = RabbitMq::shared().await;
    declare(server, "traced").await;
    let _punctual = Punctual::start(&configuration(server, "traced", "embedded", ", id_from: message_id")).await;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let messages = [
        (with_headers(&[("traceparent", text(VALID)), ("tracestate", text("a=1"))], "valid"), b"x".to_vec()),
        (with_headers(&[("traceparent", text("no")), ("x", text("1"))], "invalid"), b"x".to_vec()),
        (with_headers(&[("traceparent", AMQPValue::LongInt(1))], "number"), b"x".to_vec()),
    ];
    publish(server, "traced", messages.to_vec()).await;
    let got = wait_for(server, "traced", 3).await;
    let of = |id: &str| got.iter().map(|(_, got)| got).find(|got| got.id == id).expect("it arrived");
    assert_eq!((header(of("valid"), "traceparent"), header(of("valid"), "tracestate")), (text(VALID), text("a=1")));
    for id in ["invalid", "number"] {
        let headers = of(id).properties.headers().as_ref().unwrap();
        assert!(!headers.contains_key("traceparent"), "{headers:?}");
    }
    assert_eq!(header(of("invalid"), "x"), text("1"));
}
