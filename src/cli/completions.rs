//! `punctual completions SHELL`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, failure::Failure, output};

#[derive(Args)]
pub struct CompletionsArguments {
    shell: Shell,
}

pub fn run(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "punctual", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end_matches('\n'))
}
