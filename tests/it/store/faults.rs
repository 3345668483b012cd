//! Real errors of a real server: full, forgetful, occupied by foreign values, strict about channels.

use std::{sync::Arc, time::Duration};

use punctual::{
    message::State,
    queue::Bulk,
    store::{DeadAction, DeadWork, Expiry, Selection, Spread, Store, StoreError, redis::RegistrationError},
};
use tokio::time::Instant;

use super::{
    arguments::claim,
    bench::{Bench, MAX_PAYLOAD, id, later, store},
    content::LONG_AGO,
    rows::key,
    scene::{LISTS, NEW, ROUTE, SCENES, partition, split},
};

/// Scenes that need memory, and can wait until there is some.
const GROWING: [&str; 21] = [
    "edit",
    "edit without change",
    "end a turn in vain",
    "post",
    "move a message of a group",
    "set a schedule",
    "change a schedule",
    "keep a schedule",
    "bury new",
    "fence",
    "produce",
    "produce in place of a pending one",
    "produce in place of a dead one",
    "redrive all",
    "redrive some",
    "reschedule",
    "deliver at once",
    "schedule",
    "take from a delayqueue",
    "take hashes",
    "take members",
];
/// Scenes that change nothing.
const READING: [&str; 24] = [
    "edit in the outbox",
    "edit without change",
    "look at a group",
    "look at a schedule",
    "list schedules",
    "list flows",
    "list ends",
    "look at a flow",
    "claim again",
    "claim too late",
    "cut none",
    "due",
    "fence",
    "forecast",
    "get",
    "list",
    "purge no dead",
    "purge nothing",
    "redrive none",
    "registered",
    "restore none",
    "rights",
    "stats",
    "summary",
];
/// Scenes that do not read a key that they pass: it may hold anything.
const UNTOUCHED: [(&str, &str); 113] = [
    ("end a turn", "messages"),
    ("end a turn", "attempts"),
    ("end a turn", "errors"),
    ("end a turn", "records"),
    ("end a turn in vain", "messages"),
    ("end a turn in vain", "attempts"),
    ("end a turn in vain", "errors"),
    ("end a turn in vain", "records"),
    ("purge all pending", "unack"),
    ("purge some pending", "unack"),
    ("purge nothing", "unack"),
    ("produce in place of a dead one", "attempts"),
    ("produce in place of a pending one", "dead"),
    ("change a schedule", "bytes"),
    ("keep a schedule", "bytes"),
    ("set a schedule", "attempts"),
    ("delete a schedule", "dead"),
    ("delete a schedule", "remembered"),
    ("pause a schedule", "bytes"),
    ("pause a schedule", "dead"),
    ("pause a schedule", "errors"),
    ("pause a schedule", "remembered"),
    ("resume a schedule", "bytes"),
    ("resume a schedule", "dead"),
    ("resume a schedule", "errors"),
    ("resume a schedule", "remembered"),
    ("end occurrences", "dead"),
    ("transfer", "pending"),
    ("transfer to a new list", "pending"),
    ("begin to move", "attempts"),
    ("begin to move", "bytes"),
    ("begin to move", "claims"),
    ("begin to move", "errors"),
    ("begin to move", "messages"),
    ("begin to move", "records"),
    ("end the move", "attempts"),
    ("end the move", "bytes"),
    ("end the move", "claims"),
    ("end the move", "errors"),
    ("end the move", "messages"),
    ("end the move", "paused"),
    ("end the move", "records"),
    ("repartition", "attempts"),
    ("repartition", "bytes"),
    ("repartition", "claims"),
    ("repartition", "errors"),
    ("repartition", "messages"),
    ("repartition", "records"),
    ("ack", "dead"),
    ("bury", "messages"),
    ("bury", "records"),
    ("bury", "remembered"),
    ("cancel dead", "bytes"),
    ("cancel dead", "remembered"),
    ("cancel dead by a record", "bytes"),
    ("cancel pending", "dead"),
    ("cancel pending by a record", "dead"),
    ("cancel unseen", "attempts"),
    ("cancel unseen", "bytes"),
    ("cancel unseen", "errors"),
    ("cancel unseen", "messages"),
    ("defer", "bytes"),
    ("defer", "dead"),
    ("defer", "errors"),
    ("defer", "messages"),
    ("defer", "records"),
    ("defer", "remembered"),
    ("get", "remembered"),
    ("produce", "attempts"),
    ("produce", "errors"),
    ("produce", "records"),
    ("produce in place of a dead one", "records"),
    ("produce in place of a dead one", "remembered"),
    ("produce in place of a pending one", "records"),
    ("produce in place of a pending one", "remembered"),
    ("purge no dead", "attempts"),
    ("purge no dead", "messages"),
    ("purge no dead", "records"),
    ("purge nothing", "attempts"),
    ("purge nothing", "bytes"),
    ("purge nothing", "errors"),
    ("purge nothing", "messages"),
    ("purge nothing", "records"),
    ("purge nothing", "remembered"),
    ("redrive none", "attempts"),
    ("redrive none", "bytes"),
    ("redrive none", "messages"),
    ("redrive none", "pending"),
    ("release", "bytes"),
    ("release", "dead"),
    ("release", "errors"),
    ("release", "messages"),
    ("release", "records"),
    ("release", "remembered"),
    ("retry", "bytes"),
    ("retry", "dead"),
    ("retry", "messages"),
    ("retry", "records"),
    ("retry", "remembered"),
    ("settle stale", "bytes"),
    ("settle stale", "dead"),
    // The leases are read if only they show what is in flight, or from when it is counted.
    ("change a flow back", "unack"),
    ("list flows", "unack"),
    ("look at a flow", "unack"),
    ("pause a flow", "unack"),
    ("settle stale", "errors"),
    ("settle stale", "messages"),
    ("settle stale", "records"),
    ("settle stale", "remembered"),
    ("rights", "rights"),
    ("take from a delayqueue", "paused"),
    ("take hashes", "paused"),
    ("take members", "paused"),
];
const FLOW_KEYS: [&str; 6] = ["flows", "waiting", "flights", "gates", "slots", "rules"];
/// `P:routes`.
const ROUTES_KEY: &str = "p:routes";
/// A refusal is not a timeout.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A command on another key would be denied before the memory is looked at.
#[tokio::test]
async fn at_maxmemory_a_user_with_the_keys_of_the_queue_alone_is_refused_as_well() {
    let mut bench = Bench::start().await;
    let user = ["SETUSER", "limited", "on", ">secret", "~{p:*", "~p:*", "&*", "+@all"];
    redis::cmd("ACL").arg(&user).exec_async(&mut bench.raw).await.expect("a user");
    bench.store = Arc::new(store(&format!("redis://limited:secret@127.0.0.1:{}/0", bench.server.port()), MAX_PAYLOAD));
    for scene in GROWING.iter().filter(|scene| SCENES.iter().any(|(known, _)| known == *scene)) {
        // Their keys have other names.
        if scene.starts_with("take") {
            continue;
        }
        bench.set(scene).await;
        let before = bench.dump().await;
        bench.maxmemory(1).await;
        let result = bench.act(scene).await;
        bench.maxmemory(0).await;
        assert!(matches!(result, Err(StoreError::Unavailable { kind: "oom", .. })), "{scene}: {result:?}");
        assert_eq!(bench.dump().await, before, "{scene}: something was written");
    }
}

