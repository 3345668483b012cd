//! Claims that are repeated or overtaken, suspects in front of the others, and what is kept about instances.

use std::time::Duration;

use punctual::{
    message::{Metadata, NewMessage, OnConflict, State, codec},
    store::{
        Claim, ClaimEnd, ClaimRequest, Lease, Settled, Settlement, Store, StoreError, Suspects, Token, Transfer,
        Transferred, redis::RedisStore,
    },
    time::{Due, UnixMillis},
};

use super::{
    arguments::claim,
    bench::{Bench, MAX_PAYLOAD, id, store},
    content::{EXPIRED, FAR_AHEAD},
    rows::key,
    scene::{NEW, partition},
};
use crate::support::{
    all,
    proxy::{DroppedReply, Proxy},
};

/// Number of suspects before the other messages.
const SUSPECTS: usize = 1000;
const DAY: u64 = 86_400_000_000;

#[tokio::test]
async fn a_claim_whose_reply_was_lost_returns_the_same_when_repeated() {
    let mut bench = Bench::start().await;
    let proxy = Proxy::start(bench.server.port());
    let store = store(&proxy.redis_url(), MAX_PAYLOAD);
    bench.schedule(3).await;
    // The server knows the script: the reply that is lost is that of the claim itself.
    bench.store.claim(&partition(), ClaimRequest { limit: 1, ..claim(1, 1) }).await.expect("a claim");
    let request = claim(2, 1);
    let lost = proxy.drop_next_reply(b"0000000000000002", DroppedReply::Closes);
    let answer = store.claim(&partition(), request).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    lost.await.expect("the claim reached the server");
    let once = bench.rows(&partition()).await;
    assert_eq!((once.unack.len(), once.claims[&2].0), (3, 1));

    let repeated = until_answered(&store, request).await;
    assert_eq!(bench.rows(&partition()).await, once);
    assert_eq!(repeated.messages.len(), 2);
    assert!(repeated.messages.iter().all(|one| once.unack[one.id.as_str()] == repeated.token.0));
    let settled = store.settle(&partition(), &all(leases(&repeated), &ClaimEnd::Ack)).await;
    assert_eq!(settled, Ok(vec![Settled::Done; 2]));
    // Nothing is left of it, also for a request that is still in transit.
    assert!(until_answered(&store, request).await.messages.is_empty());
}

#[tokio::test]
async fn a_claim_takes_as_many_bytes_as_it_may_and_no_more() {
    let mut bench = Bench::start().await;
    let plain = Metadata::default();
    let keyed = Metadata { key: Some("key".into()), ..Metadata::default() };
    let expiring = Metadata { expires_at: Some(FAR_AHEAD), ..keyed.clone() };
    // Long payloads are compressed, and count with their full length.
    for (metadata, length) in [(&plain, 7), (&plain, 1000), (&keyed, 7), (&keyed, 1000), (&expiring, 1000)] {
        bench.clear().await;
        let ids = bench.schedule_with(3, metadata, length).await;
        let body = bench.rows(&partition()).await.bodies.remove(&ids[0]).expect("it has a body");
        assert_eq!(body.len() < length, length == 1000);
        let size = codec::weight(&body) as u64;
        for (number, max_bytes, taken) in [(1, 2 * size - 1, 1), (2, 2 * size, 2)] {
            let request = ClaimRequest { max_bytes, ..claim(NEW, number) };
            let found = bench.store.claim(&partition(), request).await.expect("claimed");
            assert_eq!(found.messages.len(), taken, "{metadata:?}, {max_bytes} bytes");
        }
    }
}

#[tokio::test]
async fn an_expired_lease_is_renewed_by_its_claim_unless_it_was_recovered() {
    let mut bench = Bench::start().await;
    bench.schedule(2).await;
    let request = ClaimRequest { lease: Duration::from_millis(1), ..claim(1, 1) };
    let first = bench.store.claim(&partition(), request).await.expect("a claim");
    bench.pass(first.token.0).await;
    let renewed = bench.store.claim(&partition(), request).await.expect("a claim");
    assert_eq!((first.messages.len(), renewed.messages.len()), (2, 2));
    assert_eq!(renewed.token.0, renewed.clock.micros + 1000);
    let rows = bench.rows(&partition()).await;
    assert!(rows.unack.iter().all(|(_, token)| token == renewed.token.0));
    assert_eq!(rows.claims[&1], (1, renewed.token.0));
    let settled = bench.store.settle(&partition(), &all(leases(&first)[..1].to_vec(), &ClaimEnd::Ack)).await;
    assert_eq!(settled, Ok(vec![Settled::Stale]));

    bench.pass(renewed.token.0).await;
    assert_eq!(bench.store.recover(&partition()).await.expect("recovered").expired, 2);
    let before = bench.rows(&partition()).await;
    assert!(bench.store.claim(&partition(), request).await.expect("a claim").messages.is_empty());
    assert_eq!(bench.rows(&partition()).await, before);
}

