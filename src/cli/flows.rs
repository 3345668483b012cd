//! `punctual flows`: the flows of a route.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    client::{Session, of_flow, of_route},
    failure::Failure,
    list::{self, Pages},
    message::fields,
    output,
};
use crate::message::EMPTY_FLOW;

/// Maximum number of flows of a page.
const MAX_PAGE: u64 = 100;

const COLUMNS: &[&str] = &["key", "waiting", "in_flight", "waits_for", "next_slot", "held_by", "rate", "parallel"];
const AMBIGUOUS: &str = "A route or flow with the name of a command follows `--`: punctual flows -- set";

#[derive(Args)]
#[command(
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    after_help = AMBIGUOUS
)]
pub struct FlowsArguments {
    #[arg(required = true)]
    route: Option<String>,
    /// Show only this flow; `@` is the empty one
    key: Option<String>,
    /// Maximum number of flows
    #[arg(long, value_name = "NUMBER", default_value = "50", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Set limits of one flow, which override those of the route
    Set(SetArguments),
    /// Stop the delivery of one flow, on every instance
    Pause(PauseArguments),
    /// Resume the delivery of one flow
    Resume(FlowArguments),
}

#[derive(Args)]
pub struct FlowArguments {
    route: String,
    /// Key of the flow; `@` is the empty one
    key: String,
}

#[derive(Args)]
pub struct PauseArguments {
    #[command(flatten)]
    flow: FlowArguments,
    /// The reason, which `flows` shows
    #[arg(long)]
    note: Option<String>,
}

#[derive(Args)]
pub struct SetArguments {
    #[command(flatten)]
    flow: FlowArguments,
    #[command(flatten)]
    limits: LimitArguments,
}

#[derive(Args)]
#[group(required = true, multiple = true)]
struct LimitArguments {
    /// Such as `5/s`, with `s`, `m`, `h` or `d`; `none`: that of the route
    #[arg(long)]
    rate: Option<String>,
    /// Number of messages that can leave at once after a pause; `none`: that of the route
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    burst: Option<Value>,
    /// Maximum number of messages in flight; `none`: that of the route
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    parallel: Option<Value>,
}

/// Removes a limit of the flow.
const NONE: &str = "none";

fn number(text: &str) -> Result<Value, String> {
    if text == NONE {
        return Ok(Value::Null);
    }
    text.parse::<u32>().map(Value::from).map_err(|_| format!("is a number or `{NONE}`"))
}

pub async fn run(session: &Session<'_>, arguments: FlowsArguments) -> Result<(), Failure> {
    let FlowsArguments { route, key, limit, command } = arguments;
    match (route, key, command) {
        (None, _, Some(Command::Set(arguments))) => set(session, arguments).await,
        (None, _, Some(Command::Pause(PauseArguments { flow, note }))) => {
            let body = note.map_or_else(|| json!({}), |note| json!({ "note": note }));
            steer(session, &flow, "pause", "paused", &body).await
        }
        (None, _, Some(Command::Resume(flow))) => steer(session, &flow, "resume", "resumed", &json!({})).await,
        (Some(route), Some(key), None) => look_at(session, &route, &key).await,
        (Some(route), None, None) => {
            let (name, query) = ("flows", Vec::new());
            let path = of_route(&route, "/flows")?;
            let pages = Pages { path: &path, name, query, max_page: MAX_PAGE, limit: Some(limit) };
            pages.show(session, COLUMNS, cell).await
        }
        _ => Err(Failure::Usage(AMBIGUOUS.into())),
    }
}

fn cell(flow: &Value, name: &str) -> String {
    match name {
        "key" if flow[name] == "" => EMPTY_FLOW.to_owned(),
        // Also if nothing waits.
        "waits_for" if flow["paused"] == true => "paused".to_owned(),
        name => list::cell(flow, name),
    }
}

async fn look_at(session: &Session<'_>, route: &str, key: &str) -> Result<(), Failure> {
    let flow = session.client.get(&of_flow(route, key, "")?).await?;
    let mut shown = flow.clone();
    shown["key"] = cell(&flow, "key").into();
    output::result(session.global, flow, fields(&shown, COLUMNS))
}

async fn set(session: &Session<'_>, arguments: SetArguments) -> Result<(), Failure> {
    let SetArguments { flow: FlowArguments { route, key }, limits } = arguments;
    let rate = limits.rate.map(|rate| if rate == NONE { Value::Null } else { rate.into() });
    let limits = [("rate", rate), ("burst", limits.burst), ("parallel", limits.parallel)];
    let body: Map<String, Value> =
        limits.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    let body = Value::Object(body).to_string();
    let flow = session.client.call(Method::PATCH, &of_flow(&route, &key, "")?, Some(body.into())).await?;
    let [rate, burst, parallel] = ["rate", "burst", "parallel"].map(|name| cell(&flow, name));
    let text = format!("flow {key} of {route} has rate {rate}, burst {burst}, parallel {parallel}");
    output::result(session.global, flow, text)
}

/// `done`: the participle of `call`.
async fn steer(
    session: &Session<'_>,
    flow: &FlowArguments,
    call: &str,
    done: &str,
    body: &Value,
) -> Result<(), Failure> {
    let FlowArguments { route, key } = flow;
    session.client.post(&of_flow(route, key, &format!("/{call}"))?, body).await?;
    let json = json!({ "route": route, "flow": key, "status": done });
    output::result(session.global, json, format_args!("{done} flow {key} of {route}"))
}
