//! Flows that wait for the capacity of an instance, and repairs of flows.

use punctual::{
    store::{ClaimRequest, PARKED, Store},
    time::UnixMillis,
};

use super::{
    bench::Bench,
    content::LONG_AGO,
    rows::key,
    scene::{NEW, claim, partition},
};

#[tokio::test]
async fn a_flow_that_waits_for_capacity_stays_open_since_its_time_and_is_overdue() {
    let mut bench = Bench::start().await;
    let store = bench.of_kind("flows");
    bench.set("claim, flows").await;
    // The due messages go first: only the flow with an open gate and a parked message is left.
    store
        .purge_pending(&partition(), Some(&["due", "failed", "suspect", "orphan"].map(super::bench::id)), 9, false)
        .await
        .expect("purged");
    let stats = store.stats(&partition()).await.expect("numbers");
    assert_eq!((stats.due, stats.parked), (0, 3));
    assert_eq!(stats.oldest_due.map(UnixMillis::get), Some(LONG_AGO), "it could leave since then");

    let first = store.claim(&partition(), ClaimRequest { limit: 1, ..claim(NEW, 1) }).await.expect("claimed");
    assert_eq!(first.messages.len(), 1);
    assert_eq!(bench.rows(&partition()).await.flow.gates["b"], LONG_AGO, "no capacity for the next one");
}

#[tokio::test]
async fn all_parked_messages_of_one_due_time_are_looked_at_for_repairs() {
    /// More than a call looks at.
    const COUNT: u64 = 250;
    let mut bench = Bench::start().await;
    let store = bench.of_kind("flows");
    bench.set("claim, flows").await;
    assert_eq!(store.tidy(&partition()).await, Ok(0));
    let mut pipe = redis::pipe();
    for n in 0..COUNT {
        pipe.zadd(key(&partition(), "pending"), format!("lost-{n}"), PARKED + LONG_AGO);
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    assert_eq!(store.tidy(&partition()).await, Ok(COUNT), "no claim would look for them");
}