#[tokio::test]
async fn a_part_of_a_claim_is_settled_once_and_leaves_the_rest() {
    let mut bench = Bench::start().await;
    bench.schedule(4).await;
    let claim = bench.store.claim(&partition(), claim(1, 1)).await.expect("a claim");
    let leases = leases(&claim);
    let ack = |leases: &[Lease]| all(leases.to_vec(), &ClaimEnd::Ack);
    let (first, rest) = leases.split_at(2);
    assert_eq!(bench.store.settle(&partition(), &ack(first)).await, Ok(vec![Settled::Done; 2]));
    // As many as are left, but not those.
    assert_eq!(bench.store.settle(&partition(), &ack(first)).await, Ok(vec![Settled::Stale; 2]));
    assert_eq!(bench.rows(&partition()).await.unack.len(), 2);
    let twice = [&rest[0], &rest[0]].map(Clone::clone);
    let settled = bench.store.settle(&partition(), &ack(&twice)).await;
    assert_eq!(settled, Ok(vec![Settled::Done, Settled::Stale]));
    assert_eq!(bench.rows(&partition()).await.unack.len(), 1);
    assert_eq!(bench.store.settle(&partition(), &ack(&rest[1..])).await, Ok(vec![Settled::Done]));
    assert!(bench.rows(&partition()).await.unack.is_empty());
}

#[tokio::test]
async fn a_request_that_was_overtaken_takes_nothing() {
    let mut bench = Bench::start().await;
    bench.schedule(4).await;
    let one = |claimant, sequence| ClaimRequest { limit: 1, ..claim(claimant, sequence) };
    assert_eq!(bench.store.claim(&partition(), one(1, 7)).await.expect("a claim").messages.len(), 1);
    let before = bench.rows(&partition()).await;
    for sequence in [6, 1] {
        let late = bench.store.claim(&partition(), one(1, sequence)).await.expect("a claim");
        assert!(late.messages.is_empty() && late.next_due.is_some());
        assert_eq!(bench.rows(&partition()).await, before);
    }
    // Another instance counts on its own, and each hears of the other.
    let other = bench.store.claim(&partition(), one(2, 1)).await.expect("a claim");
    assert_eq!((other.messages.len(), other.taken_elsewhere), (1, before.latest.map(|(_, at)| at)));
    let own = bench.store.claim(&partition(), one(2, 2)).await.expect("a claim");
    assert_eq!((own.messages.len(), own.taken_elsewhere), (1, None));
    let next = bench.store.claim(&partition(), one(1, 8)).await.expect("a claim");
    assert_eq!((next.messages.len(), next.taken_elsewhere), (1, Some(own.clock.micros)));
}

#[tokio::test]
async fn an_earlier_try_that_comes_after_an_empty_answer_takes_nothing() {
    let mut bench = Bench::start().await;
    let first = claim(1, 1);
    let again = ClaimRequest { again: true, ..first };
    assert!(bench.store.claim(&partition(), again).await.expect("a claim").messages.is_empty());
    bench.schedule(2).await;
    let before = bench.rows(&partition()).await;
    assert!(bench.store.claim(&partition(), first).await.expect("a claim").messages.is_empty());
    assert_eq!(bench.rows(&partition()).await, before);
    assert_eq!(bench.store.claim(&partition(), claim(1, 2)).await.expect("a claim").messages.len(), 2);
}

#[tokio::test]
async fn a_thousand_suspects_in_front_do_not_hold_up_an_ordinary_claim() {
    let mut bench = Bench::start().await;
    for limit in [1, 10, 999, 1000] {
        bench.clear().await;
        let mut ids = bench.schedule(SUSPECTS + 20).await;
        ids.truncate(SUSPECTS);
        let mut crashed = redis::pipe();
        for id in &ids {
            crashed.hset(key(&partition(), "attempts"), id, "0 2").ignore();
        }
        crashed.exec_async(&mut bench.raw).await.expect("written");
        let pause = Duration::from_mins(1);
        let request = |sequence| ClaimRequest { limit, suspects: Suspects::Defer(pause), ..claim(1, sequence) };
        let first = bench.store.claim(&partition(), request(1)).await.expect("a claim");
        assert_eq!((first.messages.len(), first.suspects as usize), (0, SUSPECTS), "limit {limit}");
        // In their order, each with a time of its own.
        let rows = bench.rows(&partition()).await;
        let start = first.clock.micros / 1000 + 60_000;
        let due = |n: usize| start + 20 * (n as u64 + 1);
        assert!(ids.iter().enumerate().all(|(n, id)| rows.pending[id] == due(n)));
        let second = bench.store.claim(&partition(), request(2)).await.expect("a claim");
        assert_eq!((second.messages.len(), second.suspects), (limit.min(20) as usize, 0));
        assert!(second.messages.iter().all(|one| !one.suspect));
    }
}

