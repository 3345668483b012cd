//! `punctual dead summary ROUTE`.

use clap::Args;
use serde_json::Value;
use url::form_urlencoded::Serializer;

use crate::cli::{Session, client::of_route, failure::Failure, filter::Filter, output, table};

#[derive(Args)]
pub struct SummaryArguments {
    route: String,
    #[command(flatten)]
    filter: Filter,
}

pub async fn run(session: &Session<'_>, arguments: SummaryArguments) -> Result<(), Failure> {
    let query = Serializer::new(String::new()).extend_pairs(arguments.filter.fields()).finish();
    let path = of_route(&arguments.route, &format!("/dead/summary?{query}"))?;
    let summary = session.client.get(&path).await?;
    let text = text(&summary);
    output::result(session.global, summary, text)
}

fn text(summary: &Value) -> String {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_owned();
    let row = |group: &Value| {
        let sample = &group["sample"];
        let [oldest, newest] = ["oldest", "newest"].map(|name| text(&group[name]));
        vec![
            text(&group["reason"]),
            group["count"].to_string(),
            oldest,
            newest,
            text(&sample["id"]),
            text(&sample["error"]),
        ]
    };
    let rows: Vec<_> = summary["reasons"].as_array().into_iter().flatten().map(row).collect();
    let table = table::text(&["REASON", "COUNT", "OLDEST", "NEWEST", "SAMPLE", "ERROR"], &rows);
    let incomplete = if summary["complete"] == false { ", and more: not all were counted in time" } else { "" };
    format!("{table}\ntotal {}{incomplete}", summary["total"])
}
