//! `punctual pause`, `resume` and `repartition`: commands on a route.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    client::{Session, of_route},
    failure::Failure,
    output,
    progress::Progress,
};

#[derive(Args)]
pub struct PauseArguments {
    route: String,
    /// The reason, which the status of the route shows
    #[arg(long)]
    note: Option<String>,
    /// Only show how many messages would wait
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

#[derive(Args)]
pub struct ResumeArguments {
    route: String,
}

pub async fn pause(session: &Session<'_>, arguments: PauseArguments) -> Result<(), Failure> {
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
        output::ask(&what)?;
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

/// Interval of checks of the remaining messages.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
pub struct RepartitionArguments {
    route: String,
    /// The number of partitions in the configuration, now or after the move
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    partitions: u64,
}

/// Waits until all messages of the route are in its partitions. If the instance serves another number of partitions,
/// this call allows the given one, also one that was replaced before, and prints how to begin.
pub async fn repartition(session: &Session<'_>, arguments: RepartitionArguments) -> Result<(), Failure> {
    let RepartitionArguments { route, partitions } = arguments;
    let path = of_route(&route, "")?;
    let mut progress: Option<(Progress, u64)> = None;
    loop {
        let stats = session.client.get(&path).await?;
        let has = &stats["partitions"];
        if has.as_u64() != Some(partitions) {
            session.client.post(&of_route(&route, "/repartition")?, &json!({ "partitions": partitions })).await?;
            let json = json!({ "route": route, "partitions": partitions, "status": "allowed" });
            return output::result(
                session.global,
                json,
                format_args!(
                    "{route} has `partitions: {has}`, and may be moved to {partitions}. Set `routes.{route}.partitions: \
                     {partitions}` in its configuration, and restart the instances one after the other: the first one \
                     begins to move the messages. Then the same command follows them"
                ),
            );
        }
        let Some(left) = stats["moving"]["left"].as_u64() else { break };
        let (progress, most) = progress.get_or_insert_with(|| {
            let done = format!("Messages left: {left}.");
            (Progress::new(Some(left), done, "The instances go on. The same command follows them again."), left)
        });
        progress.reached(most.saturating_sub(left), format!("Messages left: {left}."));
        sleep(INTERVAL).await;
    }
    drop(progress);
    let json = json!({ "route": route, "partitions": partitions, "status": "done" });
    output::result(
        session.global,
        json,
        format_args!("{route} has {}, with all its messages", output::counted(partitions, "partition")),
    )
}
