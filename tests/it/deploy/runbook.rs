//! The commands that `docs/operations.md` and the Dockerfile name exist.

use std::{collections::BTreeSet, process::Command};

use super::{run, text};

/// The commands of punctual that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let commands = text.split(['`', '\n']).filter_map(|line| line.strip_prefix("punctual "));
    commands.filter_map(|rest| rest.split_whitespace().next()).map(str::to_owned).collect()
}

/// Those that the program has.
fn existing() -> BTreeSet<String> {
    let help = run(Command::new(env!("CARGO_BIN_EXE_punctual")).arg("help"));
    let (_, commands) = help.split_once("Commands:\n").expect("a list of commands");
    let lines = commands.lines().take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_of_the_runbook_and_of_the_health_check_exists() {
    let dockerfile = text("Dockerfile");
    let (_, health) = dockerfile.split_once(r#"CMD ["punctual", ""#).expect("a health check");
    let mut named = named(&text("docs/operations.md"));
    assert!(named.len() > 5, "{named:?}");
    named.extend(health.split('"').next().map(str::to_owned));
    assert_eq!(named.difference(&existing()).collect::<Vec<_>>(), [""; 0], "left: commands that punctual lacks");
}