#[tokio::test]
async fn ordinary_messages_behind_suspects_come_with_the_same_claim() {
    let mut bench = Bench::start().await;
    let ids = bench.schedule(30).await;
    let mut crashed = redis::pipe();
    for id in &ids[..20] {
        crashed.hset(key(&partition(), "attempts"), id, "1 2").ignore();
    }
    crashed.hset(key(&partition(), "attempts"), &ids[25], "0 4").exec_async(&mut bench.raw).await.expect("written");
    let claimed = bench.store.claim(&partition(), ClaimRequest { limit: 4, ..claim(1, 1) }).await.expect("a claim");
    let names: Vec<_> = claimed.messages.iter().map(|one| one.id.as_str().to_owned()).collect();
    assert_eq!((names, claimed.suspects), (ids[20..24].to_vec(), 20));
    // The suspect among the first `limit` comes alone.
    let few = ClaimRequest { suspects: Suspects::Few, ..claim(1, 2) };
    let claimed = bench.store.claim(&partition(), few).await.expect("a claim");
    assert_eq!(claimed.messages.len(), 1);
    assert!(claimed.messages[0].id.as_str() == ids[25] && claimed.messages[0].suspect);
}

#[tokio::test]
async fn suspects_come_in_companies_and_after_a_third_crash_alone() {
    let mut bench = Bench::start().await;
    let ids = bench.schedule(10).await;
    let mut crashed = redis::pipe();
    for (n, id) in ids.iter().enumerate().skip(1) {
        let counts = if n == 6 { "0 3" } else { "0 2" };
        crashed.hset(key(&partition(), "attempts"), id, counts).ignore();
    }
    crashed.exec_async(&mut bench.raw).await.expect("written");
    for (sequence, expected) in (1..).zip([1..4, 4..6, 6..7, 7..10, 0..1]) {
        let few = ClaimRequest { suspects: Suspects::Few, max_suspects: 3, ..claim(1, sequence) };
        let claimed = bench.store.claim(&partition(), few).await.expect("a claim");
        let names: Vec<_> = claimed.messages.iter().map(|one| one.id.as_str().to_owned()).collect();
        assert_eq!(names, ids[expected.clone()]);
        assert!(claimed.messages.iter().all(|one| one.suspect == (expected.start > 0)));
    }
}

#[tokio::test]
async fn deferred_suspects_of_one_group_are_due_together() {
    let mut bench = Bench::start().await;
    let ids = bench.schedule(8).await;
    let mut crashed = redis::pipe();
    for (n, id) in ids.iter().enumerate() {
        let counts = if n == 1 { "0 3" } else { "0 2" };
        crashed.hset(key(&partition(), "attempts"), id, counts).ignore();
    }
    crashed.exec_async(&mut bench.raw).await.expect("written");
    let claimed =
        bench.store.claim(&partition(), ClaimRequest { max_suspects: 3, ..claim(1, 1) }).await.expect("a claim");
    let rows = bench.rows(&partition()).await;
    let start = claimed.clock.micros / 1000;
    let slots: Vec<_> = ids.iter().map(|id| (rows.pending[id] - start) / 20).collect();
    assert_eq!(slots, [1, 2, 2, 3, 3, 3, 4, 4]);
}

#[tokio::test]
async fn a_stale_settlement_forgets_the_crashes_and_nothing_else() {
    let mut bench = Bench::start().await;
    bench.set("settle stale").await;
    let before = bench.rows(&partition()).await;
    bench.act("settle stale").await.expect("settled");
    let after = bench.rows(&partition()).await;
    let counts = |id: &str| after.attempts.get(id).copied();
    assert_eq!([counts("held-failed"), counts("expired-often")], [Some((3, 0)), Some((1, 0))]);
    assert_eq!([counts("held-crashed"), counts("suspect"), counts("dead-crashed")], [None; 3]);
    let untouched = |id: &str| assert_eq!(counts(id), before.attempts.get(id).copied());
    ["failed", "held-both", "dead"].into_iter().for_each(untouched);
    assert_eq!((after.pending, after.unack, after.errors), (before.pending, before.unack, before.errors));
}

