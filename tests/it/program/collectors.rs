//! A collector of spans that is down, slow or odd delays no delivery and no stop.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use prost::Message;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{alone, client::Client, eventually, heavy};
use crate::support::{
    RawServer,
    port::Port,
    punctual::Punctual,
    read_request,
    receiver::{Receiver, wall_clock},
    spans,
};

const MAX_WAIT: Duration = Duration::from_secs(20);
/// Due over a second.
const MESSAGES: usize = 200;
/// Maximum lateness of a debug build beside other tests, in ms. The exports of the collectors here take seconds.
const LATE: u64 = 500;

fn configuration(endpoint: &str, receiver: &Receiver) -> String {
    json!({
        "redis": { "url": "embedded" },
        "tracing": { "otlp": { "endpoint": endpoint, "sample": 1, "timeout": "5s" } },
        "sinks": { "hook": { "type": "http", "url": receiver.url() } },
        "routes": { "r": { "sink": "hook" } },
    })
    .to_string()
}

/// All messages arrive in time, each with the context of its span.
async fn deliver(punctual: &Punctual, receiver: &Receiver) {
    let client = Client::of(punctual);
    let start = wall_clock() + 500;
    let messages = (0..MESSAGES).map(|n| json!({ "deliver_at": start + n as u64 * 5, "payload": "x" }));
    client.schedule("r", &messages.collect::<Value>().to_string()).await;
    for request in receiver.wait_for(MESSAGES, MAX_WAIT).await {
        let late = request.arrived.saturating_sub(request.due());
        assert!(late <= LATE, "{late} ms late:\n{}", punctual.log());
        assert!(request.header("traceparent").ends_with("-01"));
    }
}

/// Delivers over a collector at `endpoint`. `reason`: that of the dropped spans; `error`: what is logged.
async fn outlast(endpoint: &str, reason: &str, error: &str) {
    let receiver = Receiver::start();
    let mut punctual = Punctual::start(&configuration(endpoint, &receiver)).await;
    deliver(&punctual, &receiver).await;
    let client = Client::of(&punctual);
    eventually("a dropped span is counted", MAX_WAIT, async || {
        let dropped = client.metrics().await.sum("punctual_spans_dropped_total", &[&format!("reason=\"{reason}\"")]);
        (dropped > 0).then_some(())
    })
    .await;
    let exit = punctual.terminate().await;
    assert_eq!(exit.code, Some(0), "{}", punctual.log());
    assert!(exit.took < Duration::from_secs(8), "{:?}", exit.took);
    let log = punctual.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("spans cannot be exported")).collect();
    assert!(lines.len() == 1 && lines[0].contains(error), "{log}");
}

fn raw(server: &RawServer) -> String {
    format!("http://127.0.0.1:{}", server.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_down_delays_nothing() {
    let port = Port::reserve();
    let _alone = alone().await;
    outlast(&format!("http://{}", port.address()), "export", "Connection refused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_delays_nothing() {
    let server = RawServer::silent();
    let _alone = alone().await;
    outlast(&raw(&server), "export", "no answer within 5s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_closes_its_connections_delays_nothing() {
    let server = RawServer::answering("");
    let _alone = alone().await;
    outlast(&raw(&server), "export", "error sending request").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_fails_or_refuses_delays_nothing() {
    let _alone = alone().await;
    for (reply, error) in [
        ("500 Internal Server Error\r\ncontent-length: 0\r\n\r\n", "500"),
        ("429 Too Many Requests\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n", "429"),
        ("302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n", "302"),
    ] {
        let server = RawServer::answering(format!("HTTP/1.1 {reply}"));
        outlast(&raw(&server), "export", error).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_a_collector_rejects_are_counted() {
    let partial = ExportTracePartialSuccess { rejected_spans: 1, error_message: "too old".into() };
    let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n", body.len());
    let server = RawServer::answering([head.into_bytes(), body].concat());
    let _turn = heavy().await;
    outlast(&raw(&server), "rejected", "the collector rejected 1 spans").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_odd_answer_of_success_is_success() {
    let _turn = heavy().await;
    let html = "<html>welcome</html>";
    let endless = format!("HTTP/1.1 200 OK\r\ncontent-length: 4000000\r\n\r\n{}", "x".repeat(4_000_000));
    let page = format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{html}", html.len());
    for reply in [endless, page, "HTTP/1.1 204 No Content\r\n\r\n".to_owned()] {
        let server = RawServer::start(move |mut stream| {
            let reply = reply.clone();
            async move {
                while read_request(&mut stream).await.is_some() {
                    if stream.write_all(reply.as_bytes()).await.is_err() {
                        return;
                    }
                }
            }
        });
        let receiver = Receiver::start();
        let mut punctual = Punctual::start(&configuration(&raw(&server), &receiver)).await;
        deliver(&punctual, &receiver).await;
        let client = Client::of(&punctual);
        eventually("all are exported", MAX_WAIT, async || {
            let page = client.metrics().await;
            assert_eq!(page.sum("punctual_spans_dropped_total", &[]), 0);
            (page.sum("punctual_spans_exported_total", &[]) == 2 * MESSAGES as u64).then_some(())
        })
        .await;
        punctual.terminate().await;
        assert!(!punctual.log().contains("spans"), "{}", punctual.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_comes_back_gets_the_spans_from_then_on() {
    let (mut collector, receiver) = (Receiver::start(), Receiver::start());
    let base = collector.url().trim_end_matches("/due").to_owned();
    collector.refuse();
    let punctual = Punctual::start(&configuration(&base, &receiver)).await;
    deliver(&punctual, &receiver).await;
    eventually("the outage is logged", MAX_WAIT, async || {
        punctual.log().contains("spans cannot be exported").then_some(())
    })
    .await;
    collector.listen();
    Client::of(&punctual).schedule("r", r#"{"id":"later","payload":"x"}"#).await;
    eventually("a later span is exported", MAX_WAIT, async || {
        spans::exported(&collector).iter().any(|span| span.name == "send r" && span.id() == "later").then_some(())
    })
    .await;
    assert!(collector.requests().iter().all(|request| request.path == "/v1/traces"), "the path of OTLP");
    eventually("the end is logged", MAX_WAIT, async || {
        punctual.log().contains("spans are exported again").then_some(())
    })
    .await;
}
