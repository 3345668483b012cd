//! Messages without a delay do not wait.

use std::time::Duration;

use lapin::{
    BasicProperties,
    options::BasicPublishOptions,
    types::{AMQPValue, FieldTable},
};
use tokio::time::interval;

use super::{Migrated, table};
use crate::support::{receiver::wall_clock, scale::rounds};

/// Published at 1,000 a second.
const COUNT: usize = 2000;
/// A release build on a quiet machine takes 7 and 15 ms, most of them between two claims. Tests run in debug builds on
/// machines that are busy with other tests. The median of what polls once a second is 500.
const MEDIAN: u64 = 200;
/// In the plain run: no message waits for a second poll.
const P99: [u64; 2] = [1900, 750];

/// Each half of them without a header, and with a delay of 0.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn messages_without_a_delay_pass_at_once() {
    let migrated = Migrated::shared().await;
    let punctual = migrated.punctual().await;
    let publish = async {
        let channel = migrated.broker.channel().await;
        let mut every = interval(Duration::from_millis(1));
        for n in 0..COUNT {
            every.tick().await;
            let headers = if n % 2 == 0 { FieldTable::default() } else { table(&[("x-delay", AMQPValue::LongInt(0))]) };
            let properties = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
            let sent = wall_clock().to_string();
            let options = BasicPublishOptions::default();
            channel.basic_publish("mails".into(), "k".into(), options, sent.as_bytes(), properties).await.unwrap();
        }
    };
    let (got, ()) = tokio::join!(migrated.consume("mails.out", COUNT), publish);
    let sent = |data: &[u8]| std::str::from_utf8(data).unwrap().parse::<u64>().unwrap();
    let mut took: Vec<u64> = got.iter().map(|(arrived, it)| arrived.saturating_sub(sent(&it.data))).collect();
    took.sort_unstable();
    let (median, p99) = (took[COUNT / 2], took[COUNT * 99 / 100]);
    assert!(median < MEDIAN && p99 < rounds(P99[0], P99[1]), "median {median} ms, p99 {p99} ms\n{}", punctual.log());
}
