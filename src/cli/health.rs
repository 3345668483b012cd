//! `punctual health`: a probe, for containers without curl.

use std::time::Duration;

use clap::Args;
use reqwest::Method;
use tokio::time::timeout;

use super::{
    client::{ApiArguments, Client},
    failure::Failure,
    global::Global,
    output,
};

/// Maximum time for the reply.
const ANSWER: Duration = Duration::from_secs(5);

#[derive(Args)]
pub struct HealthArguments {
    /// Check whether the process is alive, not whether it is ready
    #[arg(long)]
    live: bool,
}

pub async fn run(global: &Global, api: &ApiArguments, arguments: &HealthArguments) -> Result<(), Failure> {
    let client = Client::of_probes(global, api)?;
    let path = if arguments.live { "/livez" } else { "/readyz" };
    let answer = timeout(ANSWER, client.call(Method::GET, path, None)).await;
    let late = |_| Failure::Failed(format!("no answer from {} in {ANSWER:?}", client.shown()));
    // Any refusal means that the instance is not healthy.
    let answer = answer.map_err(late)?.map_err(|error| Failure::Failed(Failure::from(error).to_string()))?;
    output::result(global, answer, "ok")
}
