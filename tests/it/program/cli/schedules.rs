//! `schedules`, and schedules in `check`.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Scene;
use crate::{
    program::{client::Client, eventually, refusals::content},
    support::{
        punctual::Punctual,
        receiver::{Behaviour, wall_clock},
    },
};

const MAX_WAIT: Duration = Duration::from_secs(20);

const OF_FILE: &str =
    "schedules: { nightly: { route: web, cron: '0 3 * * *', time_zone: Europe/Berlin, payload: { kind: daily } } }\n";

/// The cells of a table.
fn rows(table: &str) -> Vec<Vec<String>> {
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
    table.lines().map(cells).collect()
}

/// The times of a list, in milliseconds.
fn times(list: &Value) -> Vec<u64> {
    let millis = |time: &Value| {
        let time: Timestamp = time.as_str().expect("a time").parse().expect("RFC 3339");
        u64::try_from(time.as_millisecond()).expect("after 1970")
    };
    list.as_array().expect("a list").iter().map(millis).collect()
}

/// The schedule, after this number of runs.
async fn ran(scene: &Scene, name: &str, number: usize) -> Value {
    eventually("it ran", MAX_WAIT, async || {
        let schedule = scene.json(&["schedules", "show", name]).await;
        (schedule["runs"].as_array().expect("a list").len() >= number).then_some(schedule)
    })
    .await
}

