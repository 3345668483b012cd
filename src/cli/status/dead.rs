//! The reasons of dead letters, for the routes with the most dead letters.

use std::{cmp::Reverse, time::Duration};

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::screen::{entries, text_of};
use crate::cli::{
    client::{Client, of_route},
    failure::Failure,
    table,
};

/// Maximum number of routes, and of reasons per route: one line for each route, so that all fits one screen.
const MAX_ROUTES: usize = 3;
const MAX_REASONS: usize = 3;
/// Minimum width of an error, in characters. A shorter error would not be understandable.
const MIN_ERROR: usize = 12;
/// Maximum time for the summaries. With the default `server.request_timeout` the API replies within half of it, with
/// the counts up to that time.
const ANSWER: Duration = Duration::from_secs(5);
/// Field of a route in an overview: its summary, or an object with `error`.
const SUMMARY: &str = "dead_summary";

/// Adds the summaries to the overview.
pub async fn add(client: &Client, overview: &mut Value) {
    let dead = |route: &Value| route["dead"].as_u64().unwrap_or(0);
    let routes = overview.get_mut("routes").and_then(Value::as_array_mut);
    let mut routes: Vec<&mut Value> = routes.into_iter().flatten().collect();
    routes.retain(|route| dead(route) > 0);
    routes.sort_by_key(|route| Reverse(dead(route)));
    routes.truncate(MAX_ROUTES);
    join_all(routes.into_iter().map(async |route| route[SUMMARY] = summary(client, &text_of(&route["route"])).await))
        .await;
}

async fn summary(client: &Client, route: &str) -> Value {
    let answer = timeout(ANSWER, async { client.get(&of_route(route, "/dead/summary")?).await }).await;
    let answer = answer.unwrap_or_else(|_| Err(Failure::Failed(format!("no answer in {ANSWER:?}"))));
    answer.unwrap_or_else(|failure| json!({ "error": failure.to_string() }))
}

/// One line for each summary; the route with the most dead letters is first.
pub fn lines(overview: &Value, columns: usize) -> Vec<String> {
    let mut routes: Vec<&Value> = entries(overview, "routes").collect();
    routes.retain(|route| route[SUMMARY].is_object());
    routes.sort_by_key(|route| Reverse(route["dead"].as_u64()));
    routes.into_iter().map(|route| line(route, columns)).collect()
}

/// All counts, followed by as much of the errors as fits. The most frequent reason is first.
fn line(route: &Value, columns: usize) -> String {
    let (summary, head) = (&route[SUMMARY], format!("{}: {} dead: ", text_of(&route["route"]), route["dead"]));
    if !summary["error"].is_null() {
        return table::cut(&format!("{head}the reasons are not known: {}", text_of(&summary["error"])), columns);
    }
    let mut groups: Vec<&Value> = summary["reasons"].as_array().into_iter().flatten().collect();
    groups.sort_by_key(|group| Reverse(group["count"].as_u64()));
    groups.truncate(MAX_REASONS);
    let at_least = if summary["complete"] == false { "+" } else { "" };
    let count = |group: &&Value| format!("{} {}{at_least}", text_of(&group["reason"]), group["count"]);
    let mut reasons: Vec<String> = groups.iter().map(count).collect();
    let mut left = columns.saturating_sub((head.clone() + &reasons.join(", ")).chars().count());
    for (reason, group) in reasons.iter_mut().zip(groups) {
        let error = group["sample"]["error"].as_str().filter(|error| !error.is_empty() && left >= MIN_ERROR);
        if let Some(error) = error {
            let error = format!(" ({})", table::cut(error, left - " ()".len()));
            left -= error.chars().count();
            reason.push_str(&error);
        }
    }
    table::cut(&(head + &reasons.join(", ")), columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(summary: &Value, columns: usize) -> String {
        lines(
            &json!({ "routes": [{ "route": "a", "dead": 0 }, { "route": "orders", "dead": 203, SUMMARY: summary }] }),
            columns,
        )
        .join("\n")
    }

    #[test]
    fn the_line_of_a_route_has_all_counts_and_fits_the_terminal() {
        let group = |reason: &str, count: u64, error: &str| json!({ "reason": reason, "count": count, "sample": { "error": error } });
        let groups =
            [group("attempts", 2, "HTTP 500"), group("rejected", 200, "HTTP 422: {\n\"no\"}"), group("expired", 1, "")];
        let mut summary = json!({ "complete": true, "reasons": groups });
        let whole = "orders: 203 dead: rejected 200 (HTTP 422: { \"no\"}), attempts 2 (HTTP 500), expired 1";
        assert_eq!(shown(&summary, 600), whole);
        let cut = "orders: 203 dead: rejected 200 (HTTP 422: { ...), attempts 2, expired 1";
        assert_eq!(shown(&summary, 71), cut);
        assert_eq!(shown(&summary, 30), "orders: 203 dead: rejected ...");
        summary["complete"] = false.into();
        assert!(shown(&summary, 600).starts_with("orders: 203 dead: rejected 200+ ("));
        let unknown = "orders: 203 dead: the reasons are not known: no answer in 5s";
        assert_eq!(shown(&json!({ "error": "no answer in 5s" }), 600), unknown);
        assert_eq!(lines(&json!({ "routes": null }), 80), Vec::<String>::new());
    }
}