#[tokio::test]
async fn at_maxmemory_scheduling_is_refused_cleanly_and_everything_else_goes_on() {
    let mut bench = Bench::start().await;
    for (scene, _) in SCENES {
        bench.maxmemory(0).await;
        bench.set(scene).await;
        let before = bench.dump().await;
        bench.maxmemory(1).await;
        let asked = Instant::now();
        let result = bench.act(scene).await;
        assert!(asked.elapsed() < AT_ONCE, "{scene}: an answer after {:?}", asked.elapsed());
        let unchanged = bench.dump().await == before;
        if GROWING.contains(&split(scene).0) {
            assert!(matches!(result, Err(StoreError::Unavailable { kind: "oom", .. })), "{scene}: {result:?}");
            assert!(unchanged, "{scene}: something was written");
        } else {
            result.unwrap_or_else(|error| panic!("{scene}: {error}"));
            assert_eq!(unchanged, READING.contains(&split(scene).0), "{scene}");
        }
    }
    // An instance starts: all that it registers is there already.
    bench.maxmemory(0).await;
    bench.set("get").await;
    bench.maxmemory(1).await;
    bench.store.register().await.expect("nothing to write");
}

#[tokio::test]
async fn a_value_of_another_type_at_a_key_is_reported_and_nothing_changes() {
    let mut bench = Bench::start().await;
    for (scene, script) in SCENES {
        bench.set(scene).await;
        let call = bench.record(scene, script).await;
        let keys = if script == "produce" {
            [
                "pending",
                "unack",
                "dead",
                "messages",
                "attempts",
                "errors",
                "route",
                "remembered",
                "records",
                "bytes",
                "groups",
            ]
            .map(|name| key(&partition(), name))
            .to_vec()
        } else {
            call.keys
        };
        // A wrong type at the key of a list affects that list alone: see below.
        for key in keys.into_iter().filter(|key| !LISTS.contains(&&**key) && !is_content(key)) {
            bench.set(scene).await;
            bench.put_wrong_type(&key).await;
            let before = bench.dump().await;
            let result = bench.act(scene).await;
            let of_flows = FLOW_KEYS.iter().any(|name| key.ends_with(&format!(":{name}")));
            // Which of the flow keys a call reads depends on what it finds. Only ends of occurrences read schedules.
            let of_schedules = key.ends_with(":schedules") && !scene.contains("schedule");
            // Only deaths write to the outbox.
            let of_outbox = key.ends_with(":outbox");
            // Only ends of messages are written there.
            let of_history = key.ends_with(":history") || key.ends_with(":ended");
            // Only what a message joins or leaves is read.
            let of_groups = key.ends_with(":groups") || key.ends_with(":grouped");
            let untouched = of_flows
                || of_groups
                || of_schedules
                || of_outbox
                || of_history
                || UNTOUCHED.iter().any(|(one, name)| *one == split(scene).0 && key.ends_with(name));
            match result {
                Err(StoreError::WrongType { .. }) => {}
                Ok(()) if untouched => continue,
                other => panic!("{scene}, wrong type at {key}: {other:?}"),
            }
            let after = bench.dump().await;
            assert_eq!(after[&key], before[&key], "{scene}: the foreign value");
            // Registering one route comes before the other, and the repair of flights before that of parked messages.
            assert!(
                after == before || ["register", "tidy"].contains(&script),
                "{scene}, wrong type at {key}: something was written"
            );
        }
    }
}

