//! `punctual top`: shows the status every second.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use super::{
    client::Session,
    failure::Failure,
    output,
    status::{overview, screen},
    table,
};

/// Interval of screens.
const PERIOD: Duration = Duration::from_secs(1);

/// Enter the alternate screen without a cursor; leave it.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Move the cursor to the first position; clear to the end of the line; clear to the end of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

#[derive(Args)]
pub struct TopArguments {}

pub async fn run(session: &Session<'_>, _: TopArguments) -> Result<(), Failure> {
    if !io::stdout().is_terminal() {
        return Err(Failure::Usage("top needs a terminal: `punctual status` prints the same once".into()));
    }
    let failed = |error: io::Error| Failure::Failed(error.to_string());
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    write(ENTER).map_err(failed)?;
    let drawn = tokio::select! {
        drawn = draw(session) => drawn,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    write(LEAVE).map_err(failed)?;
    drawn.map_err(failed)
}

async fn draw(session: &Session<'_>) -> io::Result<()> {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (lines, columns) = output::window().unwrap_or((24, 80));
        let text = match overview(&session.client).await {
            Ok(overview) => screen::text(&overview, session.client.shown(), lines),
            // The API may be reachable again at the next tick.
            Err(failure) => table::harmless(&failure.to_string()),
        };
        write(&fitted(&text, lines, columns))?;
    }
}

/// The text for a window of this size. It overwrites the whole previous screen.
fn fitted(text: &str, lines: usize, columns: usize) -> String {
    let cut = |line: &str| line.chars().take(columns).collect::<String>() + CLEAR_LINE;
    let shown: Vec<String> = text.lines().take(lines).map(cut).collect();
    format!("{HOME}{}{CLEAR_BELOW}", shown.join("\r\n"))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[test]
fn a_screen_fits_its_window() {
    assert_eq!(fitted("abc\nde\nf", 2, 2), "\x1b[Hab\x1b[K\r\nde\x1b[K\x1b[J");
}
