//! Which servers the tests run on: Debian bookworm's, unless the environment names others, as
//! `tests/run.sh --matrix` does.

use std::{
    env,
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The command of a `redis-server` or `valkey-server`, words separated by spaces; without it the one on the PATH.
const REDIS: &str = "PUNCTUAL_TEST_REDIS";
/// Words in front of each command of RabbitMQ: those that enter the root where its package is installed.
const RABBITMQ: &str = "PUNCTUAL_TEST_RABBITMQ";
/// Where Debian's package has them; the ones on the PATH change the user and drop the environment.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

pub fn redis_server() -> Command {
    command(REDIS, "redis-server")
}

/// Major and minor version of what `redis_server` starts.
pub fn redis_version() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let output = redis_server().arg("--version").output().expect("redis-server is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).expect("a version");
        let mut parts = version.split('.').map(|part| part.parse().expect("a number"));
        (parts.next().expect("a major version"), parts.next().expect("a minor version"))
    })
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

/// Calls a function of a node.
pub fn erl_call() -> Command {
    match env::var(RABBITMQ) {
        Ok(_) => {
            let mut command = command(RABBITMQ, "");
            command.arg("erl_call");
            command
        }
        Err(_) => Command::new("erl_call"),
    }
}

/// Whether a program can be run; with `CI=true` it must. `package`: of Debian, `tests/run.sh` installs it.
pub fn installed(program: &str, package: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        assert!(env::var("CI").as_deref() != Ok("true"), "no {program}: tests/run.sh installs {package}");
        eprintln!("skipped: there is no {program} (Debian package {package})");
    }
    found
}

fn command(variable: &str, otherwise: &str) -> Command {
    let given = env::var(variable).unwrap_or_else(|_| otherwise.into());
    let mut words = given.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_else(|| panic!("{variable} names a command")));
    command.args(words);
    command
}