/// Whether another program keeps one message's content there: what is not as it should be is that message's trouble
/// alone, see `external_moves`.
fn is_content(key: &str) -> bool {
    key.starts_with("task:") || key.contains(":msg:")
}

#[tokio::test]
async fn a_key_that_is_no_list_refuses_its_own_messages_only() {
    let mut bench = Bench::start().await;
    bench.set("transfer").await;
    redis::cmd("SET").arg(&[LISTS[1], "foreign"]).exec_async(&mut bench.raw).await.expect("the server answers");
    bench.act("transfer").await.expect("some of it was done");
    let rows = bench.rows(&partition()).await;
    assert_eq!(rows.state("held"), None, "transferred");
    assert_eq!((rows.state("held-failed"), rows.state("held-crashed")), (None, Some(State::Unack)));
    assert_eq!((rows.state("held-both"), rows.state("held-anew")), (None, Some(State::Unack)));
    let dump = bench.dump().await;
    assert_eq!(dump[LISTS[0]].1, [&b"old"[..], b"older", b"held", b"held-failed", b"held-both"]);
    assert_eq!(dump[LISTS[1]], ("string".to_owned(), vec![b"foreign".to_vec()]));
}

#[tokio::test]
async fn a_script_cache_that_is_flushed_again_and_again_shows_nowhere() {
    let mut bench = Bench::start().await;
    for (scene, _) in SCENES {
        bench.set(scene).await;
        let () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut bench.raw).await.expect("flushed");
        bench.act(scene).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
    }
}

#[tokio::test]
async fn without_rights_on_channels_every_script_does_its_work() {
    let mut bench = Bench::start().await;
    let () = redis::cmd("ACL")
        .arg(&["SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels"])
        .query_async(&mut bench.raw)
        .await
        .expect("a user");
    let mute = format!("redis://mute:secret@127.0.0.1:{}/0", bench.server.port());
    bench.store = store(&mute, MAX_PAYLOAD).into();
    let client = redis::Client::open(mute).expect("a valid URL");
    bench.raw = client.get_multiplexed_async_connection().await.expect("the server answers");
    let denied =
        redis::cmd("PUBLISH").arg(&[key(&partition(), "wake"), String::new()]).exec_async(&mut bench.raw).await;
    assert_eq!(denied.expect_err("no right to publish").code(), Some("NOPERM"));
    for (scene, _) in SCENES {
        bench.set(scene).await;
        let before = bench.dump().await;
        bench.act(scene).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
        let unchanged = bench.dump().await == before;
        assert_eq!(unchanged, READING.contains(&split(scene).0), "{scene}");
    }
}

