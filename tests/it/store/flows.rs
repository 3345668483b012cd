//! Flows that wait for the capacity of an instance.

use punctual::{
    store::{ClaimRequest, Store},
    time::UnixMillis,
};

use super::{
    bench::Bench,
    content::LONG_AGO,
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
