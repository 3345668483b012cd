//! Records as a consumer gets them.

use punctual::sink::{Delivery, Outcome};

use super::{TIMEOUT, Topic};
use crate::support::{delivery, send};

#[tokio::test]
async fn a_record_has_key_value_and_headers_and_nothing_else() {
    let Some(topic) = Topic::create(1, &[]).await else { return };
    let whole = delivery("whole", "the payload");
    let mut bare = delivery("bare", "");
    bare.metadata = punctual::message::Metadata::default();
    let sink = topic.sink(TIMEOUT, &[]);
    for delivery in [whole, bare] {
        assert_eq!(send(&sink, vec![delivery]).await, [Outcome::Confirmed]);
    }
    let [whole, bare] = topic.records().await.try_into().expect("two records");
    let text = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(whole.key.as_deref(), Some(b"customer 7".as_slice()));
    assert_eq!(whole.payload.as_deref(), Some(b"the payload".as_slice()));
    let ours = |id| {
        [
            ("punctual-id", id),
            ("punctual-route", "orders"),
            ("punctual-attempt", "3"),
            ("punctual-due", "1700000000123"),
        ]
    };
    let users = [("X-Trace", "abc é"), ("X-Other", "1"), ("content-type", "application/x-test")];
    assert_eq!(whole.headers, text(&[&users[..], &ours("whole")].concat()));
    assert_eq!(bare.key, None);
    assert_eq!(bare.payload.as_deref(), Some(b"".as_slice()), "an empty value, not a tombstone");
    assert_eq!(bare.headers, text(&ours("bare")));
}

#[tokio::test]
async fn a_key_lands_in_the_partition_where_a_java_producer_puts_it() {
    const PARTITIONS: i32 = 10;
    // Kafka's own UtilsTest.testMurmur2; its partitioner takes the hash without the sign, modulo the partitions.
    let hashes = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ];
    let Some(topic) = Topic::create(PARTITIONS, &[]).await else { return };
    let keyed = |(key, _): &(&str, i32)| {
        let mut delivery = delivery("m", "x");
        delivery.metadata.key = Some((*key).to_owned());
        delivery
    };
    let batch: Vec<Delivery> = hashes.iter().map(keyed).collect();
    assert_eq!(send(&topic.sink(TIMEOUT, &[]), batch).await, vec![Outcome::Confirmed; hashes.len()]);
    let records = topic.records().await;
    for (key, hash) in hashes {
        let record = records.iter().find(|record| record.key.as_deref() == Some(key.as_bytes())).expect(key);
        assert_eq!(record.partition, (hash & 0x7fff_ffff) % PARTITIONS, "{key}");
    }
}

#[tokio::test]
async fn two_routes_on_one_sink_may_use_the_same_ids() {
    let Some(topic) = Topic::create(1, &[]).await else { return };
    let of = |route: &str| {
        let many = (0..100).map(|n| Delivery { route: route.into(), ..delivery(&format!("m{n}"), route.to_owned()) });
        many.collect::<Vec<_>>()
    };
    let sink = topic.sink(TIMEOUT, &[]);
    let (one, two) = tokio::join!(send(&sink, of("one")), send(&sink, of("two")));
    assert!(one.iter().chain(&two).all(|outcome| *outcome == Outcome::Confirmed));
    let mut arrived: Vec<_> = topic
        .records()
        .await
        .into_iter()
        .map(|record| {
            assert_eq!(record.payload.as_deref(), Some(record.header("punctual-route").as_bytes()));
            (record.header("punctual-route").to_owned(), record.id().to_owned())
        })
        .collect();
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 200);
}
