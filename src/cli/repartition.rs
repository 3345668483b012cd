//! `punctual repartition ROUTE PARTITIONS`: allows the move of a route to another number of partitions, then follows it.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::time::sleep;

use super::{Session, client::of_route, failure::Failure, output, progress::Progress};

/// Interval of the questions how much is left.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
pub struct RepartitionArguments {
    route: String,
    /// The number of partitions that the configuration has now, or is to have
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    partitions: u64,
}

/// Waits until all messages of the route are in its partitions. Where the instance serves another number, it allows this
/// one, also one that was replaced before, and shows how to begin.
pub async fn run(session: &Session<'_>, arguments: RepartitionArguments) -> Result<(), Failure> {
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
