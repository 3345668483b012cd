//! An exchange that is not there.

use std::time::Duration;

use lapin::options::ExchangeDeleteOptions;
use punctual::sink::{Outcome, Sink};
use tokio::time::{Instant, sleep};

use super::{ids, messages, sink, unconfirmed};
use crate::support::{RabbitMq, send};

#[tokio::test]
async fn a_missing_exchange_is_unavailable_until_it_is_declared() {
    let server = RabbitMq::shared().await;
    let sink = sink(&server.config("later"));
    for outcome in send(&sink, messages("m", 3, "k")).await {
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
        assert!(outcome.error().unwrap().contains("no exchange 'later'"), "{outcome:?}");
    }
    assert!(sink.check().await.unwrap_err().contains("no exchange 'later'"));
    server.declare("later", "k").await;
    assert_eq!(sink.check().await, Ok(()));
    assert!(send(&sink, messages("m", 3, "k")).await.iter().all(|outcome| *outcome == Outcome::Confirmed));
    assert_eq!(ids(&server.drain("later").await), ["m0", "m1", "m2"]);
}

#[tokio::test]
async fn an_exchange_deleted_under_load_loses_nothing() {
    let server = RabbitMq::shared().await;
    server.declare("deleted", "k").await;
    let sink = sink(&server.config("deleted"));
    let channel = server.channel().await;
    let mut waiting = Vec::new();
    let (mut batches, mut interrupted) = (0, false);
    // Until the deletion is felt: at the latest the batch behind it feels it.
    while !interrupted {
        let batch = messages(&format!("{batches}-"), 400, "k");
        let deletion = async {
            if batches == 3 {
                channel.exchange_delete("deleted".into(), ExchangeDeleteOptions::default()).await.unwrap();
            }
        };
        let (outcomes, ()) = tokio::join!(send(&sink, batch.clone()), deletion);
        interrupted = outcomes.contains(&Outcome::Confirmed) != outcomes.iter().all(|one| *one == Outcome::Confirmed)
            || !outcomes.contains(&Outcome::Confirmed);
        for outcome in outcomes.iter().filter(|outcome| **outcome != Outcome::Confirmed) {
            // The broker removes the bindings first, so a message may still find the exchange, and no queue.
            let is_unbound = outcome.error().is_some_and(|error| error.contains("has no queue"));
            assert!(is_unbound || outcome.failure_kind() == Some("unavailable"), "{outcome:?}");
        }
        waiting.extend(unconfirmed(batch, &outcomes));
        batches += 1;
    }
    assert!(batches > 3);
    server.declare("deleted", "k").await;
    // Messages that were on their way to the closed channel can make the broker close the connection too, under the
    // next batch. Batches fail until the next connection.
    let started = Instant::now();
    while !waiting.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(10), "{} are still unconfirmed", waiting.len());
        let outcomes = send(&sink, waiting.clone()).await;
        for outcome in &outcomes {
            assert!(matches!(outcome.failure_kind(), None | Some("unavailable")), "{outcome:?}");
        }
        waiting = unconfirmed(waiting, &outcomes);
        sleep(Duration::from_millis(100)).await;
    }
    let mut got = ids(&server.drain("deleted").await);
    let arrived = got.len();
    got.dedup();
    assert_eq!(got.len(), batches * 400);
    assert!(
        arrived - got.len() <= 800,
        "only what was under way on a channel or connection that was closed may come twice"
    );
}
