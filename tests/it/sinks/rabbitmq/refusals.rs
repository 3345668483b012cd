//! Messages that a broker refuses: a single one, or all of them.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable, LongString};
use punctual::{
    message::Properties,
    sink::{Delivery, Outcome, Sink},
};
use tokio::time::{Instant, sleep};

use super::{ids, kinds, message, messages, sink};
use crate::support::{
    RabbitMq,
    rabbitmq::{durable, template},
    send, send_one,
};

/// Maximum time until a closed connection is made anew, on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// `RabbitMq::small` closes the channel over it.
fn poison(id: &str) -> Delivery {
    let mut poison = message(id, "k");
    poison.payload = vec![7; 10_001].into();
    poison
}

#[tokio::test]
async fn what_would_close_the_channel_is_refused_before_it_is_published() {
    let server = RabbitMq::shared().await;
    server.declare("known", "k").await;
    let sink = sink(&server.config("known"));
    let with_header = |id: &str, name: &str| {
        let mut one = message(id, "k");
        one.metadata.headers.insert(name.into(), "elsewhere".into());
        one
    };
    let mut reply = message("reply", "k");
    let properties = Properties { reply_to: Some("amq.rabbitmq.reply-to".into()), ..Properties::default() };
    reply.metadata.properties = Some(Box::new(properties));
    let bad = [with_header("cc", "CC"), with_header("bcc", "BCC"), reply];
    let mut batch = messages("good", 300, "k");
    batch.splice(100..100, bad);
    let outcomes = send(&sink, batch).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        let expected = (100..103).contains(&index).then_some("rejected");
        assert_eq!(outcome.failure_kind(), expected, "{index}: {outcome:?}");
        if let Some(error) = outcome.error() {
            assert!(error.ends_with(": RabbitMQ closes the channel over it"), "{error}");
        }
    }
    assert_eq!(server.drain("known").await.len(), 300, "none was published again");
}

/// The outcomes once none is `unavailable`: those messages are sent again, as the scheduler does. A busy machine may
/// publish on a channel that the broker has just closed, over which it closes the connection.
async fn settled(sink: &dyn Sink, batch: Vec<Delivery>) -> Vec<Outcome> {
    let mut outcomes = send(sink, batch.clone()).await;
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        let is_lost = |n: &usize| outcomes[*n].failure_kind() == Some("unavailable");
        let lost: Vec<usize> = (0..batch.len()).filter(is_lost).collect();
        if lost.is_empty() {
            return outcomes;
        }
        assert!(Instant::now() < deadline, "{} are unavailable, the first {:?}", lost.len(), outcomes[lost[0]]);
        sleep(Duration::from_millis(20)).await;
        let again = lost.iter().map(|n| batch[*n].clone()).collect();
        for (n, outcome) in lost.into_iter().zip(send(sink, again).await) {
            outcomes[n] = outcome;
        }
    }
}

#[tokio::test]
async fn what_makes_the_broker_close_the_channel_is_rejected_alone() {
    let server = RabbitMq::small().await;
    server.declare("poisoned", "k").await;
    let sink = sink(&server.config("poisoned"));
    assert_eq!(settled(&sink, vec![poison("alone")]).await[0].failure_kind(), Some("rejected"));
    let mut batch = messages("good", 300, "k");
    batch.insert(137, poison("bad-1"));
    batch.insert(138, poison("bad-2"));
    let outcomes = settled(&sink, batch).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        let expected = if index == 137 || index == 138 { Some("rejected") } else { None };
        assert_eq!(outcome.failure_kind(), expected, "{index}: {outcome:?}");
    }
    let mut got = ids(&server.drain("poisoned").await);
    got.dedup();
    assert_eq!(got.len(), 300);
}

#[tokio::test]
async fn what_amqp_cannot_carry_is_rejected_and_the_others_arrive() {
    let server = RabbitMq::shared().await;
    server.declare("carried", "k").await;
    let batch = vec![message("long-key", &"k".repeat(256)), message("fits", "k")];
    assert_eq!(kinds(&send(&sink(&server.config("carried")), batch).await), [Some("rejected"), None]);
    assert_eq!(ids(&server.drain("carried").await), ["fits"]);
}

#[tokio::test]
async fn a_queue_that_is_full_refuses_by_nack_which_counts_as_failed() {
    let server = RabbitMq::shared().await;
    server.declare_exchange("full").await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(10));
    arguments.insert("x-overflow".into(), AMQPValue::LongString(LongString::from("reject-publish")));
    server.declare_queue_with("full", "full", "k", durable(), arguments).await;
    let outcomes = send(&sink(&server.config("full")), messages("m", 50, "k")).await;
    let confirmed: Vec<String> =
        (0..50).filter(|n| outcomes[*n] == Outcome::Confirmed).map(|n| format!("m{n}")).collect();
    let refused = outcomes.iter().filter(|outcome| outcome.failure_kind() == Some("failed")).count();
    assert!(confirmed.len() >= 10 && confirmed.len() + refused == 50, "{outcomes:?}");
    let mut confirmed = confirmed;
    confirmed.sort();
    assert_eq!(ids(&server.drain("full").await), confirmed);
}

#[tokio::test]
async fn a_wrong_password_user_or_virtual_host_is_unavailable_and_reported() {
    let server = RabbitMq::shared().await;
    let mut config = server.config("amq.direct");
    config.username = Some("guest".into());
    config.password = Some("hunter2".into());
    let mut wrong_host = server.config("amq.direct");
    wrong_host.url = format!("amqp://127.0.0.1:{}/no-such", server.port()).into();
    for (config, expected) in [(config, "ACCESS_REFUSED"), (wrong_host, "no-such")] {
        let sink = sink(&config);
        let outcome = send_one(&sink).await;
        assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
        for error in [outcome.error().unwrap().to_owned(), sink.check().await.unwrap_err()] {
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
        let remedy = sink.check().await.unwrap_err().ends_with(": create it with `rabbitmqctl add_vhost no-such`");
        assert_eq!(remedy, expected == "no-such");
    }
}

#[tokio::test]
async fn user_and_password_beside_the_url_are_used() {
    let server = RabbitMq::shared().await;
    server.create_user("pünktlich", "p@ss/wörd:%").await;
    server.permit("pünktlich", "", "amq\\..*", "").await;
    let mut config = server.config("amq.direct");
    config.username = Some("pünktlich".into());
    config.password = Some("p@ss/wörd:%".into());
    assert_eq!(send_one(&sink(&config)).await.failure_kind(), Some("failed"));
    // Its rights end here: the broker refuses, and nothing counts.
    config.exchange = template("foreign");
    config.routing_key = None;
    let outcome = send_one(&sink(&config)).await;
    assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
    server.declare_exchange("foreign").await;
    let outcome = send_one(&sink(&config)).await;
    assert_eq!(outcome.failure_kind(), Some("unavailable"), "{outcome:?}");
    assert!(outcome.error().unwrap().contains("ACCESS_REFUSED"), "{outcome:?}");
}
