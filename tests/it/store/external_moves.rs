//! Taking what other programs keep: each member ends in one place, and their keys are left clean.

use std::collections::BTreeMap;

use punctual::{
    message::{StoredMessage, codec},
    store::redis::{
        ExternalEntry, ExternalPlace,
        MoveOutcome::{self, Conflict, Gone, Invalid, Left, Taken},
    },
};

use super::{
    bench::Bench,
    external::{self, MAX_PAYLOAD, entries, entry, outcomes, place},
    rows::{PREFIX, key},
    scene::{SOURCE, partition},
};

#[tokio::test]
async fn a_member_is_moved_with_its_due_time_rounded_up() {
    let mut bench = Bench::start().await;
    bench.set("take members").await;
    let remembered = key(&partition(), "remembered");
    let () = redis::cmd("ZADD").arg(&remembered).arg(1).arg("one").query_async(&mut bench.raw).await.unwrap();
    let verdicts = take(&mut bench, "take members").await;
    let expected = [Taken, Taken, Conflict, Conflict, Conflict, Gone, Gone, Taken, Taken, Taken, Taken, Invalid];
    assert_eq!(verdicts, expected);
    let rows = bench.rows(&partition()).await;
    let one = message(&rows, "one");
    assert_eq!((one.due.get(), &one.payload[..]), (1001, &b"one"[..]));
    let now = bench.micros().await / 1000;
    assert!((now - 5000..=now).contains(&one.accepted.get()), "lateness counts from when it was taken");
    assert_eq!(rows.pending["one"], 1001);
    assert!(!rows.remembered.contains_key("one"), "it lives again");
    assert_eq!(message(&rows, "two").metadata.content_type.as_deref(), Some("text/plain"));
    let large = entries("take members").pop().unwrap().member;
    assert_eq!(message(&rows, "large").payload, large);
    assert_eq!(rows.errors["large"].2, "invalid: the payload takes 49 bytes, at most 40");
    let left: Vec<String> = redis::cmd("ZRANGE").arg(SOURCE).arg(0).arg(-1).query_async(&mut bench.raw).await.unwrap();
    assert_eq!(left, ["claimed", "buried", "later"]);
}

