//! One batch through one sink, watched.

use std::time::Duration;

use bytes::Bytes;
use punctual::{
    message::{MessageId, Metadata},
    sink::{Delivery, Domain, Outcome, Report, Reported, Sink},
    time::UnixMillis,
};
use tokio::time::{Instant, timeout};

/// How much longer than its timeout a sink may take on a busy machine.
const GRACE: Duration = Duration::from_secs(1);

pub fn delivery(id: &str, payload: impl Into<Bytes>) -> Delivery {
    Delivery {
        id: MessageId::parse(id).expect("a valid id"),
        route: "orders".into(),
        attempt: 3,
        due: UnixMillis::new(1_700_000_000_123).expect("below 2^53"),
        metadata: Metadata {
            headers: [("X-Trace".into(), "abc é".into()), ("X-Other".into(), "1".into())].into(),
            key: Some("customer 7".into()),
            content_type: Some("application/x-test".into()),
            ..Metadata::default()
        },
        payload: payload.into(),
        send_until: None,
    }
}

/// The outcomes in the order of the batch. Fails when an index is missing or reported twice, or when `send`
/// has not returned soon after the sink's timeout.
pub async fn send(sink: &dyn Sink, batch: Vec<Delivery>) -> Vec<Outcome> {
    reports(sink, batch).await.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The outcomes with their domains, as `send` returns the outcomes. A domain that the sink knows beforehand is the one
/// that it reports.
pub async fn reports(sink: &dyn Sink, batch: Vec<Delivery>) -> Vec<(Option<Domain>, Outcome)> {
    let expected: Vec<_> = batch.iter().map(|delivery| sink.domain(delivery)).collect();
    let (report, mut receiver) = Report::channel();
    let started = Instant::now();
    timeout(sink.timeout() + GRACE, sink.send(batch, report))
        .await
        .unwrap_or_else(|_| panic!("send did not return within {:?}", started.elapsed()));
    let mut outcomes = vec![None; expected.len()];
    while let Some(Reported { index, domain, outcome, .. }) = receiver.recv().await {
        if let (Some(domain), Some(expected)) = (&domain, &expected[index]) {
            assert_eq!(domain, expected, "{index}: {outcome:?}");
        }
        assert!(outcomes[index].replace((domain, outcome)).is_none(), "index {index} was reported twice");
    }
    let reported = outcomes.into_iter().enumerate();
    reported.map(|(index, outcome)| outcome.unwrap_or_else(|| panic!("index {index} was not reported"))).collect()
}

/// The outcome of a single message.
pub async fn send_one(sink: &dyn Sink) -> Outcome {
    send(sink, vec![delivery("m1", "payload")]).await.remove(0)
}
