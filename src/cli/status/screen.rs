//! An overview as tables.

use std::{cmp::Reverse, time::Duration};

use serde_json::Value;

use crate::cli::table;

/// Maximum number of rows of each table, so that the whole fits one screen.
pub const MAX_ROWS: usize = 15;

/// `url`: that of the instance. `rows`: maximum number of rows of each table.
pub fn text(overview: &Value, url: &str, rows: usize) -> String {
    let instance = &overview["instance"];
    let ready = if instance["ready"] == true { "ready" } else { "NOT READY" };
    let up = Duration::from_secs(instance["uptime_seconds"].as_u64().unwrap_or(0));
    let redis = &overview["redis"];
    let state = match (redis["up"] == true, redis["error"].as_str()) {
        (true, None) => "up".to_owned(),
        (true, Some(error)) => format!("up, {error}"),
        (false, error) => format!("DOWN, {}", error.unwrap_or("-")),
    };
    let version = text_of(&instance["version"]);
    let head = format!(
        "punctual {version} at {url}: {ready}, up {}\nRedis: {}",
        humantime::format_duration(up),
        table::harmless(&state.replace('\n', " "))
    );
    let mut parts = vec![head];
    let names = ["ROUTE", "SINK", "PAUSED", "PENDING", "DUE", "RETRYING", "UNACK", "DEAD", "NEXT DUE", "OVERDUE"];
    let mut routes: Vec<&Value> = entries(overview, "routes").collect();
    // If there are too many routes, the most urgent ones are shown. The sort keeps the order of equally urgent ones.
    if routes.len() > rows {
        routes.sort_by_key(|route| Reverse(urgency(route)));
    }
    parts.extend(part(&names, &routes, rows, route));
    let sinks: Vec<&Value> = entries(overview, "sinks").collect();
    parts.extend(part(&["SINK", "TYPE", "STATE", "IN FLIGHT", "ERROR"], &sinks, rows, sink));
    let sources: Vec<&Value> = entries(overview, "sources").collect();
    parts.extend(part(&["SOURCE", "TYPE", "ROUTE", "STATE", "WAITING", "ERROR"], &sources, rows, source));
    parts.join("\n\n")
}

/// A table; `None` if it is empty.
fn part(names: &[&str], all: &[&Value], rows: usize, row: fn(&Value) -> Vec<String>) -> Option<String> {
    let shown: Vec<_> = all.iter().take(rows).map(|entry| row(entry)).collect();
    let rest = all.len() - shown.len();
    let more = if rest > 0 { format!("\nand {rest} more: --all") } else { String::new() };
    (!all.is_empty()).then(|| table::text(names, &shown) + &more)
}

/// Sort key that is greater for paused, late and failing routes.
fn urgency(route: &Value) -> (bool, u64, u64, u64) {
    let number = |name: &str| route[name].as_u64().unwrap_or(0);
    let is_odd = route["paused"] == true || !route["error"].is_null();
    (is_odd, number("due"), number("dead"), number("pending"))
}

fn route(route: &Value) -> Vec<String> {
    let cell = |name: &str| text_of(&route[name]);
    if !route["error"].is_null() {
        let empty = std::iter::repeat_n("-".to_owned(), 8);
        return [cell("route"), cell("error")].into_iter().chain(empty).collect();
    }
    let named = |name: &str, before: &str| {
        let text = route[name].as_str().filter(|text| !text.is_empty());
        text.map(|text| format!("{before}{text}")).unwrap_or_default()
    };
    let paused = if route["paused"] == true {
        format!("yes{}{}", named("paused_by", ", by "), named("note", ": "))
    } else if route["window"]["open"] == false {
        format!("closed until {}", text_of(&route["window"]["until"]))
    } else {
        "no".to_owned()
    };
    let overdue = format!("{:.3}s", route["oldest_overdue_seconds"].as_f64().unwrap_or(0.0));
    let counts = ["pending", "due", "retrying", "unack", "dead", "next_due"].map(cell);
    [cell("route"), cell("sink"), paused].into_iter().chain(counts).chain([overdue]).collect()
}

fn sink(sink: &Value) -> Vec<String> {
    let domains = domains(sink);
    let (state, error) = if is_down(sink) {
        ("DOWN".to_owned(), down_error(sink))
    } else if !domains.is_empty() {
        (format!("DOWN IN PART ({})", domains.len()), domains.join("; "))
    } else if sink["check"].is_null() {
        ("not checked yet".to_owned(), "-".to_owned())
    } else {
        ("up".to_owned(), "-".to_owned())
    };
    vec![text_of(&sink["name"]), text_of(&sink["type"]), state, text_of(&sink["in_flight"]), error]
}

fn source(source: &Value) -> Vec<String> {
    let is_failing = source["state"] == "failing";
    let state = if is_failing { "DOWN".to_owned() } else { text_of(&source["state"]) };
    let error = if is_failing { text_of(&source["last_error"]) } else { "-".to_owned() };
    let [name, kind, route, depth] = ["name", "type", "route", "depth"].map(|field| text_of(&source[field]));
    vec![name, kind, route, state, depth, error]
}

pub fn is_down(sink: &Value) -> bool {
    sink["breaker"] != "closed" || sink["check"].as_str().is_some_and(|check| check != "ok")
}

/// The error of a sink that is down: of its check while the breaker is closed, otherwise of its messages.
pub fn down_error(sink: &Value) -> String {
    let [last, check] = [&sink["last_error"], &sink["check"]];
    let order = if sink["breaker"] == "closed" { [check, last] } else { [last, check] };
    order.into_iter().find(|error| !error.is_null() && *error != "ok").map_or_else(|| "-".to_owned(), text_of)
}

/// The failure domains that are down, each with its error and the time since when.
pub fn domains(sink: &Value) -> Vec<String> {
    let text = |domain: &Value| {
        let [name, since, error] = ["name", "since", "error"].map(|field| text_of(&domain[field]));
        format!("{name} since {since}: {error}")
    };
    sink["down_domains"].as_array().into_iter().flatten().map(text).collect()
}

/// Entries of `routes`, `sinks` or `sources`; empty while these are unknown.
pub fn entries<'a>(overview: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    overview[name].as_array().into_iter().flatten()
}

/// The text of a cell.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
