//! `punctual lua`: scripts for producers.

use clap::{Args, ValueEnum};

use super::{failure::Failure, output};

const PRODUCE: &str = include_str!("../../lua/produce.lua");

#[derive(Args)]
pub struct LuaArguments {
    #[arg(value_enum, default_value = "produce")]
    script: Script,
}

#[derive(Clone, Copy, ValueEnum)]
enum Script {
    /// Schedules a message from any Redis client
    Produce,
}

pub fn run(arguments: &LuaArguments) -> Result<(), Failure> {
    let text = match arguments.script {
        Script::Produce => PRODUCE,
    };
    output::line(text.trim_end_matches('\n'))
}
