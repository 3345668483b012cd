//! `punctual pause ROUTE` and `punctual resume ROUTE`.

use clap::Args;
use serde_json::{Value, json};

use super::{Session, client::of_route, confirm, failure::Failure, output};

#[derive(Args)]
pub struct PauseArguments {
    route: String,
    /// Why; the status of the route shows it
    #[arg(long)]
    note: Option<String>,
    /// Only show what would wait
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

#[derive(Args)]
pub struct ResumeArguments {
    route: String,
}

pub async fn run(session: &Session<'_>, arguments: PauseArguments) -> Result<(), Failure> {
    let route = &arguments.route;
    if arguments.dry_run || !arguments.yes {
        let stats = session.client.get(&of_route(route, "")?).await?;
        let (pending, due) = (&stats["pending"], &stats["due"]);
        let number = pending.as_u64().unwrap_or_default();
        let verb = if number == 1 { "is" } else { "are" };
        let what =
            format!("pause {route}, where {} {verb} pending, {due} of them due", output::counted(number, "message"));
        if arguments.dry_run {
            let json = json!({ "dry_run": true, "pending": pending, "due": due });
            return output::result(session.global, json, format_args!("would {what}"));
        }
        confirm::ask(&what)?;
    }
    let body = arguments.note.map_or_else(|| json!({}), |note| json!({ "note": note }));
    set(session, route, "pause", "paused", &body).await
}

pub async fn resume(session: &Session<'_>, arguments: ResumeArguments) -> Result<(), Failure> {
    set(session, &arguments.route, "resume", "resumed", &json!({})).await
}

async fn set(session: &Session<'_>, route: &str, call: &str, done: &str, body: &Value) -> Result<(), Failure> {
    session.client.post(&of_route(route, &format!("/{call}"))?, body).await?;
    output::result(session.global, json!({ "route": route, "status": done }), format_args!("{done} {route}"))
}
