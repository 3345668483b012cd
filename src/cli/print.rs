//! `punctual lua`, `completions` and `man`: texts that need neither a configuration nor an instance.

use std::path::PathBuf;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

use super::{failure::Failure, output};

const PRODUCE: &str = include_str!("../../lua/produce.lua");
/// The part of `PRODUCE` that reads the clock, and that of `punctual dev`.
const CLOCK: &str = include_str!("../../lua/include/clock.lua");
const DEVELOPMENT_CLOCK: &str = include_str!("../../lua/development/clock.lua");

#[derive(Args)]
pub struct LuaArguments {
    #[arg(value_enum, default_value = "produce")]
    script: Script,
    /// For the Redis of `punctual dev`: due times are on its clock
    #[arg(long)]
    dev: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Script {
    /// Schedules a message from any Redis client
    Produce,
}

pub fn lua(arguments: &LuaArguments) -> Result<(), Failure> {
    let text = match arguments.script {
        Script::Produce if arguments.dev => PRODUCE.replace(CLOCK, DEVELOPMENT_CLOCK),
        Script::Produce => PRODUCE.to_owned(),
    };
    output::line(text.trim_end_matches('\n'))
}

#[derive(Args)]
pub struct CompletionsArguments {
    shell: Shell,
}

pub fn completions(arguments: &CompletionsArguments, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "punctual", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end_matches('\n'))
}

#[derive(Args)]
pub struct ManArguments {
    directory: PathBuf,
}

/// One page for each command, for packages.
pub fn man(arguments: &ManArguments, command: Command) -> Result<(), Failure> {
    clap_mangen::generate_to(command, &arguments.directory)
        .map_err(|error| Failure::Failed(format!("{}: {error}", arguments.directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_the_clock_that_dev_replaces_once() {
        assert_eq!(PRODUCE.matches(CLOCK).count(), 1);
    }
}
