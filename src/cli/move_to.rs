//! `punctual move ROUTE ID`.

use clap::Args;
use reqwest::Method;
use serde_json::json;

use super::{Session, client::of_message, failure::Failure, output};

#[derive(Args)]
pub struct MoveArguments {
    route: String,
    id: String,
    #[command(flatten)]
    due: DueArguments,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct DueArguments {
    /// From now on, e.g. `5m`, or milliseconds
    #[arg(long)]
    delay: Option<String>,
    /// RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME")]
    deliver_at: Option<String>,
}

pub async fn run(session: &Session<'_>, arguments: MoveArguments) -> Result<(), Failure> {
    let body = match (arguments.due.delay, arguments.due.deliver_at) {
        (Some(delay), _) => json!({ "delay": delay }),
        (None, deliver_at) => json!({ "deliver_at": deliver_at }),
    };
    let path = of_message(&arguments.route, &arguments.id, "")?;
    let reply = session.client.call(Method::PATCH, &path, Some(body.to_string().into())).await?;
    output::scheduled(session.global, reply)
}
