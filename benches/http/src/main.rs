//! Drains due messages to a fast HTTP endpoint on this machine, and sends as many requests with plain hyper connections
//! to the same endpoint, in turn. README.md lists the arguments.
//!
//! Redis, punctual, the endpoint and the plain client are separate processes, so that each has its own CPU time.

mod api;
mod drain;
mod plain;
mod process;
mod receiver;
mod table;

use std::path::PathBuf;

const USAGE: &str = "http-drain [--messages N] [--rounds N] [--max-in-flight N] [--sink 'YAML'] PUNCTUAL...";

/// The result of one run.
pub struct Run {
    pub name: String,
    pub messages: u64,
    /// From the first to the last request that the endpoint got.
    pub seconds: f64,
    pub connections: u64,
    /// CPU seconds by process.
    pub cpu: Vec<(&'static str, f64)>,
    /// Peak resident memory of the sender, in MiB.
    pub peak_rss: f64,
}

pub struct Options {
    pub messages: u64,
    rounds: usize,
    /// `max_in_flight` of the route, if not the default.
    pub max_in_flight: Option<u32>,
    /// More settings of the sink, inside YAML braces.
    pub sink: String,
    binaries: Vec<PathBuf>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receiver"] => receiver::run(),
        ["plain", address, connections, requests] => {
            plain::run(address, connections.parse().expect(USAGE), requests.parse().expect(USAGE));
        }
        _ => compare(&options(&arguments)),
    }
}

fn options(arguments: &[String]) -> Options {
    let mut options =
        Options { messages: 200_000, rounds: 3, max_in_flight: None, sink: String::new(), binaries: Vec::new() };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect(USAGE);
        match argument.as_str() {
            "--messages" => options.messages = value().parse().expect(USAGE),
            "--rounds" => options.rounds = value().parse().expect(USAGE),
            "--max-in-flight" => options.max_in_flight = Some(value().parse().expect(USAGE)),
            "--sink" => options.sink = format!(", {}", value()),
            path => options.binaries.push(path.into()),
        }
    }
    assert!(!options.binaries.is_empty(), "{USAGE}");
    options
}

/// Runs plain hyper and each binary in turn, so that other load on the machine affects all of them.
fn compare(options: &Options) {
    let mut runs = Vec::new();
    for _ in 0..options.rounds {
        let mut round = vec![plain::measure(options.messages)];
        round.extend(options.binaries.iter().map(|binary| drain::measure(binary, options)));
        for run in round {
            eprintln!("{}", table::line(&run));
            runs.push(run);
        }
    }
    table::print(&runs);
}
