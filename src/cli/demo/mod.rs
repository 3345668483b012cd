//! `punctual demo`: a private Redis, an instance and a receiver in this process. It delivers ten messages and shows
//! their lateness.

mod receiver;
pub mod watcher;
pub mod workplace;

use std::{
    io::{self, IsTerminal},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use self::{
    receiver::{Arrival, Receiver},
    workplace::{POLL, START, Workplace},
};
use super::{client::Client, failure::Failure, output};
use crate::{
    app::{
        self,
        reload::Load,
        serve::{ServeError, serve},
    },
    config::{self, Sources},
    connector,
};

/// The number of messages, and the time between two of them.
const MESSAGES: u32 = 10;
const STEP: Duration = Duration::from_millis(400);
/// Maximum time for the last message after its due time.
const ARRIVAL: Duration = Duration::from_secs(10);

#[derive(Args)]
pub struct DemoArguments {
    /// End after the ten messages, as without a terminal
    #[arg(long)]
    once: bool,
    /// For internal use by the demo: waits until standard input ends, then stops the Redis of the demo of this number
    #[arg(long, hide = true)]
    clean_up: Option<u64>,
}

pub async fn run(arguments: DemoArguments) -> Result<(), Failure> {
    if let Some(number) = arguments.clean_up {
        watcher::run(number).await;
        return Ok(());
    }
    let receiver = Receiver::start().await.map_err(failed)?;
    let workplace = Workplace::new(&receiver.url).await.map_err(failed)?;
    let mut watcher = watcher::start(workplace.number).map_err(failed)?;
    let stays = !arguments.once && io::stdin().is_terminal() && io::stdout().is_terminal();
    let run = run_in(&workplace, receiver, stays).await;
    // The watcher must end before its pipe is closed. It may have been killed already.
    let _ = watcher.kill().await;
    run
}

async fn run_in(workplace: &Workplace, mut receiver: Receiver, stays: bool) -> Result<(), Failure> {
    // The user's environment is ignored, so that the demo uses no other Redis.
    let sources = Sources { files: vec![workplace.file()], ..Sources::default() };
    let load: Load = Arc::new(move || config::load(&sources, &connector::registry()));
    let config = load().map_err(|errors| Failure::Configuration(errors.to_string()))?;
    app::logging::init(config.log);
    output::line(format_args!("starting a private Redis and punctual in {}", workplace.directory().display()))?;
    // A closed terminal must not leave Redis running.
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    let mut server = tokio::spawn(serve(config, load));
    let shown = tokio::select! {
        shown = show(workplace, &mut receiver.arrivals) => shown,
        ended = &mut server => return ended_early(ended),
        _ = hangup.recv() => Err(interrupted()),
    };
    if shown.is_ok() && stays {
        output::line(next(workplace))?;
        tokio::select! {
            // Ctrl-C.
            end = &mut server => return ended(end),
            _ = hangup.recv() => {}
            printed = print(&mut receiver.arrivals) => return stop(server).await.and(printed),
        }
    }
    stop(server).await.and(shown)
}

/// Prints messages that the user schedules.
async fn print(arrivals: &mut mpsc::UnboundedReceiver<Arrival>) -> Result<(), Failure> {
    while let Some(arrival) = arrivals.recv().await {
        output::line(&arrival)?;
    }
    Ok(())
}

async fn show(workplace: &Workplace, arrivals: &mut mpsc::UnboundedReceiver<Arrival>) -> Result<(), Failure> {
    let client = Client::of(workplace.url(), None)?;
    ready(workplace, &client).await?;
    output::line(format_args!("punctual is ready at {}\n", workplace.url()))?;
    for number in 1..=MESSAGES {
        let delay = u64::try_from((STEP * number).as_millis()).expect("seconds");
        let message = json!({ "id": format!("demo-{number}"), "delay": delay, "payload": { "n": number } });
        client.post("/v1/routes/demo/messages", &message).await?;
    }
    output::line(format_args!(
        "{MESSAGES} messages are scheduled, one each {} ms\n\nto    id           late  payload",
        STEP.as_millis()
    ))?;
    let deadline = Instant::now() + STEP * MESSAGES + ARRIVAL;
    let mut late = Vec::new();
    while late.len() < MESSAGES as usize {
        let Ok(Some(arrival)) = timeout_at(deadline, arrivals.recv()).await else {
            return Err(Failure::Failed(format!("{} of {MESSAGES} messages arrived", late.len())));
        };
        output::line(&arrival)?;
        late.push(arrival.late);
    }
    late.sort_unstable();
    let (p50, max) = (late[(late.len() - 1) / 2], late[late.len() - 1]);
    output::line(format_args!(
        "\n{} of {MESSAGES} messages arrived by HTTP: late by {p50} ms (p50), {max} ms (max)",
        late.len()
    ))?;
    // Messages must never be early, by the clock of this machine.
    if late[0] < 0 { Err(Failure::Failed(format!("a message was early by {} ms", -late[0]))) } else { Ok(()) }
}

async fn ready(workplace: &Workplace, client: &Client) -> Result<(), Failure> {
    let deadline = Instant::now() + START;
    // An earlier probe would make the instance connect before Redis listens, and log the error.
    while !workplace.redis_socket().exists() && Instant::now() < deadline {
        sleep(POLL).await;
    }
    loop {
        match client.get("/readyz").await {
            Ok(_) => return Ok(()),
            Err(failure) if Instant::now() > deadline => return Err(failure),
            Err(_) => sleep(POLL).await,
        }
    }
}

fn next(workplace: &Workplace) -> String {
    let (url, directory) = (workplace.url(), workplace.directory().display());
    let socket = workplace.redis_socket();
    let socket = socket.display();
    format!(
        "\nTry next, from another terminal:
  punctual schedule demo --delay 3s --payload hello --url {url}
  curl {url}/v1/routes/demo/messages -d '{{\"delay\": \"3s\", \"payload\": \"hello\"}}'
  punctual top --url {url}
  redis-cli -s {socket}

The configuration is {directory}/punctual.yaml. Ctrl-C stops it and deletes the directory."
    )
}

type Ended = Result<Result<(), ServeError>, tokio::task::JoinError>;

/// Stops `serve`, which ends by a signal to its process.
async fn stop(server: JoinHandle<Result<(), ServeError>>) -> Result<(), Failure> {
    kill_process(getpid(), Signal::TERM).map_err(|error| Failure::Failed(error.to_string()))?;
    ended(server.await)
}

fn ended(ended: Ended) -> Result<(), Failure> {
    ended.map_err(|error| Failure::Failed(error.to_string()))??;
    output::line("stopped")
}

fn ended_early(ended: Ended) -> Result<(), Failure> {
    ended.map_err(|error| Failure::Failed(error.to_string()))??;
    Err(interrupted())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: io::Error) -> Failure {
    Failure::Failed(error.to_string())
}

fn interrupted() -> Failure {
    Failure::Failed("interrupted".into())
}