#[tokio::test]
async fn a_schedule_is_set_shown_paused_resumed_run_and_deleted() {
    let scene = Scene::start().await;
    assert_eq!(scene.done(&["schedules", "list", "--json"]).await, "");
    let set = ["schedules", "set", "tick", "--route", "web", "--every", "1s", "--missed", "all=3"];
    let more = ["--header", "X-Kind: daily", "--key", "k", "--max-attempts", "2", "--expires-after", "1h"];
    let mut arguments = [&set[..], &more[..]].concat();
    arguments.push("--json");
    let created = scene.run_with_input(&arguments, br#"{"kind":"daily"}"#).await;
    let created: Value = serde_json::from_str(&created.out).unwrap_or_else(|error| panic!("{error}: {created:?}"));
    for (field, value) in [
        ("every", json!("1s")),
        ("missed", json!({ "all": 3 })),
        ("payload", json!({ "kind": "daily" })),
        ("content_type", json!("application/json")),
        ("headers", json!({ "X-Kind": "daily" })),
        ("key", json!("k")),
        ("max_attempts", json!(2)),
        ("expires_after", json!("1h")),
        ("managed_by", json!("api")),
    ] {
        assert_eq!(created[field], value, "{created}");
    }
    let requests = scene.receiver.wait_for(2, MAX_WAIT).await;
    for request in &requests {
        let occurrence = Timestamp::from_millisecond(i64::try_from(request.due()).expect("small")).expect("a time");
        assert_eq!(request.id(), format!("tick@{occurrence}"));
        assert_eq!((&*request.body, request.header("x-kind")), (&br#"{"kind":"daily"}"#[..], "daily"));
    }
    let shown = ran(&scene, "tick", 2).await;
    assert_eq!(
        (&shown["runs"][1]["result"], &shown["runs"][1]["occurrence"]),
        (&json!("delivered"), &json!(requests[0].id().trim_start_matches("tick@").replace('Z', ".000Z")))
    );
    let text = scene.done(&["schedules", "show", "tick"]).await;
    assert!(
        text.starts_with("name           tick\nroute          web\nmanaged_by     api\nevery          1s\n"),
        "{text}"
    );
    assert!(
        text.contains("\n\nNEXT\n20") && text.contains("\n\nOCCURRENCE                RESULT     LATE\n20"),
        "{text}"
    );

    assert_eq!(scene.done(&["schedules", "pause", "tick"]).await, "paused tick\n");
    let list = rows(&scene.done(&["schedules", "list"]).await);
    assert_eq!(list[0], ["NAME", "ROUTE", "TIMES", "TIME ZONE", "STATE", "NEXT", "LAST"]);
    assert_eq!(list[1][..6], ["tick", "web", "every 1s", "-", "paused", "-"]);
    assert!(list[1][6].starts_with("delivered 20"), "{list:?}");
    // An occurrence in flight ends as it is.
    eventually("it has ended", MAX_WAIT, async || {
        (scene.json(&["schedules", "show", "tick"]).await["in_flight"] == false).then_some(())
    })
    .await;
    let before = scene.receiver.count();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(scene.receiver.count(), before);
    assert_eq!(scene.json(&["status"]).await["routes"][0]["next_due"], Value::Null);
    // Nothing of a paused schedule is shown that has passed.
    let now = wall_clock();
    let next = times(&scene.json(&["schedules", "next", "tick", "--count", "3"]).await["next"]);
    assert!(next[0] > now && next[1] == next[0] + 1000 && next.len() == 3, "{now} {next:?}");
    assert_eq!(scene.done(&["schedules", "next", "tick"]).await.lines().count(), 5);

    let reply = scene.json(&["schedules", "run", "tick"]).await;
    assert!(reply["id"].as_str().is_some_and(|id| id.starts_with("tick~")), "{reply}");
    scene.receiver.wait_for(before + 1, MAX_WAIT).await;
    assert_eq!(scene.json(&["schedules", "resume", "tick"]).await, json!({ "schedule": "tick", "status": "resumed" }));
    scene.receiver.wait_for(before + 3, MAX_WAIT).await;

    scene.refused(&["schedules", "delete", "tick"], 2, "this would delete tick of web").await;
    assert_eq!(scene.done(&["schedules", "delete", "tick", "--dry-run"]).await, "would delete tick of web\n");
    assert_eq!(scene.done(&["schedules", "delete", "tick", "--yes"]).await, "deleted tick\n");
    scene.refused(&["schedules", "delete", "tick", "--yes"], 3, "there is no schedule `tick`").await;
}

#[tokio::test]
async fn what_a_schedule_prints_has_words_and_zone() {
    let scene = Scene::with(OF_FILE).await;
    let checked = scene.done(&["check"]).await;
    assert!(checked.starts_with("the configuration is valid: 1 route, 1 sink, 0 sources, 1 schedule\n"), "{checked}");
    let line = checked.lines().find(|line| line.starts_with("schedule nightly of web fires ")).expect("a line");
    assert_eq!(line.matches(" 03:00:00 +0").count(), 3, "{line}");
    let json = scene.json(&["check"]).await;
    assert_eq!(json["schedules"]["nightly"].as_array().map(Vec::len), Some(3), "{json}");

    let weekly = ["schedules", "set", "weekly", "--route", "web", "--cron", "30 6 * * 1", "--time-zone", "Asia/Tokyo"];
    let times_of = ["--starts-at", "2040-01-01T00:00:00Z", "--jitter", "5m", "--payload-base64", "/w=="];
    let set = scene.done(&[&weekly[..], &times_of].concat()).await;
    assert_eq!(set, "set weekly of web: At 06:30, on Monday, next 2040-01-01T21:30:00.000Z\n");
    let shown = scene.json(&["schedules", "show", "weekly"]).await;
    assert_eq!((&shown["payload_base64"], &shown["content_type"]), (&json!("/w=="), &Value::Null));
    eventually("the file is applied", MAX_WAIT, async || {
        let list = rows(&scene.done(&["schedules", "list"]).await);
        let expected = ["nightly", "web", "0 3 * * *", "Europe/Berlin", "waits"];
        (list.len() == 3 && list[1][..5] == expected && list[2][2..4] == ["30 6 * * 1", "Asia/Tokyo"]).then_some(())
    })
    .await;
    // The file owns it, but an operator can stop it.
    let change = ["schedules", "set", "nightly", "--route", "web", "--every", "1h", "--payload", "x"];
    scene.refused(&change, 1, "is of the configuration file").await;
    scene.refused(&["schedules", "delete", "nightly", "--yes"], 1, "is of the configuration file").await;
    scene.done(&["schedules", "pause", "nightly"]).await;
}

#[tokio::test]
async fn a_dead_occurrence_is_a_dead_letter_and_the_next_one_goes_on() {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Status(400));
    scene.done(&["schedules", "set", "tick", "--route", "web", "--every", "1s", "--payload", "x"]).await;
    let shown = ran(&scene, "tick", 2).await;
    scene.receiver.behave(Behaviour::Status(200));
    assert_eq!(shown["runs"][1]["result"], "dead", "{shown}");
    let dead = format!("tick~{}", times(&json!([shown["runs"][1]["occurrence"]]))[0]);
    let ended = scene.run(&["dead", "list", "web", "--json"]).await;
    assert!(ended.out.contains(&format!("\"{dead}\"")), "{dead}: {ended:?}");
}

#[tokio::test]
async fn mistakes_with_schedules_change_nothing() {
    let scene = Scene::start().await;
    let before = content(&scene.redis).await;
    let set = |more: &[&'static str]| [&["schedules", "set", "x", "--route", "web"], more].concat();
    for (arguments, code, text) in [
        (vec!["schedules"], 2, "Usage"),
        (vec!["schedules", "show", "none"], 3, "there is no schedule `none`"),
        (vec!["schedules", "next", "none"], 3, "there is no schedule `none`"),
        (vec!["schedules", "run", "none"], 3, "there is no schedule `none`"),
        (vec!["schedules", "pause", "none"], 3, "there is no schedule `none`"),
        (vec!["schedules", "resume", "none"], 3, "there is no schedule `none`"),
        (vec!["schedules", "delete", "none"], 3, "there is no schedule `none`"),
        (vec!["schedules", "show", "a b"], 2, "a name is 1 to 100"),
        (vec!["schedules", "show", ".."], 2, "cannot be a part of a URL"),
        (vec!["schedules", "next", "x", "--count", "101"], 2, "--count"),
        (set(&["--payload", "x"]), 2, "--cron"),
        (set(&["--payload", "x", "--cron", "@daily", "--every", "1h"]), 2, "cannot be used with"),
        (set(&["--payload", "x", "--cron", "0 0 30 2 *"]), 2, "cron: never fires"),
        (
            set(&["--payload", "x", "--cron", "@daily", "--time-zone", "Europe/Berlim"]),
            2,
            "did you mean `Europe/Berlin`",
        ),
        (set(&["--payload", "x", "--every", "1m", "--jitter", "1m"]), 2, "jitter: is not below 1m"),
        (set(&["--payload", "x", "--every", "1h", "--missed", "some"]), 2, "is `skip`, `last` or `all=N`"),
        (set(&["--payload", "x", "--every", "1h", "--missed", "all=1001"]), 2, "missed: `all` is not within"),
        (set(&["--payload-base64", "?", "--every", "1h"]), 2, "--payload-base64: is not base64"),
        (set(&["--payload", "x", "--payload-base64", "eA==", "--every", "1h"]), 2, "cannot be used with"),
        (set(&["--every", "1h"]), 2, "standard input has no payload"),
        (set(&["--payload", "x", "--every", "1h", "--header", "X"]), 2, "is not `Name: value`"),
        (
            vec!["schedules", "set", "x", "--route", "none", "--every", "1h", "--payload", "x"],
            2,
            "there is no route `none`",
        ),
    ] {
        scene.refused(&arguments, code, text).await;
    }
    assert_eq!(content(&scene.redis).await, before, "nothing was written");
}

#[tokio::test]
async fn an_instance_forgets_the_time_of_a_schedule_that_another_one_deleted() {
    let scene = Scene::start().await;
    scene.receiver.behave(Behaviour::Hang);
    let starts = (wall_clock() + 1000).to_string();
    let set = ["schedules", "set", "late", "--route", "web", "--every", "1h", "--starts-at", &starts, "--payload", "x"];
    scene.done(&set).await;
    scene.receiver.wait_for(1, MAX_WAIT).await;
    let other = Punctual::start(&scene.configuration).await;
    let (client, labels) = (Client::of(&other), ["schedule=\"late\""]);
    let shown = async || client.metrics().await.sum("punctual_schedule_next_timestamp_seconds", &labels);
    let starts: u64 = starts.parse().expect("a number");
    eventually("it is read", MAX_WAIT, async || (shown().await.abs_diff(starts / 1000) <= 1).then_some(())).await;
    scene.done(&["schedules", "delete", "late", "--yes"]).await;
    eventually("it is forgotten", Duration::from_mins(1), async || (shown().await == 0).then_some(())).await;
}
