//! A broker that is in trouble, and comes back.

use std::time::Duration;

use punctual::{
    config::Period,
    sink::{Delivery, Outcome, Sink},
};
use tokio::time::{Instant, sleep, timeout};

use super::{ids, message, messages, sink, unconfirmed};
use crate::support::{
    RabbitMq,
    proxy::{Mode, Proxy},
    rabbitmq, send, send_one,
};

/// Maximum time until a sink delivers again, once it can.
const RECOVERY: Duration = Duration::from_secs(30);

/// Maximum time until a sink delivers again after a silence. Its connection gets no notice that the silence has ended:
/// it is probed, and cut when it does not answer.
const SILENCE_RECOVERY: Duration = Duration::from_secs(12);

/// Sends again and again, as the scheduler's probes do, until nothing is left.
async fn send_until_confirmed(sink: &dyn Sink, mut waiting: Vec<Delivery>) {
    let sending = async {
        while !waiting.is_empty() {
            let outcomes = send(sink, waiting.clone()).await;
            for outcome in outcomes.iter().filter(|outcome| **outcome != Outcome::Confirmed) {
                assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
            }
            waiting = unconfirmed(std::mem::take(&mut waiting), &outcomes);
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(RECOVERY, sending).await.expect("it delivers again");
}

#[tokio::test]
async fn a_memory_alarm_is_unavailable_without_a_hang_and_goes_on_afterwards() {
    let server = RabbitMq::troubled().await;
    server.declare("alarm", "k").await;
    let mut config = server.config("alarm");
    config.timeout = Period(Duration::from_secs(2));
    let sink = sink(&config);
    assert_eq!(send(&sink, messages("before", 10, "k")).await, vec![Outcome::Confirmed; 10]);
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "1"]).await;
    // The alarm is raised when the broker next checks its memory; the first batch notices it by sending.
    let mut blocked = vec![];
    let alarmed = async {
        while blocked.is_empty() {
            let batch = messages("during", 10, "k");
            let outcomes = send(&sink, batch.clone()).await;
            for outcome in outcomes.iter().filter(|outcome| **outcome != Outcome::Confirmed) {
                assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
                assert!(outcome.error().unwrap().contains("low on memory"), "{outcome:?}");
            }
            blocked = unconfirmed(batch, &outcomes);
        }
    };
    timeout(RECOVERY, alarmed).await.expect("the alarm is felt");
    let started = Instant::now();
    assert_eq!(send(&sink, vec![message("while", "k")]).await[0].failure_kind(), Some("unavailable"));
    assert!(started.elapsed() < Duration::from_millis(500), "what is known to be blocked is not waited for");
    server.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    let outstanding = blocked.len();
    send_until_confirmed(&sink, blocked).await;
    send_until_confirmed(&sink, vec![message("after", "k")]).await;
    sink.close().await;
    let mut got = ids(&server.drain("alarm").await);
    let arrived = got.len();
    got.dedup();
    assert!(got.contains(&"after".into()));
    assert_eq!(got.iter().filter(|id| id.starts_with("during")).count(), 10);
    assert!(!got.contains(&"while".into()), "it was never sent");
    // The batch before the alarm may have gone through under the same ids.
    assert!(arrived - got.len() <= 2 * outstanding.max(10) + 10, "{arrived} for {}", got.len());
}

#[tokio::test]
async fn a_blocked_connection_can_be_closed() {
    let server = RabbitMq::troubled().await;
    server.declare("blocked-close", "k").await;
    let mut config = server.config("blocked-close");
    config.timeout = Period(Duration::from_secs(1));
    let sink = sink(&config);
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "1"]).await;
    let blocked = async { while send(&sink, messages("m", 1, "k")).await[0] == Outcome::Confirmed {} };
    timeout(RECOVERY, blocked).await.expect("the alarm is felt");
    timeout(Duration::from_secs(3), sink.close()).await.expect("it closes");
    server.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
}