#[tokio::test]
async fn the_fields_of_a_hash_become_an_object_and_the_hash_goes() {
    let mut bench = Bench::start().await;
    bench.set("take hashes").await;
    let verdicts = take(&mut bench, "take hashes").await;
    assert_eq!(verdicts, [Taken, Invalid, Invalid, Invalid, Conflict, Gone, Gone, Invalid]);
    let rows = bench.rows(&partition()).await;
    let one: BTreeMap<String, String> = serde_json::from_slice(&message(&rows, "task:1").payload).expect("JSON");
    assert_eq!(one, BTreeMap::from([("type".into(), "mail \"now\"\n".into()), ("to".into(), "/é".into())]));
    assert_eq!(&message(&rows, "task:no-details").payload[..], b"task:no-details");
    assert_eq!(rows.errors["task:no-details"].2, "invalid: its details are missing: there is no hash of this name");
    assert_eq!(rows.errors["task:text"].2, "invalid: its details are no hash, but a string");
    assert_eq!(&message(&rows, "task:bytes").payload[..], br#"{"raw":"a\u00ff"}"#);
    assert!(rows.errors["task:bytes"].2.starts_with("invalid: field \"raw\" is not UTF-8"));
    assert_eq!(&message(&rows, "task:large").payload[..], b"task:large", "what is too large is not copied");
    assert_eq!(
        rows.errors["task:large"].2,
        "invalid: its details take 51 bytes as JSON, at most 40: they stay where they are"
    );
    let mut left: Vec<String> = redis::cmd("KEYS").arg("task:*").query_async(&mut bench.raw).await.unwrap();
    left.sort();
    let expected = ["task:gone", "task:held", "task:large", "task:later", "task:text"];
    assert_eq!(left, expected, "what was taken is gone, nothing else");
}

#[tokio::test]
async fn a_field_is_text_when_it_is_utf8_and_nothing_else() {
    let mut bench = Bench::start().await;
    let mut values = Vec::new();
    for first in [0x41, 0x80, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5] {
        for second in [0x41, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc2] {
            for third in [0x41, 0x80, 0xbf, 0xe0] {
                values.extend([0x41, 0xbf].map(|fourth| [first, second, third, fourth]));
            }
        }
    }
    for part in values.chunks(400) {
        bench.clear().await;
        let mut pipe = redis::pipe();
        let mut batch = Vec::new();
        for (n, value) in part.iter().enumerate() {
            let name = format!("task:{n}");
            pipe.zadd(SOURCE, &name, 1).hset(&name, "field", value);
            batch.push(entry(&name, &name));
        }
        pipe.exec_async(&mut bench.raw).await.expect("written");
        let verdicts = take_all(&mut bench, &place("take hashes"), &batch).await;
        let rows = bench.rows(&partition()).await;
        for (n, value) in part.iter().enumerate() {
            let payload = message(&rows, &format!("task:{n}")).payload;
            let found: BTreeMap<String, String> = serde_json::from_slice(&payload).expect("JSON");
            // A value that is not text is shown byte by byte.
            let (verdict, text) = match std::str::from_utf8(value) {
                Ok(text) => (Taken, text.to_owned()),
                Err(_) => (Invalid, value.iter().copied().map(char::from).collect()),
            };
            assert_eq!((verdicts[n], &found["field"]), (verdict, &text), "{value:x?}");
        }
    }
}

#[tokio::test]
async fn a_member_that_names_an_unrelated_hash_or_key_changes_nothing() {
    let mut bench = Bench::start().await;
    bench.set("").await;
    let names = [
        format!("{PREFIX}:routes"),
        key(&partition(), "messages"),
        "task:routes".into(),
        "{other:r.1:12/13}:messages".into(),
        "session:admin".into(),
        "task".into(),
        " task:1".into(),
    ];
    let mut batch = Vec::new();
    for (n, name) in names.iter().enumerate() {
        redis::cmd("ZADD").arg(SOURCE).arg(1).arg(name).exec_async(&mut bench.raw).await.unwrap();
        if n >= 2 {
            redis::cmd("HSET").arg(name).arg("secret").arg("hunter2").exec_async(&mut bench.raw).await.unwrap();
        }
        batch.push(entry(name, &format!("hostile-{n}")));
    }
    let before = bench.dump().await;
    // The script itself refuses what the caller let through.
    for prefix in ["task:", "", "{", "session"] {
        let place = ExternalPlace::Hashes { key: SOURCE.into(), unit: 1000, prefix: prefix.into() };
        let own = bench.store.take(&partition(), &place, MAX_PAYLOAD, &batch[..4]).await.expect("an answer");
        let own = outcomes(own);
        assert!(matches!(own[..], [Invalid, Invalid, Invalid, Invalid] | [Gone, Gone, Gone, Gone]), "{own:?}");
    }
    let moved = bench.store.take(&partition(), &place("take hashes"), MAX_PAYLOAD, &batch[4..]).await;
    assert_eq!(outcomes(moved.expect("an answer")), [Invalid, Invalid, Invalid]);
    let after = bench.dump().await;
    for name in names.iter().filter(|name| **name != names[1]) {
        assert_eq!(before[name], after[name], "{name}");
    }
    let rows = bench.rows(&partition()).await;
    for n in 0..4 {
        let error = &rows.errors[&format!("hostile-{n}")].2;
        assert_eq!(error, "invalid: its details are one of punctual's own keys", "{n}");
    }
    for (n, name) in names.iter().enumerate().skip(4) {
        let error = &rows.errors[&format!("hostile-{n}")].2;
        assert_eq!(error, "invalid: its details are not read: the name does not begin with `hash_prefix`", "{n}");
        assert_eq!(&message(&rows, &format!("hostile-{n}")).payload[..], name.as_bytes());
    }
}

#[tokio::test]
async fn a_delayqueue_is_left_clean_whatever_list_an_id_was_in() {
    let mut bench = Bench::start().await;
    bench.set("take from a delayqueue").await;
    let verdicts = take(&mut bench, "take from a delayqueue").await;
    let expected = [Taken, Invalid, Conflict, Conflict, Conflict, Gone, Gone, Taken, Taken, Taken, Gone, Invalid];
    assert_eq!(verdicts, expected);
    let rows = bench.rows(&partition()).await;
    let attempts = ["one", "listed", "failing", "kept-too-long"].map(|id| message(&rows, id).metadata.max_attempts);
    assert_eq!(
        attempts,
        [Some(3), Some(3), None, Some(2)],
        "the one in progress has used up one; unknown: the route's"
    );
    assert_eq!(message(&rows, "two").metadata.content_type.as_deref(), Some("text/plain"));
    assert_eq!(rows.errors["two"].2, "invalid: its body is missing: it has expired, or was deleted");
    assert_eq!((rows.pending["one"], &message(&rows, "one").payload[..]), (1000, &b"a body"[..]));
    let now = bench.micros().await / 1000;
    assert!((now - 5000..=now).contains(&rows.pending["listed"]), "an id that waits in a list is due now");

    let left = bench.dump().await;
    let theirs = |name: &str| left[&format!("dp:jobs:{name}")].1.iter().map(|one| text(one)).collect::<Vec<_>>();
    assert_eq!(theirs("pending"), ["claimed", "1", "later", "5000000000"]);
    assert_eq!(theirs("ready"), ["other", "buried", "another"]);
    assert_eq!(theirs("unack"), ["kept", "5000000000"]);
    assert_eq!(theirs("retry:cnt"), ["buried", "2", "claimed", "2", "kept", "2", "later", "2"]);
    assert_eq!(theirs("retry"), ["failing-elsewhere"]);
    let bodies: Vec<&str> = left.keys().filter_map(|key| key.strip_prefix("dp:jobs:msg:")).collect();
    assert_eq!(bodies, ["buried", "claimed", "kept", "later"]);
}

#[tokio::test]
async fn a_list_of_a_delayqueue_is_emptied_while_the_other_one_keeps_some() {
    let mut bench = Bench::start().await;
    bench.set("").await;
    let mut pipe = redis::pipe();
    pipe.rpush("dp:jobs:ready", "ours").set("dp:jobs:msg:ours", "a body").rpush("dp:jobs:retry", &["ours", "other"]);
    pipe.exec_async(&mut bench.raw).await.expect("written");
    assert_eq!(take_all(&mut bench, &place("take from a delayqueue"), &[entry("ours", "ours")]).await, [Taken]);
    let left = bench.dump().await;
    assert_eq!((left.get("dp:jobs:ready"), &left["dp:jobs:retry"].1), (None, &vec![b"other".to_vec()]));
}

#[tokio::test]
async fn bodies_that_would_expire_are_kept_and_counted_once() {
    let mut bench = Bench::start().await;
    bench.set("persist").await;
    let bodies = ["due", "fresh", "absent"].map(|name| format!("dp:jobs:msg:{name}").into_bytes());
    for expected in [1, 0] {
        assert_eq!(bench.store.persist(&bodies).await, Ok(expected));
    }
    let left: Vec<i64> =
        redis::pipe().ttl(&bodies[0]).ttl(&bodies[1]).query_async(&mut bench.raw).await.expect("times");
    assert_eq!(left, [-1, -1]);
}

#[tokio::test]
async fn a_hash_may_be_as_large_as_the_largest_payload() {
    let mut bench = Bench::start().await;
    bench.set("").await;
    let mut pipe = redis::pipe();
    let most = MAX_PAYLOAD - r#"{"a":""}"#.len();
    for (name, size) in [("task:full", most), ("task:over", most + 1)] {
        pipe.zadd(SOURCE, name, 1).hset(name, "a", "x".repeat(size));
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let batch = ["task:full", "task:over"].map(|name| entry(name, name));
    assert_eq!(take_all(&mut bench, &place("take hashes"), &batch).await, [Taken, Invalid]);
    assert_eq!(message(&bench.rows(&partition()).await, "task:full").payload.len(), MAX_PAYLOAD);
}

#[tokio::test]
async fn a_paused_or_full_route_takes_nothing() {
    let mut bench = Bench::start().await;
    bench.set("take members").await;
    bench.store.pause(&partition(), "", "").await.expect("paused");
    let before = bench.dump().await;
    let verdicts = take(&mut bench, "take members").await;
    assert!(verdicts.contains(&Left) && !verdicts.contains(&Taken), "{verdicts:?}");
    assert_eq!(bench.dump().await, before);

    bench.clear().await;
    external::write(&mut bench.raw, "take members").await;
    let mut pipe = redis::pipe();
    for n in 0..998 {
        pipe.zadd(key(&partition(), "pending"), format!("waiting-{n}"), n).ignore();
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let verdicts = take(&mut bench, "take members").await;
    let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    assert_eq!((count(Taken), count(Gone)), (2, 2), "{verdicts:?}");
    assert!(count(Left) > 3, "{verdicts:?}");
}

#[tokio::test]
async fn a_look_tells_who_is_due_and_when_the_next_one_is() {
    let mut bench = Bench::start().await;
    bench.set("due").await;
    let due = bench.store.external_due(&place("due")).await.expect("a look");
    let mut expected: Vec<_> = entries("due").into_iter().map(|entry| entry.member).collect();
    expected.retain(|member| member != "later" && member != "gone");
    expected.dedup();
    expected.sort();
    let mut found = due.members.clone();
    found.sort();
    assert_eq!(found, expected);
    assert_eq!(due.next_due.map(punctual::time::UnixMillis::get), Some(5_000_000_000_000));
    assert!(due.now.abs_diff(bench.micros().await) < 5_000_000);

    bench.set("take from a delayqueue").await;
    let due = bench.store.external_due(&place("take from a delayqueue")).await.expect("a look");
    let mut found: Vec<String> = due.members.iter().map(|one| text(one)).collect();
    found.sort();
    let large = "a member that is larger than what is allowed here";
    let elsewhere = "failing-elsewhere";
    let wanted =
        [large, "another", "buried", "claimed", "failing", elsewhere, "kept-too-long", "listed", "one", "other", "two"];
    assert_eq!(found, wanted, "of all places");
}

#[tokio::test]
async fn a_look_is_bounded_in_members_and_bytes() {
    let mut bench = Bench::start().await;
    for (count, size, most) in [(600, 10, 250), (12, 400_000, 3)] {
        bench.clear().await;
        for n in 0..count {
            let mut add = redis::cmd("ZADD");
            let () = add
                .arg(SOURCE)
                .arg(1)
                .arg(format!("{n}{}", "x".repeat(size)))
                .query_async(&mut bench.raw)
                .await
                .expect("added");
        }
        let due = bench.store.external_due(&place("due")).await.expect("a look");
        assert_eq!(due.members.len(), most);
    }
}

#[tokio::test]
async fn infinite_ancient_and_far_scores_are_never_at_once_and_no_time() {
    let mut bench = Bench::start().await;
    let mut pipe = redis::pipe();
    for (score, member) in [("inf", "never"), ("-inf", "ever"), ("-5", "before-1970"), ("1e300", "too-far")] {
        pipe.cmd("ZADD").arg(SOURCE).arg(score).arg(member);
    }
    pipe.exec_async(&mut bench.raw).await.expect("written");
    let due = bench.store.external_due(&place("due")).await.expect("a look");
    assert_eq!((due.members, due.next_due), (vec!["ever".into(), "before-1970".into(), "too-far".into()], None));
    let batch = ["never", "ever", "before-1970", "too-far"].map(|name| entry(name, name));
    assert_eq!(take_all(&mut bench, &place("due"), &batch).await, [Gone, Taken, Taken, Invalid]);
    let rows = bench.rows(&partition()).await;
    assert_eq!(rows.pending["ever"], 0);
    assert_eq!(message(&rows, "too-far").payload, "too-far");
}

/// Scores in another unit than the source has: milliseconds for seconds, microseconds for milliseconds, and the contrary.
#[tokio::test]
async fn a_score_in_another_unit_is_a_dead_letter_at_once() {
    for (unit, score, hint) in [
        (1000, "1700000000000", "milliseconds?"),
        (1, "1700000000000000", "microseconds?"),
        (1, "1700000000", "seconds?"),
    ] {
        let mut bench = Bench::start().await;
        let place = ExternalPlace::Members { key: SOURCE.into(), unit };
        redis::cmd("ZADD").arg(SOURCE).arg(score).arg("late").exec_async(&mut bench.raw).await.expect("written");
        let due = bench.store.external_due(&place).await.expect("a look");
        assert_eq!(due.members, ["late"], "{score}");
        assert_eq!(take_all(&mut bench, &place, &[entry("late", "late")]).await, [Invalid]);
        let rows = bench.rows(&partition()).await;
        assert!(rows.errors["late"].2.contains(hint), "{:?}", rows.errors);
        assert_eq!(message(&rows, "late").payload, "late");
        let left: u64 = redis::cmd("ZCARD").arg(SOURCE).query_async(&mut bench.raw).await.expect("a number");
        assert_eq!(left, 0);
    }
}

#[tokio::test]
async fn scores_in_milliseconds_are_times_from_march_1973_to_the_year_9999() {
    let mut bench = Bench::start().await;
    let place = ExternalPlace::Members { key: SOURCE.into(), unit: 1 };
    // A fraction below a microsecond is a rounding error.
    for (score, outcome, due) in [
        ("0", Taken, Some(0)),
        ("1", Invalid, None),
        ("99999999999", Invalid, None),
        ("100000000000", Taken, Some(100_000_000_000)),
        ("100000000000.0005", Taken, Some(100_000_000_000)),
        ("253402387199999", Gone, None),
        ("253402387200000", Invalid, None),
    ] {
        bench.clear().await;
        redis::cmd("ZADD").arg(SOURCE).arg(score).arg("m").exec_async(&mut bench.raw).await.expect("written");
        assert_eq!(take_all(&mut bench, &place, &[entry("m", "m")]).await, [outcome], "{score}");
        assert_eq!(bench.rows(&partition()).await.pending.get("m"), due, "{score}");
    }
}

async fn take(bench: &mut Bench, scene: &str) -> Vec<MoveOutcome> {
    take_all(bench, &place(scene), &entries(scene)).await
}

async fn take_all(bench: &mut Bench, place: &ExternalPlace, batch: &[ExternalEntry]) -> Vec<MoveOutcome> {
    let moved = bench.store.take(&partition(), place, MAX_PAYLOAD, batch).await.expect("the server answers");
    assert!(moved.iter().all(|one| one.error.is_some() == (one.outcome == Invalid)), "{moved:?}");
    outcomes(moved)
}

fn message(rows: &punctual::store::memory::MemoryPartition, id: &str) -> StoredMessage {
    codec::decode(&rows.bodies[id]).expect("readable")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}
