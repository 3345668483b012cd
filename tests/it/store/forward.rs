//! Dead letters in the outbox, as a forwarder takes them.

use std::time::Duration;

use super::{
    bench::Bench,
    content::{FAR_AHEAD, LONG_AGO},
    scene::partition,
};

#[tokio::test]
async fn a_dead_letter_is_taken_with_its_body_its_failures_and_its_error() {
    let mut bench = Bench::start().await;
    bench.set("forward").await;
    let rows = bench.rows(&partition()).await;
    let now = bench.micros().await / 1000;
    let outbox = bench.store.take_outbox(&partition()).await.expect("taken");
    assert_eq!(outbox.waiting, 2, "one is for later, and one is no longer dead");
    let next = FAR_AHEAD - now;
    let range = Duration::from_millis(next - 5000)..=Duration::from_millis(next);
    assert!(outbox.next.is_some_and(|next| range.contains(&next)), "{outbox:?}");
    let [one] = &outbox.taken[..] else { panic!("one is dead: {outbox:?}") };
    assert_eq!((one.id.as_str(), one.died, one.failures), ("dead", LONG_AGO, 1));
    assert_eq!((&*one.error, &one.body), ("rejected: what happened to dead", &rows.bodies["dead"]));
    assert!(bench.store.take_outbox(&partition()).await.expect("an answer").taken.is_empty(), "it is held");
}