#[tokio::test]
async fn a_new_instance_forgets_those_of_more_than_a_day_ago_and_is_the_latest() {
    let mut bench = Bench::start().await;
    bench.set("claim").await;
    bench.act("claim").await.expect("claimed");
    let rows = bench.rows(&partition()).await;
    assert_eq!(rows.latest.map(|(instance, _)| instance), Some(NEW));
    assert_eq!(rows.claims.len(), 2, "one that holds leases, and the new one: {:?}", rows.claims);
}

#[tokio::test]
async fn entries_of_ten_thousand_instances_go_in_parts() {
    let mut bench = Bench::start().await;
    bench.schedule(20).await;
    let old = bench.micros().await - DAY - 1_000_000;
    let fill = "for n = 1, 10000 do redis.call('HSET', KEYS[1], string.format('%016x', n), '1 ' .. ARGV[1]) end";
    let claims = key(&partition(), "claims");
    let mut call = redis::cmd("EVAL");
    call.arg(fill).arg(1).arg(claims).arg(old).exec_async(&mut bench.raw).await.expect("written");
    for n in 1..=10 {
        let request = ClaimRequest { limit: 1, ..claim(NEW - n, 1) };
        let claimed = bench.store.claim(&partition(), request).await.expect("a claim");
        assert_eq!(claimed.messages.len(), 1);
        assert_eq!(bench.rows(&partition()).await.claims.len() as u64, 10_000 - 1000 * n + n);
    }
}

#[tokio::test]
async fn what_is_no_message_is_claimed_again_like_one() {
    let mut bench = Bench::start().await;
    let damaged = [&[1][..], &[0xff; 40]].concat();
    let mut pipe = redis::pipe();
    pipe.hset(key(&partition(), "messages"), "damaged", damaged).zadd(key(&partition(), "pending"), "damaged", 1000);
    pipe.exec_async(&mut bench.raw).await.expect("written");
    for due in [1000, 0] {
        let claimed = bench.store.claim(&partition(), claim(1, 1)).await.expect("a claim");
        assert_eq!((claimed.messages.len(), claimed.messages[0].not_before.get()), (1, due));
    }
    assert_eq!(bench.rows(&partition()).await.state("damaged"), Some(State::Unack));
}

fn leases(claim: &Claim) -> Vec<Lease> {
    let token: Token = claim.token;
    claim.messages.iter().map(|one| Lease { id: one.id.clone(), token, bytes: one.body.len() }).collect()
}

