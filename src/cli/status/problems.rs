//! Problems in an overview.

use std::time::Duration;

use serde_json::Value;

use super::screen::{domains, down_error, entries, is_down, text_of as text};

/// One line for each problem.
pub fn find(overview: &Value, overdue: Duration) -> Vec<String> {
    let mut problems = Vec::new();
    let redis = &overview["redis"];
    if redis["up"] != true {
        problems.push(format!("Redis is down: {}", text(&redis["error"])));
    } else if !redis["error"].is_null() {
        problems.push(format!("the instance is not ready: {}", text(&redis["error"])));
    }
    for sink in entries(overview, "sinks") {
        let name = text(&sink["name"]);
        if is_down(sink) {
            problems.push(format!("sink `{name}` is down: {}", down_error(sink)));
        } else if let domains @ [_, ..] = &*domains(sink) {
            problems.push(format!("sink `{name}`: down in part: {}", domains.join("; ")));
        }
    }
    for source in entries(overview, "sources").filter(|source| source["state"] == "failing") {
        problems.push(format!("source `{}` is down: {}", text(&source["name"]), text(&source["last_error"])));
    }
    for route in entries(overview, "routes") {
        let name = text(&route["route"]);
        if !route["error"].is_null() {
            problems.push(format!("route `{name}`: {}", text(&route["error"])));
        }
        let late = Duration::try_from_secs_f64(route["oldest_overdue_seconds"].as_f64().unwrap_or(0.0));
        if let Some(late) = late.ok().filter(|late| *late > overdue) {
            let paused = if route["paused"] == true { ", it is paused" } else { "" };
            let late = humantime::format_duration(Duration::from_secs(late.as_secs()));
            problems.push(format!("route `{name}`: a message is overdue by {late}{paused}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(overview: &Value) -> String {
        find(overview, Duration::from_mins(1)).join("; ")
    }

    #[test]
    fn each_part_that_is_down_and_each_late_route_is_a_problem() {
        let good = json!({
            "redis": { "up": true, "error": null },
            "routes": [{ "route": "r", "oldest_overdue_seconds": 59.9, "paused": false }],
            "sinks": [
                { "name": "s", "breaker": "closed", "check": "ok", "last_error": "old", "down_domains": [] },
                { "name": "t", "breaker": "closed", "check": null, "down_domains": [] },
            ],
            "sources": [{ "name": "q", "state": "running" }],
        });
        assert_eq!(found(&good), "");
        let with = |pointer: &str, value: Value| {
            let mut overview = good.clone();
            *overview.pointer_mut(pointer).unwrap() = value;
            found(&overview)
        };
        assert_eq!(with("/redis", json!({ "up": false, "error": "refused" })), "Redis is down: refused");
        assert_eq!(with("/redis/error", json!("loading")), "the instance is not ready: loading");
        assert_eq!(with("/sinks/0/breaker", json!("half_open")), "sink `s` is down: old");
        assert_eq!(with("/sinks/1/check", json!("refused")), "sink `t` is down: refused");
        // The sink is down because of the check, not of a message that it refused before.
        assert_eq!(with("/sinks/0/check", json!("refused")), "sink `s` is down: refused");
        let domain = |name: &str| json!({ "name": name, "since": "T", "error": "refused" });
        let down = with("/sinks/0/down_domains", json!([domain("a"), domain("b")]));
        assert_eq!(down, "sink `s`: down in part: a since T: refused; b since T: refused");
        assert_eq!(with("/sources/0/state", json!("failing")), "source `q` is down: -");
        assert_eq!(with("/routes/0/oldest_overdue_seconds", json!(61)), "route `r`: a message is overdue by 1m 1s");
        assert_eq!(with("/routes/0", json!({ "route": "r", "error": "type" })), "route `r`: type");
    }
}