#[tokio::test]
async fn a_broker_that_hangs_is_unavailable_in_time_and_delivers_afterwards() {
    let server = RabbitMq::shared().await;
    server.declare("silent", "k").await;
    let proxy = Proxy::start(server.port());
    let mut config = rabbitmq::config(proxy.port(), "silent");
    config.timeout = Period(Duration::from_secs(2));
    let sink = sink(&config);
    send_until_confirmed(&sink, messages("before", 10, "k")).await;
    proxy.set(Mode::BlackHole).await;
    let outcomes = send(&sink, messages("during", 700, "k")).await;
    for outcome in &outcomes {
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "no attempt counts: {outcome:?}");
    }
    proxy.set(Mode::Pass).await;
    let sending = send_until_confirmed(&sink, messages("during", 700, "k"));
    timeout(SILENCE_RECOVERY, sending).await.expect("it delivers again soon");
    assert_eq!(server.drain("silent").await.len(), 710, "what was swallowed did not arrive");
}

#[tokio::test]
async fn a_connection_closed_by_the_broker_is_made_anew() {
    let server = RabbitMq::troubled().await;
    server.declare("closed", "k").await;
    let sink = sink(&server.config("closed"));
    assert_eq!(send(&sink, messages("a", 100, "k")).await, vec![Outcome::Confirmed; 100]);
    let closing = server.ctl(&["close_all_connections", "for a test"]);
    let sending = async {
        for n in 0..20 {
            send_until_confirmed(&sink, messages(&format!("b{n}-"), 100, "k")).await;
        }
    };
    tokio::join!(closing, sending);
    send_until_confirmed(&sink, messages("c", 100, "k")).await;
    sink.close().await;
    let mut got = ids(&server.drain("closed").await);
    let arrived = got.len();
    got.dedup();
    assert_eq!(got.len(), 2200);
    assert!(arrived - got.len() <= 100, "{arrived} for {}", got.len());
}

#[tokio::test]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_broker_killed_and_restarted_in_the_middle_of_2000_loses_none() {
    let mut server = RabbitMq::troubled().await;
    server.declare("killed", "k").await;
    let sink = sink(&server.config("killed"));
    let mut waiting = Vec::new();
    for n in 0..10 {
        let batch = messages(&format!("{n}-"), 200, "k");
        let outcomes = if n == 5 {
            let sending = send(&sink, batch.clone());
            let killing = async {
                sleep(Duration::from_millis(2)).await;
                server.kill();
            };
            tokio::join!(sending, killing).0
        } else {
            send(&sink, batch.clone()).await
        };
        for outcome in &outcomes {
            assert!(matches!(outcome.failure_kind(), None | Some("unavailable")), "{outcome:?}");
        }
        waiting.extend(unconfirmed(batch, &outcomes));
    }
    assert!(waiting.len() >= 800, "what follows the kill is unavailable: {}", waiting.len());
    let started = Instant::now();
    assert_eq!(send_one(&sink).await.failure_kind(), Some("unavailable"));
    assert!(started.elapsed() < Duration::from_secs(1), "a broker that is known to be down is not waited for");
    server.restart().await;
    send_until_confirmed(&sink, waiting).await;
    sink.close().await;
    let mut got = ids(&server.drain("killed").await);
    let arrived = got.len();
    got.dedup();
    assert_eq!(got.len(), 2000);
    assert!(arrived - got.len() <= 200, "{arrived} for {}", got.len());
}

#[tokio::test]
async fn a_sink_that_was_closed_stays_closed() {
    let server = RabbitMq::shared().await;
    server.declare("stays-closed", "k").await;
    let sink = sink(&server.config("stays-closed"));
    assert_eq!(send(&sink, messages("m", 1, "k")).await, [Outcome::Confirmed]);
    sink.close().await;
    assert_eq!(send(&sink, messages("m", 1, "k")).await[0].failure_kind(), Some("unavailable"));
}
