//! Which servers the tests run on: Debian bookworm's, unless the environment names others, as
//! `tests/run.sh --matrix` does.

use std::{env, process::Command};

/// The command of a `redis-server` or `valkey-server`, words separated by spaces; without it the one on the PATH.
const REDIS: &str = "PUNCTUAL_TEST_REDIS";
/// Words in front of each command of RabbitMQ: those that enter the root where its package is installed.
const RABBITMQ: &str = "PUNCTUAL_TEST_RABBITMQ";
/// Where Debian's package has them; the ones on the PATH change the user and drop the environment.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

pub fn redis_server() -> Command {
    command(REDIS, "redis-server")
}

/// `program`: `rabbitmq-server`, `rabbitmqctl`...
pub fn rabbitmq(program: &str) -> Command {
    let program = format!("{PROGRAMS}/{program}");
    match env::var(RABBITMQ) {
        Ok(_) => {
            let mut command = command(RABBITMQ, "");
            command.arg(program);
            command
        }
        Err(_) => Command::new(program),
    }
}

fn command(variable: &str, otherwise: &str) -> Command {
    let given = env::var(variable).unwrap_or_else(|_| otherwise.into());
    let mut words = given.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_else(|| panic!("{variable} names a command")));
    command.args(words);
    command
}