#[tokio::test]
async fn a_message_without_a_body_becomes_dead_and_can_be_redriven() {
    let mut bench = Bench::start().await;
    bench.set("claim").await;
    bench.act("claim").await.expect("claimed");
    let found = bench.live(ROUTE, "orphan").await.expect("not dropped in silence");
    assert_eq!(found.state, State::Dead);
    assert!(found.last_error.expect("a reason").starts_with("orphan: "));
    assert!(found.message.is_err());
    let rows = bench.rows(&partition()).await;
    assert_eq!(rows.bodies["orphan"][..], [0]);

    bench.redrive("orphan").await;
    bench.store.claim(&partition(), claim(NEW, 2)).await.expect("claimed");
    assert_eq!(bench.rows(&partition()).await.state("orphan"), Some(State::Unack));
}

#[tokio::test]
async fn a_message_in_no_set_is_pending_again_at_the_due_time_in_its_body() {
    let mut bench = Bench::start().await;
    bench.set("restore none").await;
    let mut expected = bench.rows(&partition()).await;
    let lost = [("pending", "due"), ("pending", "later"), ("unack", "held"), ("dead", "dead")];
    for (set, id) in lost {
        redis::cmd("ZREM").arg(key(&partition(), set)).arg(id).exec_async(&mut bench.raw).await.expect("removed");
        for set in [&mut expected.pending, &mut expected.unack, &mut expected.dead] {
            set.remove(id);
        }
        expected.pending.insert(id, LONG_AGO);
    }
    // A body without times.
    let before = bench.micros().await / 1000;
    let mut put = redis::cmd("HSET");
    put.arg(key(&partition(), "messages")).arg(&["damaged", "x"]).exec_async(&mut bench.raw).await.expect("written");
    assert_eq!(bench.store.restore(&partition(), "").await, Ok((5, String::new(), false)));
    let mut rows = bench.rows(&partition()).await;
    let due = rows.pending.remove("damaged").expect("it is pending");
    assert!((before..=bench.micros().await / 1000).contains(&due), "{due}");
    rows.bodies.remove("damaged");
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn a_damaged_body_with_nothing_but_its_times_gets_new_ones_when_it_is_redriven() {
    let mut bench = Bench::start().await;
    bench.set("redrive all").await;
    let damaged = [&[1][..], &LONG_AGO.to_be_bytes(), &LONG_AGO.to_be_bytes()].concat();
    let mut put = redis::cmd("HSET");
    put.arg(key(&partition(), "messages")).arg("dead").arg(&damaged).exec_async(&mut bench.raw).await.expect("written");
    bench.redrive("dead").await;
    let rows = bench.rows(&partition()).await;
    let due = rows.pending["dead"].to_be_bytes();
    assert_eq!(rows.bodies["dead"][..], [&[1][..], &due, &due].concat());
}

#[tokio::test]
async fn what_somebody_else_wrote_among_the_routes_is_a_mismatch_and_stays() {
    let mut bench = Bench::start().await;
    for foreign in ["5", "null", "\"text\"", "not JSON", r#"{"version":2,"partitions":1}"#] {
        redis::cmd("HSET").arg(&[ROUTES_KEY, ROUTE, foreign]).exec_async(&mut bench.raw).await.expect("written");
        let error = bench.store.register().await.expect_err("another's");
        assert!(matches!(&error, RegistrationError::Mismatch { stored, .. } if stored == foreign), "{error}");
        let now: String =
            redis::cmd("HGET").arg(&[ROUTES_KEY, ROUTE]).query_async(&mut bench.raw).await.expect("there");
        assert_eq!(now, foreign);
    }
}

impl Bench {
    /// Makes one dead letter pending again.
    async fn redrive(&self, text: &str) {
        let one = Selection::Ids { ids: vec![id(text)], until: None };
        let (action, spread) = (DeadAction::Redrive(Expiry::Drop), Spread::default());
        let work = DeadWork { action, spread, selection: &one, limit: 1, dry_run: false, deadline: later() };
        let mut bulk = Bulk::default();
        self.queue.act_on_dead(ROUTE, &work, None, &mut bulk).await.expect("redriven");
        assert_eq!((bulk.count, bulk.more), (1, false));
    }

    /// 1: everything that needs memory is refused; 0: nothing is.
    pub async fn maxmemory(&mut self, bytes: u64) {
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).exec_async(&mut self.raw).await.expect("CONFIG");
    }

    /// A list where a hash, a set or a string belongs, and a string where a list does.
    async fn put_wrong_type(&mut self, key: &str) {
        let mut pipe = redis::pipe();
        if [":ready", ":retry"].iter().any(|list| key.ends_with(list)) {
            pipe.del(key).set(key, "foreign");
        } else {
            pipe.del(key).rpush(key, "foreign");
        }
        pipe.exec_async(&mut self.raw).await.expect("the server answers");
    }
}
