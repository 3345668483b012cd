//! A part of a broker that fails alone: a queue, a routing key, a message.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures::future::join_all;
use lapin::ExchangeKind;
use punctual::{
    config::Period,
    connector::rabbitmq::RabbitMqSinkSettings,
    sink::{Delivery, Outcome, Report, Sink, template::Allow},
};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{sleep, timeout},
};

use super::{message, messages, sink};
use crate::support::{
    RabbitMq,
    rabbitmq::{Got, durable, key, template},
    reports, send,
};

/// Error of a connection on which something was sent to a closed channel.
pub const CHANNEL_ERROR: &str = "CHANNEL_ERROR - expected 'channel.open'";
/// Maximum number of tries of a batch that loses its connection in that way.
const MAX_TRIES: usize = 5;

/// How often each id arrived.
fn copies(got: &[Got]) -> BTreeMap<&str, usize> {
    got.iter().fold(BTreeMap::new(), |mut copies, one| {
        *copies.entry(&*one.id).or_default() += 1;
        copies
    })
}

fn most_copies(got: &[Got]) -> usize {
    copies(got).into_values().max().unwrap_or_default()
}

/// The settings with this user, which has its name as password.
fn as_user(name: &str, config: RabbitMqSinkSettings) -> RabbitMqSinkSettings {
    let mut config = config;
    config.username = Some(name.into());
    config.password = Some(name.into());
    config
}

async fn confirmed(outcomes: &mut UnboundedReceiver<punctual::sink::Reported>, count: usize) {
    for n in 0..count {
        let reported = outcomes.recv().await.expect("an outcome");
        assert_eq!(reported.outcome, Outcome::Confirmed, "{n}: {reported:?}");
    }
}

#[tokio::test]
async fn the_domain_is_the_exchange_and_routing_key_unless_both_are_constant() {
    let server = RabbitMq::shared().await;
    server.declare("domains", "a").await;
    let sink_to = |exchange: &str, name: Option<&str>| {
        let allow = Allow::new(["domains/*"]).expect("valid patterns");
        sink(&RabbitMqSinkSettings {
            exchange: template(exchange),
            routing_key: name.map(key),
            allow,
            ..server.config("")
        })
    };
    let batch = || vec![message("m1", "a"), message("m2", "nowhere")];
    let domains = async |sink: &dyn Sink| {
        reports(sink, batch())
            .await
            .into_iter()
            .map(|(domain, outcome)| (domain.map(|domain| domain.to_string()), outcome.failure_kind()))
            .collect::<Vec<_>>()
    };
    let named = [(Some("domains/a".to_owned()), None), (Some("domains/nowhere".to_owned()), Some("failed"))];
    assert_eq!(domains(&sink_to("domains", None)).await, named);
    assert_eq!(domains(&sink_to("domains", Some("a"))).await, [(None, None), (None, None)]);
    let templated = sink(&RabbitMqSinkSettings {
        exchange: template("{header:X-Exchange}"),
        routing_key: None,
        allow: Allow::new(["domains/*"]).expect("valid patterns"),
        ..server.config("")
    });
    let mut one = message("m3", "a");
    one.metadata.headers.insert("X-Exchange".into(), "domains".into());
    assert_eq!(templated.domain(&one).as_deref(), Some("domains/a"));
    assert_eq!(reports(&templated, vec![one]).await, [(Some("domains/a".into()), Outcome::Confirmed)]);
}

