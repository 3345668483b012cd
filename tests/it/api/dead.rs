//! Dead messages: what is selected, and what is done with it.

use punctual::message::DeadReason;
use serde_json::{Value, json};

use crate::support::{ApiServer, Setup};

#[tokio::test]
async fn a_call_that_selects_nothing_or_is_misspelt_changes_nothing() {
    let server = ApiServer::start().await;
    for id in ["d1", "d2"] {
        server.bury("a", id).await;
    }
    for (body, status) in [
        ("", 422),
        ("{}", 422),
        (r#"{"all":false}"#, 422),
        (r#"{"ids":[]}"#, 422),
        (r#"{"ids":null}"#, 422),
        (r#"{"all":true,"ids":["d1"]}"#, 422),
        (r#"{"reason":"reject"}"#, 422),
        (r#"{"since":1700000000}"#, 422),
        (r#"{"al":true}"#, 400),
        (r#"{"all":true,"dryrun":true}"#, 400),
    ] {
        for call in ["redrive", "purge"] {
            server.call("POST", &format!("/v1/routes/a/dead/{call}"), body).await.problem(status);
        }
    }
    server.call("POST", "/v1/routes/a/dead/purge?reason=rejected", r#"{"all":true}"#).await.problem(400);
    server.call("POST", "/v1/routes/a/dead/redrive?dry_run=true", r#"{"all":true}"#).await.problem(400);
    for call in ["redrive", "purge"] {
        let twice = r#"{"ids":["d1","d1"],"dry_run":true}"#;
        let counted = server.call("POST", &format!("/v1/routes/a/dead/{call}"), twice).await;
        assert_eq!(counted.json["count"], 1, "{}", counted.text);
    }
    assert_eq!(server.ids_in("a", "dead").await, ["d1", "d2"]);
}

#[tokio::test]
async fn dead_messages_are_redriven_and_purged_by_id_filter_or_all() {
    let server = ApiServer::start().await;
    for id in ["d1", "d2", "d3"] {
        server.bury("a", id).await;
    }
    for id in ["e1", "e2", "e3"] {
        server.bury_as("a", id, DeadReason::Expired, "too late by 5 s").await;
    }
    let call = async |name: &str, body: Value| {
        let answer = server.call("POST", &format!("/v1/routes/a/dead/{name}"), &body.to_string()).await.json;
        (answer["count"].clone(), answer["more"].clone())
    };
    let done = |count: u64, more: bool| (json!(count), json!(more));
    assert_eq!(call("redrive", json!({"ids": ["d1", "d1", "unknown"]})).await, done(1, false));
    assert_eq!(server.call("GET", "/v1/routes/a/messages/d1", "").await.json["state"], "pending");

    assert_eq!(call("purge", json!({"reason": "expired", "dry_run": true})).await, done(3, false));
    assert_eq!(call("purge", json!({"reason": "expired", "dry_run": true, "limit": 2})).await, done(2, true));
    assert_eq!(call("redrive", json!({"reason": "expired", "limit": 1})).await, done(1, true));
    assert_eq!(call("purge", json!({"reason": "expired", "contains": "nothing like it"})).await, done(0, false));
    assert_eq!(call("purge", json!({"reason": "expired", "contains": "5 s"})).await, done(2, false));
    assert_eq!(call("purge", json!({"until": "2001-01-01T00:00:00Z"})).await, done(0, false));
    assert_eq!(server.ids_in("a", "dead").await, ["d2", "d3"]);
    assert_eq!(call("purge", json!({"since": "2001-01-01T00:00:00Z"})).await, done(2, false));
}

/// Live messages with bodies in every stored form. All but the last have a time of expiry.
async fn with_times_of_expiry(server: &ApiServer, at: u64) -> [&'static str; 4] {
    server.schedule("a", &json!({"id": "short", "payload": 1, "expires_at": at}).to_string()).await;
    let long = "order ".repeat(200);
    server.schedule("a", &json!({"id": "long", "payload": long, "expires_at": at}).to_string()).await;
    let mut connection = server.redis.connection().await;
    let produce = redis::Script::new(include_str!("../../../lua/produce.lua"));
    for (id, options) in [("produced", json!({"expires_at": at, "key": "k"})), ("never", json!({"key": "k"}))] {
        let mut call = produce.key("{punctual:a:0/1}:pending");
        call.arg(1).arg(id).arg("+0").arg("payload").arg(options.to_string());
        call.invoke_async::<redis::Value>(&mut connection).await.expect("it is taken");
    }
    ["short", "long", "produced", "never"]
}

#[tokio::test]
async fn a_redrive_drops_keeps_or_replaces_times_of_expiry() {
    const AT: u64 = 4_102_444_800_000;
    let server = ApiServer::start().await;
    let ids = with_times_of_expiry(&server, AT).await;
    let message = async |id: &str| server.call("GET", &format!("/v1/routes/a/messages/{id}"), "").await.json;
    let mut shown = Vec::new();
    for id in ids {
        shown.push(message(id).await);
    }
    for (expiry, expected) in [
        (json!({"expiry": "keep"}), Some(AT)),
        (json!({"expiry": "5m"}), None),
        (json!({"expiry": 300_000}), None),
        (json!({}), Some(0)),
        (json!({"expiry": "1h"}), None),
        (json!({"expiry": "drop"}), Some(0)),
    ] {
        server.bury_all("a", 1, DeadReason::Expired, "claimed late").await;
        let mut body = json!({"all": true});
        body.as_object_mut().unwrap().extend(expiry.as_object().unwrap().clone());
        let answer = server.call("POST", "/v1/routes/a/dead/redrive", &body.to_string()).await;
        assert_eq!(answer.json["count"], 4, "{}", answer.text);
        let mut after = Vec::new();
        for (id, before) in ids.iter().zip(&shown) {
            let now = message(id).await;
            match expected {
                Some(AT) => assert_eq!(now["expires_at"], before["expires_at"], "{id}: {now}"),
                Some(_) => assert_eq!(now.get("expires_at").filter(|at| !at.is_null()), None, "{id}: {now}"),
                None => after.push(now["expires_at"].as_u64().unwrap_or_else(|| panic!("{id}: {now}"))),
            }
            for name in ["payload", "key", "content_type"] {
                assert_eq!(now[name], before[name], "{id}: {now}");
            }
        }
        assert!(after.windows(2).all(|pair| pair[0] == pair[1]), "one script, one time: {after:?}");
    }
    for (call, wrong) in [
        ("redrive", r#""soon""#),
        ("redrive", "0"),
        ("redrive", "null"),
        ("redrive", r#""-5m""#),
        ("purge", r#""drop""#),
    ] {
        let body = format!(r#"{{"all":true,"expiry":{wrong}}}"#);
        let status = if call == "purge" { 400 } else { 422 };
        server.call("POST", &format!("/v1/routes/a/dead/{call}"), &body).await.problem(status);
    }
}

#[tokio::test]
async fn a_message_that_would_expire_before_it_is_delivered_is_refused() {
    const MESSAGES: &str = "/v1/routes/a/messages";
    let server = ApiServer::start().await;
    let (past, soon, far) = (1_600_000_000_000_u64, 4_102_444_800_000_u64, 4_102_448_400_000_u64);
    let refused = async |path: &str, body: Value, pointer: &str| {
        let answer = server.call("POST", path, &body.to_string()).await;
        assert_eq!(answer.problem(422), "invalid");
        assert_eq!(answer.json["errors"][0]["pointer"], pointer, "{}", answer.text);
        assert!(answer.text.contains("before it would be delivered"), "{}", answer.text);
    };
    refused(MESSAGES, json!({"payload": 1, "expires_at": past}), "/expires_at").await;
    refused(MESSAGES, json!({"payload": 1, "expires_at": past, "deliver_at": past - 1}), "/expires_at").await;
    refused(MESSAGES, json!({"payload": 1, "expires_at": soon, "deliver_at": far}), "/expires_at").await;
    refused(MESSAGES, json!({"payload": 1, "expires_at": soon, "delay": "100y"}), "/expires_at").await;
    let good = json!({"id": "good", "payload": 1, "delay": "1h", "expires_at": soon});
    refused(MESSAGES, json!([good, {"payload": 1, "expires_at": past}]), "/1/expires_at").await;
    let replacing = json!({"id": "good", "payload": 1, "on_conflict": "replace", "expires_at": past});
    refused(MESSAGES, replacing, "/expires_at").await;
    refused(&format!("/v1/routes/a/raw?expires_at={past}"), json!(1), "expires_at").await;
    assert_eq!(server.ids_in("a", "pending").await, [""; 0]);

    server.schedule("a", &good.to_string()).await;
    server.schedule("a", r#"{"id":"never","payload":1,"delay":"1h"}"#).await;
    for (path, status) in [("good", 422), ("never", 200)] {
        let late = json!({"deliver_at": far}).to_string();
        let answer = server.call("PATCH", &format!("{MESSAGES}/{path}"), &late).await;
        assert_eq!(answer.status, status, "{}", answer.text);
    }
    let moved = server.call("PATCH", &format!("{MESSAGES}/good"), &json!({"deliver_at": soon}).to_string()).await;
    assert_eq!(moved.status, 200, "{}", moved.text);
}

#[tokio::test]
async fn thousands_in_many_partitions_are_selected_completely() {
    let server = ApiServer::start_with(Setup { routes: vec![("a", 5)], ..Setup::default() }).await;
    let some: Vec<String> = (0..3000).map(|n| format!("m{n}")).collect();
    for part in some.chunks(1000) {
        let messages: Vec<_> = part.iter().map(|id| json!({"id": id, "payload": ""})).collect();
        server.call("POST", "/v1/routes/a/messages", &json!(messages).to_string()).await;
    }
    server.bury_all("a", 5, DeadReason::Attempts, "HTTP 503").await;
    let call = async |name: &str, body: Value| {
        let answer = server.call("POST", &format!("/v1/routes/a/dead/{name}"), &body.to_string()).await.json;
        (answer["count"].as_u64().expect("a count"), answer["more"] == true)
    };
    assert_eq!(call("purge", json!({"all": true, "dry_run": true})).await, (3000, false));
    assert_eq!(call("redrive", json!({"reason": "attempts", "limit": 1})).await, (1, true));
    assert_eq!(call("redrive", json!({"all": true, "limit": 1999})).await, (1999, true));
    let summary = server.call("GET", "/v1/routes/a/dead/summary", "").await.json;
    assert_eq!((&summary["total"], &summary["complete"]), (&json!(1000), &json!(true)));
    assert_eq!(call("purge", json!({"contains": "503"})).await, (1000, false));
}

#[tokio::test]
async fn a_redrive_in_parts_selects_no_message_twice_although_it_dies_again() {
    let server = ApiServer::start_with(Setup { routes: vec![("a", 5)], ..Setup::default() }).await;
    let messages: Vec<_> = (0..300).map(|n| json!({"id": format!("m{n}"), "payload": ""})).collect();
    server.call("POST", "/v1/routes/a/messages", &json!(messages).to_string()).await;
    server.bury_all("a", 5, DeadReason::Rejected, "HTTP 422").await;
    let (mut total, mut body, mut calls) = (0, json!({"all": true, "limit": 70}), 0);
    loop {
        let redriven = server.call("POST", "/v1/routes/a/dead/redrive", &body.to_string()).await;
        total += redriven.json["count"].as_u64().unwrap_or_else(|| panic!("{}", redriven.text));
        calls += 1;
        // Later than the end of the first call's filter.
        server.pass_millisecond().await;
        server.bury_all("a", 5, DeadReason::Rejected, "HTTP 422").await;
        if redriven.json["more"] == false {
            assert_eq!(redriven.json["cursor"], Value::Null);
            break;
        }
        body["cursor"] = redriven.json["cursor"].clone();
        assert!(calls < 20, "{}", redriven.text);
    }
    assert_eq!((total, calls), (300, 5));
    let counted = server.call("POST", "/v1/routes/a/dead/purge", r#"{"all":true,"dry_run":true}"#).await.json;
    server.pass_millisecond().await;
    server.schedule("a", r#"{"id":"late","payload":1}"#).await;
    server.bury_all("a", 5, DeadReason::Rejected, "HTTP 422").await;
    let asked = json!({"until": counted["until"]}).to_string();
    let purged = server.call("POST", "/v1/routes/a/dead/purge", &asked).await.json;
    assert_eq!((&purged["count"], &purged["more"]), (&json!(300), &json!(false)), "{purged}");
    assert_eq!(server.call("GET", "/v1/routes/a", "").await.json["dead"], 1);
    for wrong in [r#"{"all":true,"cursor":"x"}"#, r#"{"ids":["a"],"cursor":"MCAx"}"#] {
        let refused = server.call("POST", "/v1/routes/a/dead/redrive", wrong).await;
        assert!((400..500).contains(&refused.status), "{}", refused.text);
    }
}

#[tokio::test]
async fn an_id_that_died_again_since_it_was_counted_is_not_selected() {
    let server = ApiServer::start().await;
    for id in ["again", "once"] {
        server.bury("a", id).await;
    }
    let call = async |name: &str, body: Value| {
        let answer = server.call("POST", &format!("/v1/routes/a/dead/{name}"), &body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json
    };
    let counted = call("purge", json!({"ids": ["again", "once"], "dry_run": true})).await;
    assert_eq!(counted["count"], 2, "{counted}");
    let until = counted["until"].clone();
    server.pass_millisecond().await;
    assert_eq!(call("redrive", json!({"ids": ["again"], "until": until})).await["count"], 1);
    server.bury_all("a", 1, DeadReason::Rejected, "HTTP 409").await;
    for (name, dry_run, count) in [("redrive", true, 1), ("purge", true, 1), ("purge", false, 1), ("purge", false, 0)] {
        let body = json!({"ids": ["again", "once"], "until": until, "dry_run": dry_run});
        let answer = call(name, body).await;
        assert_eq!((&answer["count"], &answer["until"]), (&json!(count), &until), "{name}: {answer}");
    }
    assert_eq!(server.ids_in("a", "dead").await, ["again"]);
    assert_eq!(call("redrive", json!({"ids": ["again"]})).await["count"], 1);
}

#[tokio::test]
async fn a_summary_counts_by_reason_with_the_latest_as_sample() {
    let server = ApiServer::start().await;
    server.bury("a", "d1").await;
    for id in ["e1", "e2"] {
        server.bury_as("a", id, DeadReason::Expired, "too late").await;
    }
    let summary = server.call("GET", "/v1/routes/a/dead/summary", "").await.json;
    assert_eq!((&summary["total"], &summary["complete"]), (&json!(3), &json!(true)), "{summary}");
    let [first, second] = summary["reasons"].as_array().expect("reasons").as_slice() else { panic!("{summary}") };
    assert_eq!((&first["reason"], &first["count"]), (&json!("expired"), &json!(2)));
    assert_eq!(first["sample"], json!({"id": "e2", "error": "too late"}));
    assert_eq!((&second["reason"], &second["count"]), (&json!("rejected"), &json!(1)));
    assert!(first["oldest"].as_str() <= first["newest"].as_str());
    let one = server.call("GET", "/v1/routes/a/dead/summary?reason=expired", "").await.json;
    assert_eq!((&one["total"], one["reasons"].as_array().map(Vec::len)), (&json!(2), Some(1)));
    server.call("GET", "/v1/routes/a/dead/summary?state=dead", "").await.problem(400);
}

#[tokio::test]
async fn a_listing_shows_what_matches_its_filter() {
    let server = ApiServer::start().await;
    server.bury("a", "d1").await;
    server.bury_as("a", "e1", DeadReason::Expired, "100% too late").await;
    server.schedule("a", r#"{"id":"p1","payload":1,"delay":"1h"}"#).await;
    server.schedule("a", r#"{"id":"r1","payload":1}"#).await;
    server.fail("a", "r1").await;
    let ids = async |query: &str| {
        let page = server.call("GET", &format!("/v1/routes/a/messages?{query}"), "").await;
        let messages = page.json["messages"].as_array().unwrap_or_else(|| panic!("{}", page.text)).clone();
        messages.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("state=dead").await, ["e1", "d1"]);
    assert_eq!(ids("state=dead&reason=expired").await, ["e1"]);
    assert_eq!(ids("state=dead&contains=100%25").await, ["e1"]);
    assert_eq!(ids("state=dead&until=2001-01-01T00:00:00Z").await, [""; 0]);
    assert_eq!(ids("state=retrying").await, ["r1"]);
    assert_eq!(ids("contains=HTTP").await, ["r1"]);
    assert_eq!(ids("since=2001-01-01T00:00:00Z").await, ["r1", "p1"]);
    for wrong in [
        "reason=expired",
        "state=dead&reason=late",
        "state=dead&contains=",
        "state=unack&since=2001-01-01T00:00:00Z",
        "state=dead&since=1700000000",
        "stat=dead",
        "state=alive",
    ] {
        server.call("GET", &format!("/v1/routes/a/messages?{wrong}"), "").await.problem(400);
    }
}

#[tokio::test]
async fn a_message_says_when_it_failed_and_what_it_waits_for() {
    let server = ApiServer::start().await;
    server.schedule("a", r#"{"id":"p1","payload":1,"deliver_at":"2100-01-01T00:00:00Z"}"#).await;
    server.schedule("a", r#"{"id":"r1","payload":1}"#).await;
    server.fail("a", "r1").await;
    server.bury("a", "d1").await;
    let get =
        async |route: &str, id: &str| server.call("GET", &format!("/v1/routes/{route}/messages/{id}"), "").await.json;
    let waiting = get("a", "p1").await;
    assert_eq!((&waiting["waits_for"], &waiting["due"]), (&json!("due"), &json!("2100-01-01T00:00:00.000Z")));
    assert_eq!(waiting["next_attempt_at"], waiting["due"]);
    let failed = get("a", "r1").await;
    assert_eq!((&failed["attempts"], &failed["last_error"]), (&json!(1), &json!("HTTP 500")), "{failed}");
    assert!(failed["last_error_at"].as_str() < failed["next_attempt_at"].as_str(), "{failed}");
    // The sink of these tests is half-open.
    assert_eq!(failed["waits_for"], "sink");
    let down = &failed["down"];
    assert_eq!((&down["sink"], &down["error"]), (&json!("out"), &json!("HTTP 500 for acme")), "{failed}");
    assert!(down["since"].is_string() && down["domain"].is_null(), "{failed}");
    let dead = get("a", "d1").await;
    assert_eq!((&dead["died_at"], &dead["waits_for"]), (&dead["last_error_at"], &Value::Null), "{dead}");
    assert!(dead["died_at"].is_string());
    server.call("POST", "/v1/routes/a/pause", "").await;
    assert_eq!(get("a", "r1").await["waits_for"], "paused");
}

#[tokio::test]
async fn a_message_is_delivered_now_whatever_its_time() {
    let server = ApiServer::start().await;
    server.schedule("a", r#"{"id":"p1","payload":1,"delay":"1h"}"#).await;
    server.bury("a", "d1").await;
    server.call("POST", "/v1/routes/a/messages/p1/deliver", r#"{"at":"now"}"#).await.problem(400);
    assert!(server.claim("a").await.is_empty());
    let moved = server.call("POST", "/v1/routes/a/messages/p1/deliver", "").await;
    assert_eq!((moved.status, &moved.json["status"]), (200, &json!("rescheduled")));
    let claimed = server.claim("a").await;
    assert_eq!(claimed[0].0.id.as_str(), "p1");
    assert_eq!(server.call("POST", "/v1/routes/a/messages/d1/deliver", "").await.problem(409), "dead");
    server.call("POST", "/v1/routes/a/messages/none/deliver", "").await.problem(404);
}

#[tokio::test]
async fn a_forecast_counts_what_comes_due_in_each_interval() {
    let server = ApiServer::start_with(Setup { routes: vec![("a", 3)], ..Setup::default() }).await;
    let delays = ["0", "30s", "30s", "90s", "59m 30s", "2h", "3h"];
    let messages: Vec<_> = delays.iter().map(|delay| json!({"payload": 1, "delay": delay})).collect();
    server.call("POST", "/v1/routes/a/messages", &json!(messages).to_string()).await;
    let forecast = server.call("GET", "/v1/routes/a/forecast", "").await.json;
    assert_eq!(
        (&forecast["bucket_ms"], &forecast["overdue"], &forecast["later"]),
        (&json!(60_000), &json!(1), &json!(2))
    );
    let counts: Vec<u64> = serde_json::from_value(forecast["counts"].clone()).expect("counts");
    assert_eq!((counts.len(), counts[0], counts[1], counts[59], counts.iter().sum::<u64>()), (60, 2, 1, 1, 4));
    let coarse = server.call("GET", "/v1/routes/a/forecast?horizon=1d&buckets=24", "").await.json;
    assert_eq!(
        (&coarse["bucket_ms"], &coarse["counts"][0], &coarse["later"]),
        (&json!(3_600_000), &json!(4), &json!(0))
    );
    for wrong in ["buckets=0", "buckets=1001", "horizon=soon", "horizon=5&buckets=10", "horizont=1h"] {
        server.call("GET", &format!("/v1/routes/a/forecast?{wrong}"), "").await.problem(400);
    }
}

#[tokio::test]
async fn a_forecast_of_all_routes_adds_them_up_and_names_those_with_messages() {
    let routes = vec![("a", 3), ("b", 1), ("empty", 1), ("wrong", 1)];
    let server = ApiServer::start_with(Setup { routes, ..Setup::default() }).await;
    for (route, delays) in [("a", &["0", "30s", "90s"][..]), ("b", &["30s", "2h"])] {
        let messages: Vec<_> = delays.iter().map(|delay| json!({"payload": 1, "delay": delay})).collect();
        server.call("POST", &format!("/v1/routes/{route}/messages"), &json!(messages).to_string()).await;
    }
    let forecast = async || server.call("GET", "/v1/forecast?horizon=2m&buckets=2", "").await.json;
    let all = forecast().await;
    assert_eq!(
        (&all["bucket_ms"], &all["overdue"], &all["counts"], &all["later"], &all["failed"]),
        (&json!(60_000), &json!(1), &json!([2, 1]), &json!(1), &json!([]))
    );
    assert_eq!(
        all["routes"],
        json!({"a": {"overdue": 1, "counts": [1, 1], "later": 0}, "b": {"overdue": 0, "counts": [1, 0], "later": 1}})
    );
    // A route that cannot be read does not hide the others.
    let mut connection = server.redis.connection().await;
    let key = "{punctual:wrong:0/1}:pending";
    let _: () = redis::cmd("SET").arg(key).arg("external").query_async(&mut connection).await.expect("written");
    let all = forecast().await;
    assert_eq!((&all["counts"], &all["failed"][0]["route"]), (&json!([2, 1]), &json!("wrong")), "{all}");
    for wrong in ["buckets=0", "buckets=101", "horizon=soon"] {
        server.call("GET", &format!("/v1/forecast?{wrong}"), "").await.problem(400);
    }
}

#[tokio::test]
async fn the_overview_has_everything_and_answers_while_redis_is_down() {
    let mut server = ApiServer::start().await;
    server.schedule("a", r#"{"payload":1,"delay":"1h"}"#).await;
    let overview = server.call("GET", "/v1/overview", "").await.json;
    assert_eq!(overview["routes"][0]["pending"], 1, "{overview}");
    assert_eq!(overview["sinks"][0]["name"], "out");
    assert_eq!(overview["redis"], json!({"up": true, "error": null}));
    assert_eq!((&overview["instance"]["ready"], &overview["instance"]["version"]), (&json!(true), &json!("0.1.0")));
    server.redis.kill();
    let overview = server.call("GET", "/v1/overview", "").await.json;
    assert_eq!((&overview["routes"], &overview["redis"]["up"]), (&Value::Null, &json!(false)), "{overview}");
    assert!(overview["redis"]["error"].is_string() && overview["sinks"][0]["name"] == "out");
}
