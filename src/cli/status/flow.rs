//! The messages that wait for their flow.

use std::cmp::Reverse;

use serde_json::Value;

use super::screen::{entries, text_of};
use crate::cli::{output, table};

/// Maximum number of routes: one line for each, so that all fits one screen.
const MAX_ROUTES: usize = 3;

/// One line for each route with such messages; the route with the most is first.
pub fn lines(overview: &Value, columns: usize) -> Vec<String> {
    let waiting = |route: &Value| route["waiting_for_flow"].as_u64().unwrap_or(0);
    let mut routes: Vec<&Value> = entries(overview, "routes").filter(|route| waiting(route) > 0).collect();
    routes.sort_by_key(|route| Reverse(waiting(route)));
    let line = |route: &Value| {
        let messages = output::counted(waiting(route), "message");
        let flows = output::counted(route["waiting_flows"].as_u64().unwrap_or(0), "flow");
        table::cut(&format!("{}: waiting for their flow: {messages} of {flows}", text_of(&route["route"])), columns)
    };
    routes.into_iter().take(MAX_ROUTES).map(line).collect()
}

#[test]
fn the_routes_with_the_most_waiting_messages_have_a_line() {
    let route = |name: &str, messages: u64, flows: u64| serde_json::json!({ "route": name, "waiting_for_flow": messages, "waiting_flows": flows });
    let none = serde_json::json!({ "route": "without", "pending": 7 });
    let routes = [none, route("idle", 0, 0), route("a", 2, 2), route("b", 1, 1), route("c", 900, 3), route("d", 1, 1)];
    let overview = serde_json::json!({ "routes": routes });
    let all = [
        "c: waiting for their flow: 900 messages of 3 flows",
        "a: waiting for their flow: 2 messages of 2 flows",
        "b: waiting for their flow: 1 message of 1 flow",
    ];
    assert_eq!(lines(&overview, 80), all);
    assert_eq!(lines(&overview, 10)[0], "c: wait...");
    assert_eq!(lines(&serde_json::json!({ "routes": null }), 80), Vec::<String>::new());
}
