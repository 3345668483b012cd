//! `punctual stats`: the numbers of the routes that Redis knows.

use clap::Args;
use serde_json::json;

use super::{Global, failure::Failure, open, output, table};
use crate::queue::RouteStats;

#[derive(Args)]
pub struct StatsArguments {
    /// Only this route
    route: Option<String>,
}

pub async fn run(global: &Global, arguments: StatsArguments) -> Result<(), Failure> {
    let queue = open::queue(global).await?;
    let routes = match arguments.route {
        Some(route) => vec![route.into()],
        None => queue.routes(),
    };
    let mut all = Vec::new();
    for route in &routes {
        all.push(queue.stats(route).await?);
    }
    let header = ["ROUTE", "SINK", "PAUSED", "PENDING", "DUE", "UNACK", "DEAD", "NEXT DUE", "OVERDUE"];
    let rows: Vec<_> = all.iter().map(as_row).collect();
    output::result(global, json!(all), table::text(&header, &rows))
}

fn as_row(stats: &RouteStats) -> Vec<String> {
    vec![
        stats.route.to_string(),
        stats.sink.as_deref().unwrap_or("-").to_owned(),
        if stats.paused { "yes" } else { "no" }.into(),
        stats.pending.to_string(),
        stats.due.to_string(),
        stats.unack.to_string(),
        stats.dead.to_string(),
        stats.next_due.map_or_else(|| "-".into(), crate::time::UnixMillis::to_rfc3339),
        format!("{:.3}s", stats.oldest_overdue_seconds),
    ]
}
