//! Batches and groups of unlike messages.

use super::*;
use crate::{message::LogRecord, store::Order};

#[tokio::test(start_paused = true)]
async fn a_batch_may_mix_conflicts_groups_and_records() {
    let redis = Simulated::start([route()]).await;
    redis.schedule(&["kept", "replaced"]).await;
    let with = |name: &str, on_conflict, group: Option<&str>, offset: Option<u64>| NewMessage {
        on_conflict,
        payload: "other".into(),
        metadata: Metadata { group: group.map(str::to_owned), ..Metadata::default() },
        record: offset.map(|offset| LogRecord { place: "t:0".into(), offset, timestamp: 1 }),
        ..message(name)
    };
    let (keep, replace) = (OnConflict::Keep, OnConflict::Replace);
    let batch = [
        with("kept", keep, None, None),
        with("replaced", replace, None, None),
        with("grouped", replace, Some("g"), None),
        with("plain", replace, None, None),
        with("recorded", keep, None, Some(5)),
        with("both", keep, Some("g"), Some(6)),
        with("last", keep, None, None),
    ];
    let statuses = redis.store.schedule(&partition(), &batch).await.unwrap();
    let statuses: Vec<_> = statuses.into_iter().map(|one| one.status).collect();
    let (known, new) = (ScheduleStatus::Exists(State::Pending), ScheduleStatus::Scheduled);
    assert_eq!(statuses, [known, ScheduleStatus::Replaced, new, new, new, new, new]);
    let members = redis.store.members_of_group(&partition(), "g", None, 10).await.unwrap().members;
    assert_eq!(members.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["both", "grouped"]);
    // A record that is read again, or an earlier one, cancels nothing.
    let cancel = |offset| Cancellation {
        record: Some(LogRecord { place: "t:0".into(), offset, timestamp: 1 }),
        ..id("recorded").into()
    };
    assert_eq!(redis.store.cancel(&partition(), &cancel(4)).await, Ok(Cancelled::Known));
    assert_eq!(redis.store.cancel(&partition(), &cancel(7)).await, Ok(Cancelled::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn a_group_says_the_state_of_each_message() {
    let redis = Simulated::start([route()]).await;
    let grouped = |name: &str, due| NewMessage {
        due,
        metadata: Metadata { group: Some("g".into()), ..Metadata::default() },
        ..message(name)
    };
    redis.store.schedule(&partition(), &[grouped("flies", Due::NOW)]).await.unwrap();
    assert_eq!(redis.claim(1).await.len(), 1);
    redis.store.schedule(&partition(), &[grouped("waits", Due::After(1000))]).await.unwrap();
    redis.store.bury(&partition(), Death::INVALID, &[(grouped("died", Due::After(7)), "e".into())]).await.unwrap();
    let members = redis.store.members_of_group(&partition(), "g", None, 10).await.unwrap().members;
    let states: Vec<_> = members.iter().map(|one| (one.id.as_str(), one.state)).collect();
    assert_eq!(states, [("died", State::Dead), ("flies", State::Unack), ("waits", State::Pending)]);
}

#[tokio::test(start_paused = true)]
async fn transfers_of_several_claims_go_each_into_its_list() {
    let limits = Some(HistoryLimits { period: Duration::from_hours(1), max: 100 });
    for history in [None, limits] {
        let redis = Simulated::start([RouteSettings { history, ..route() }]).await;
        redis.schedule(&["a", "b", "c"]).await;
        let mut leases = redis.claim(1).await;
        redis.schedule(&["d", "e"]).await;
        leases.extend(redis.claim(2).await);
        let to = [("a", "one"), ("b", "two"), ("c", "one"), ("d", "one"), ("e", "two")];
        let transfer = |(name, list): &(&str, &str)| Transfer {
            lease: leases.iter().find(|(one, _)| one.id.as_str() == *name).unwrap().1.clone(),
            list: (*list).into(),
            value: (*name).to_owned().into(),
            record: None,
        };
        let transfers: Vec<_> = to.iter().map(transfer).collect();
        assert_eq!(redis.store.transfer(&partition(), &transfers).await, Ok(vec![Transferred::Done; 5]));
        let values = |list: &str| {
            let command = ["LRANGE", list, "0", "-1"].map(|word| word.as_bytes().to_vec());
            let Reply::Array(values) = redis.server.execute(&command) else { panic!("a list") };
            values
        };
        assert_eq!(values("one"), ["a", "c", "d"].map(Reply::bulk));
        assert_eq!(values("two"), ["b", "e"].map(Reply::bulk));
        assert_eq!(redis.store.stats(&partition()).await.unwrap().bytes, 0);
        let ends = redis.store.ends(&partition(), Order::Ascending, EndPlace::Start, 10).await.unwrap().ends;
        assert_eq!(ends.len(), if history.is_some() { 5 } else { 0 });
    }
}
