//! A route outside of its window: nothing leaves, and each view says why. Others go on.

use jiff::{Timestamp, ToSpan, tz::TimeZone};

use super::Scene;
use crate::program::client::Client;

/// The day of the week after `days` days, as in a configuration.
fn day_after(days: i64) -> String {
    let at = Timestamp::now().checked_add((days * 24).hours()).expect("a time").to_zoned(TimeZone::UTC);
    at.strftime("%a").to_string().to_lowercase()
}

#[tokio::test]
async fn a_closed_route_delivers_nothing_and_says_until_when() {
    let (opens, today) = (day_after(3), [day_after(-1), day_after(0), day_after(1)].join(","));
    let variables = [
        ("PUNCTUAL__ROUTES__SHUT__SINK", "hook"),
        ("PUNCTUAL__ROUTES__SHUT__WINDOW__DAYS", &opens),
        ("PUNCTUAL__ROUTES__SHUT__WINDOW__FROM", "08:00"),
        ("PUNCTUAL__ROUTES__SHUT__WINDOW__TO", "20:00"),
        ("PUNCTUAL__ROUTES__SHUT__WINDOW__TIME_ZONE", "Europe/Berlin"),
        ("PUNCTUAL__ROUTES__OPEN__SINK", "hook"),
        ("PUNCTUAL__ROUTES__OPEN__WINDOW__DAYS", &today),
        ("PUNCTUAL__ROUTES__OPEN__WINDOW__FROM", "00:00"),
        ("PUNCTUAL__ROUTES__OPEN__WINDOW__TO", "24:00"),
    ];
    let scene = Scene::with_environment("", &variables).await;
    scene.done(&["schedule", "shut", "--id", "waits", "--payload", "x"]).await;
    for n in 0..20 {
        scene.done(&["schedule", "open", "--id", &format!("o{n}"), "--payload", "x"]).await;
    }
    scene.receiver.wait_for(20, std::time::Duration::from_secs(10)).await;
    assert!(scene.receiver.requests().iter().all(|request| request.id() != "waits"));

    let message = scene.json(&["get", "shut", "waits"]).await;
    assert_eq!(message["waits_for"], "window", "{message}");
    let status = scene.json(&["status"]).await;
    let route = |name: &str| {
        let routes = status["routes"].as_array().expect("routes");
        routes.iter().find(|route| route["route"] == name).expect("the route").clone()
    };
    let [open, shut] = ["open", "shut"].map(route);
    assert_eq!((&open["window"]["open"], &shut["window"]["open"]), (&true.into(), &false.into()), "{status}");
    assert_eq!((&shut["due"], &shut["oldest_overdue_seconds"]), (&1.into(), &0.0.into()), "{shut}");
    let until: Timestamp = shut["window"]["until"].as_str().expect("a time").parse().expect("a time");
    let local = until.to_zoned(TimeZone::get("Europe/Berlin").expect("a zone"));
    assert_eq!(local.strftime("%a %H:%M").to_string().to_lowercase(), format!("{opens} 08:00"));
    assert!(route("web")["window"].is_null());
    let shown = scene.done(&["status"]).await;
    assert!(shown.contains(&format!("closed until {}", shut["window"]["until"].as_str().expect("a time"))), "{shown}");

    let checked = scene.done(&["check"]).await;
    assert!(checked.contains("route open delivers from "), "{checked}");
    let line = checked.lines().find(|line| line.starts_with("route shut delivers ")).expect("a line of the route");
    assert_eq!(line.matches(" 08:00 +0").count(), 3, "{line}");
    assert_eq!(line.matches(" 20:00 +0").count(), 3, "{line}");
    let page = Client::of(&scene.punctual).metrics().await;
    assert_eq!(page.sum("punctual_oldest_overdue_seconds", &["route=\"shut\""]), 0, "an alert would fire");
}