#[tokio::test]
async fn a_queue_that_confirms_nothing_delays_no_other_and_closes_no_connection() {
    let server = RabbitMq::shared().await;
    server.declare("two-queues", "good").await;
    server.declare_queue("two-queues-hung", "two-queues", "hung", durable()).await;
    server.add_user("two-queues", "two-queues", "").await;
    let mut config = as_user("two-queues", server.config("two-queues"));
    config.timeout = Period(Duration::from_secs(3));
    let sink = &sink(&config);
    assert_eq!(send(sink, messages("before", 10, "good")).await, vec![Outcome::Confirmed; 10]);
    let connections = async || {
        let all = server.ctl(&["list_connections", "user", "pid"]).await;
        all.lines().filter(|line| line.starts_with("two-queues")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = connections().await;
    server.suspend_queue("two-queues-hung").await;
    for round in 0..2 {
        let mut batch = messages(&format!("good-{round}-"), 200, "good");
        for n in 0..4 {
            batch.insert(n * 50, message(&format!("hung-{round}-{n}"), "hung"));
        }
        let (report, mut outcomes) = Report::channel();
        let watching = async {
            // While the others are awaited.
            timeout(Duration::from_secs(1), confirmed(&mut outcomes, 200)).await.expect("at once");
            let mut late = Vec::new();
            while let Some(reported) = outcomes.recv().await {
                late.push((reported.domain.map(|domain| domain.to_string()), reported.outcome.failure_kind()));
            }
            assert_eq!(late, vec![(Some("two-queues/hung".to_owned()), Some("unavailable")); 4]);
        };
        // Other batches do not wait for a channel in that time.
        let beside = join_all((0..8).map(|n| async move {
            let batch = messages(&format!("beside-{round}-{n}-"), 10, "good");
            timeout(Duration::from_secs(1), send(sink, batch)).await.expect("at once")
        }));
        let ((), (), beside) = tokio::join!(sink.send(batch, report), watching, beside);
        assert!(beside.iter().flatten().all(|outcome| *outcome == Outcome::Confirmed), "{beside:?}");
    }
    assert_eq!(before.len(), 1);
    assert_eq!(connections().await, before, "the same connection");
    server.resume_queue("two-queues-hung").await;
    assert_eq!(send(sink, messages("after", 10, "hung")).await, vec![Outcome::Confirmed; 10]);
    let got = server.drain("two-queues").await;
    assert_eq!((got.len(), most_copies(&got)), (10 + 2 * 280, 1), "each once");
    assert_eq!(most_copies(&server.drain("two-queues-hung").await), 1);
}

/// RabbitMQ reads nothing more from a connection on which a channel has some hundreds of them.
#[tokio::test]
async fn confirms_that_never_come_hold_up_nothing_however_many_there_are() {
    let server = RabbitMq::shared().await;
    server.declare("many-hung", "good").await;
    server.declare_queue("many-hung-hung", "many-hung", "hung", durable()).await;
    let mut config = server.config("many-hung");
    config.timeout = Period(Duration::from_secs(1));
    let sink = sink(&config);
    server.suspend_queue("many-hung-hung").await;
    for round in 0..6 {
        let mut batch = messages(&format!("hung-{round}-"), 200, "hung");
        batch.push(message(&format!("good-{round}"), "good"));
        let outcomes = send(&sink, batch).await;
        assert_eq!(outcomes[200], Outcome::Confirmed, "{round}");
        assert!(outcomes[..200].iter().all(|outcome| outcome.failure_kind() == Some("unavailable")), "{round}");
    }
    server.resume_queue("many-hung-hung").await;
    assert_eq!(server.drain("many-hung").await.len(), 6);
}

#[tokio::test]
async fn no_unroutable_message_is_confirmed_beside_a_queue_that_hangs() {
    const BATCHES: usize = 6;
    const MESSAGES: usize = 900;
    let server = RabbitMq::shared().await;
    server.declare("three-ways", "good").await;
    server.declare_queue("three-ways-hung", "three-ways", "hung", durable()).await;
    let mut config = server.config("three-ways");
    config.timeout = Period(Duration::from_secs(10));
    let sink = &sink(&config);
    server.suspend_queue("three-ways-hung").await;
    let key = |n: usize| match (n * 7919 + n / 13) % 64 {
        0 => "hung",
        1..32 => "nowhere",
        _ => "good",
    };
    let batches = join_all((0..BATCHES).map(|batch| {
        send(sink, (0..MESSAGES).map(|n| message(&format!("{batch}-{n}"), key(n))).collect::<Vec<Delivery>>())
    }))
    .await;
    server.resume_queue("three-ways-hung").await;
    let mut expected = HashSet::new();
    for (batch, outcomes) in batches.iter().enumerate() {
        for (n, outcome) in outcomes.iter().enumerate() {
            let kind = match key(n) {
                "hung" => Some("unavailable"),
                "nowhere" => Some("failed"),
                _ => None,
            };
            assert_eq!(outcome.failure_kind(), kind, "{batch}-{n}: {outcome:?}");
            if kind.is_none() {
                expected.insert(format!("{batch}-{n}"));
            }
        }
    }
    let got = server.drain("three-ways").await;
    assert_eq!(got.len(), expected.len());
    assert_eq!(got.into_iter().map(|got| got.id).collect::<HashSet<_>>(), expected);
}

#[tokio::test]
async fn a_forbidden_routing_key_is_rejected_and_no_other_is_sent_over_twice() {
    let server = RabbitMq::shared().await;
    for exchange in ["forbidding", "forbidding-too"] {
        server.declare_exchange_of(ExchangeKind::Topic, exchange).await;
        server.declare_queue(exchange, exchange, "#", durable()).await;
    }
    server.add_user("partial", "forbidding", "^good").await;
    server.permit("partial", "", "forbidding.*", "").await;
    server.permit_topics("partial", "forbidding-too", "^good").await;
    let constant = as_user("partial", server.config("forbidding"));
    let templated = RabbitMqSinkSettings {
        exchange: template("{header:X-Other}"),
        routing_key: None,
        allow: Allow::new(["forbidding*/*"]).expect("valid patterns"),
        ..constant.clone()
    };
    for (config, queue) in [(constant, "forbidding"), (templated, "forbidding-too")] {
        let sink = sink(&config);
        let keyed = |id: String, key: &str| {
            let mut one = message(&id, key);
            one.metadata.headers.insert("X-Other".into(), queue.into());
            one
        };
        for round in 0..2 {
            let mut batch: Vec<_> = (0..300).map(|n| keyed(format!("{round}-{n}"), "good.one")).collect();
            for place in [0, 60, 61, 150, 303] {
                batch.insert(place, keyed(format!("bad-{round}-{place}"), "bad.one"));
            }
            for (delivery, (domain, outcome)) in batch.clone().iter().zip(reports(&sink, batch).await) {
                let is_good = !delivery.id.as_str().starts_with("bad");
                let expected = format!("{queue}/{}.one", if is_good { "good" } else { "bad" });
                assert_eq!(domain.as_deref(), Some(&*expected));
                assert_eq!(outcome.failure_kind(), (!is_good).then_some("rejected"), "{}: {outcome:?}", delivery.id);
                assert!(is_good || outcome.error().unwrap().contains("topic 'bad.one'"), "{outcome:?}");
            }
            let got = server.drain(queue).await;
            println!("{queue}: {} copies of 300 beside 5 that are forbidden", got.len());
            assert_eq!(copies(&got).len(), 300);
            assert!(most_copies(&got) <= 2, "{:?}", copies(&got));
            // A routing key that was refused once is sent apart.
            assert!(round == 0 || got.len() == 300, "{} copies", got.len());
        }
    }
}

#[tokio::test]
async fn a_message_too_large_among_255_good_ones_costs_at_most_two_copies() {
    let server = RabbitMq::small().await;
    server.declare("too-large", "k").await;
    let sink = sink(&server.config("too-large"));
    for place in [0, 1, 100, 255] {
        let mut batch = messages(&format!("good-{place}-"), 255, "k");
        let mut broken = message("broken", "k");
        broken.payload = vec![7; 10_001].into();
        batch.insert(place, broken);
        let mut tries = 1;
        let outcomes = loop {
            let outcomes = send(&sink, batch.clone()).await;
            if tries == MAX_TRIES || !outcomes.iter().any(is_lost_with_its_channel) {
                break outcomes;
            }
            tries += 1;
            while sink.check().await.is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        for (index, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.failure_kind(), (index == place).then_some("rejected"), "{index}: {outcome:?}");
        }
        let got = server.drain("too-large").await;
        println!("{} copies of 255 with a broken one at {place}, {tries} tries", got.len());
        assert_eq!(copies(&got).len(), 255);
        assert!(most_copies(&got) <= 2 * tries, "{tries} tries: {:?}", copies(&got));
    }
}

/// The client library wrote what was queued for a channel after it had agreed to close it: the broker closed the connection.
fn is_lost_with_its_channel(outcome: &Outcome) -> bool {
    outcome.error().is_some_and(|error| error.contains(CHANNEL_ERROR))
}

#[tokio::test]
async fn headers_that_do_not_fit_into_a_frame_are_rejected_and_not_sent() {
    let server = RabbitMq::small().await;
    server.declare("small-frames", "k").await;
    let sink = sink(&server.config("small-frames"));
    let with_header = |id: &str, bytes: usize| {
        let mut one = message(id, "k");
        one.metadata.headers.insert("X-Large".into(), "x".repeat(bytes));
        one
    };
    // How many bytes of one header still fit.
    let outcomes = send(&sink, (7000..8200).map(|bytes| with_header(&format!("m{bytes}"), bytes)).collect()).await;
    let fit = outcomes.iter().filter(|outcome| **outcome == Outcome::Confirmed).count();
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.failure_kind(), (n >= fit).then_some("rejected"), "{n}: {outcome:?}");
        assert!(n < fit || outcome.error().unwrap().contains("the broker takes 8192"), "{outcome:?}");
    }
    println!("{} bytes in one header fit into a frame of 8192", 7000 + fit - 1);
    assert!(fit > 500, "{fit}");
    // A body takes as many frames as it needs.
    let mut large = message("large", "k");
    large.payload = vec![7; 10_000].into();
    assert_eq!(send(&sink, vec![large]).await, [Outcome::Confirmed]);
    let got = server.drain("small-frames").await;
    assert_eq!((got.len(), most_copies(&got)), (fit + 1, 1), "no connection was lost");
}