async fn until_answered(store: &RedisStore, request: ClaimRequest) -> Claim {
    // The connection heals by itself.
    for _ in 0..1000 {
        if let Ok(claim) = store.claim(&partition(), request).await {
            return claim;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the connection stays broken");
}

impl Bench {
    /// Ids in the order in which they are due, long ago.
    async fn schedule(&mut self, count: usize) -> Vec<String> {
        self.schedule_with(count, &Metadata::default(), 7).await
    }

    /// With this metadata, and a payload of this length.
    async fn schedule_with(&mut self, count: usize, metadata: &Metadata, length: usize) -> Vec<String> {
        let message = |n: usize| NewMessage {
            id: id(&format!("m-{n:04}")),
            due: Due::At(UnixMillis::new(1000 + n as u64).expect("small")),
            payload: vec![b'x'; length].into(),
            metadata: metadata.clone(),
            on_conflict: OnConflict::Keep,
            debounce: None,
            record: None,
        };
        let batch: Vec<_> = (0..count).map(message).collect();
        for part in batch.chunks(1000) {
            self.store.schedule(&partition(), part).await.expect("scheduled");
        }
        batch.iter().map(|message| message.id.to_string()).collect()
    }
}

#[tokio::test]
async fn a_lease_is_recovered_once_it_has_ended_and_not_before() {
    let mut bench = Bench::start().await;
    bench.schedule(2).await;
    let one = |lease| ClaimRequest { limit: 1, lease, ..claim(1, 1) };
    let short = bench.store.claim(&partition(), one(Duration::from_millis(1))).await.expect("a claim");
    let long = ClaimRequest { sequence: 2, ..one(Duration::from_mins(1)) };
    let long = bench.store.claim(&partition(), long).await.expect("a claim");
    assert_eq!((short.messages.len(), long.messages.len()), (1, 1));
    bench.pass(short.token.0).await;
    for expired in [1, 0] {
        assert_eq!(bench.store.recover(&partition()).await.expect("recovered").expired, expired);
        let rows = bench.rows(&partition()).await;
        assert_eq!(rows.unack.iter().collect::<Vec<_>>(), [(long.messages[0].id.as_str(), long.token.0)]);
    }
}

#[tokio::test]
async fn the_fifth_crash_of_a_message_makes_it_a_dead_letter_and_any_other_makes_it_pending() {
    let mut bench = Bench::start().await;
    bench.set("recover").await;
    let before = bench.rows(&partition()).await;
    let recovered = bench.store.recover(&partition()).await.expect("recovered");
    assert_eq!((recovered.expired, recovered.dead.count, recovered.more), (2, 1, false));
    let rows = bench.rows(&partition()).await;
    let now = bench.micros().await / 1000;
    assert!((now - 5000..=now).contains(&rows.dead["expired-often"]), "{:?}", rows.dead);
    assert_eq!(rows.errors["expired-often"].2, "crash: 5 leases expired, the last ones alone");
    assert_eq!(rows.bodies["expired-often"], before.bodies["expired-often"]);
    assert_eq!(rows.bytes, before.bytes - before.bodies["expired-often"].len() as u64);
    assert_eq!((rows.pending["expired"], rows.attempts["expired"]), (EXPIRED / 1000, (0, 1)));
    assert!(["expired", "expired-often"].iter().all(|id| rows.unack.get(id).is_none()), "{:?}", rows.unack);
    assert!(!rows.attempts.contains_key("expired-often"));
}

#[tokio::test]
async fn leases_from_before_a_step_back_of_the_clock_are_cut_once_they_were_seen_and_cancelled() {
    let mut bench = Bench::start().await;
    let ids = bench.schedule(3).await;
    let lease = Duration::from_secs(30);
    let claimed = bench.store.claim(&partition(), ClaimRequest { lease, ..claim(1, 1) }).await.expect("a claim");
    assert_eq!(claimed.messages.len(), 3);
    // As if the clock had stepped back by an hour: the last one was claimed afterwards.
    let before = claimed.token.0 + 3_600_000_000;
    for id in &ids[..2] {
        let unack = key(&partition(), "unack");
        redis::cmd("ZADD").arg(unack).arg(before).arg(id).exec_async(&mut bench.raw).await.expect("written");
    }
    let longest = 2 * lease;
    let seen = bench.store.cut_leases(&partition(), longest, None).await.expect("a look");
    assert_eq!(seen.cut, 0);
    let from = seen.beyond.expect("two");
    // A holder that is alive settles with its token.
    let held = Lease { id: id(&ids[0]), token: Token(before), bytes: claimed.messages[0].body.len() };
    let settled = bench.store.settle(&partition(), &[Settlement::new(held.clone(), ClaimEnd::Ack)]).await;
    assert_eq!(settled.expect("settled"), [Settled::Done]);

    bench.maxmemory(1).await;
    let cut = bench.store.cut_leases(&partition(), longest, Some(from)).await.expect("a cut");
    bench.maxmemory(0).await;
    assert_eq!((cut.cut, cut.beyond), (1, None));
    let late = Lease { id: id(&ids[1]), ..held };
    let settled = bench.store.settle(&partition(), &[Settlement::new(late, ClaimEnd::Ack)]).await;
    assert_eq!(settled.expect("settled"), [Settled::Stale]);
    let recovered = bench.store.recover(&partition()).await.expect("recovered");
    assert_eq!((recovered.expired, recovered.more), (1, false));
    let rows = bench.rows(&partition()).await;
    assert_eq!(rows.unack.iter().collect::<Vec<_>>(), [(&*ids[2], claimed.token.0)]);
    assert_eq!(rows.state(&ids[1]), Some(State::Pending));
    let cancelled = bench.store.cancel(&partition(), &id(&ids[1]).into()).await.expect("an answer");
    assert_eq!(format!("{cancelled:?}"), "Cancelled");
}

#[tokio::test]
async fn a_message_that_was_pushed_to_a_list_is_remembered_behind_later_ones() {
    let mut bench = Bench::start().await;
    let ids = bench.schedule(2).await;
    let taken = bench.store.claim(&partition(), claim(NEW, 1)).await.expect("claimed");
    for lease in leases(&taken) {
        let transfer = Transfer { lease, list: "list".into(), value: "value".into(), record: None };
        assert_eq!(bench.store.transfer(&partition(), &[transfer]).await, Ok(vec![Transferred::Done]));
        // The first one stays remembered for an hour.
        bench.pass_by(10).await;
    }
    assert_eq!(bench.rows(&partition()).await.remembered.into_keys().collect::<Vec<_>>(), ids);
}
