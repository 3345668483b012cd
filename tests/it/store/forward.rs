//! Dead letters in the outbox, as a forwarder takes them.

use std::time::Duration;

use punctual::store::redis::{Outgoing, Turn};

use super::{
    bench::Bench,
    content::{FAR_AHEAD, LONG_AGO},
    rows::key,
    scene::partition,
};

/// Time until a forwarder takes a dead letter again.
const AGAIN: Duration = Duration::from_mins(1);

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

#[tokio::test]
async fn a_turn_ends_for_what_was_taken_and_has_not_died_again() {
    for (turn, waiting, left) in [(Turn::Keep, 1, true), (Turn::Purge, 1, false), (Turn::Again(AGAIN), 2, true)] {
        let mut bench = Bench::start().await;
        bench.set("forward").await;
        let taken = bench.store.take_outbox(&partition()).await.expect("taken").taken;
        let stale: Vec<_> = taken.iter().map(|one| Outgoing::taken(one.id.clone(), LONG_AGO, one.died)).collect();
        let before = bench.dump().await;
        bench.store.end_turn(&partition(), &stale, turn).await.expect("ended");
        assert_eq!(bench.dump().await, before, "another one took it since");

        bench.store.end_turn(&partition(), &taken, turn).await.expect("ended");
        let rows = bench.rows(&partition()).await;
        let is_left =
            [rows.dead.get("dead").is_some(), rows.bodies.contains_key("dead"), rows.errors.contains_key("dead")];
        assert_eq!((rows.outbox.len(), is_left), (waiting, [left; 3]), "{turn:?}");
    }
}

#[tokio::test]
async fn what_died_again_since_it_was_taken_is_not_deleted() {
    let mut bench = Bench::start().await;
    bench.set("forward").await;
    let taken = bench.store.take_outbox(&partition()).await.expect("taken").taken;
    let later = redis::cmd("ZADD").arg(key(&partition(), "dead")).arg(LONG_AGO + 5).arg("dead").to_owned();
    later.exec_async(&mut bench.raw).await.expect("written");
    bench.store.end_turn(&partition(), &taken, Turn::Purge).await.expect("ended");
    let rows = bench.rows(&partition()).await;
    assert!(rows.dead.get("dead").is_some() && rows.bodies.contains_key("dead"), "{rows:?}");
}
