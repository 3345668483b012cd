//! `docs/operations.md` and the Dockerfile: their commands exist, or are known to come.

use std::{collections::BTreeSet, process::Command};

use super::{run, text};

const PAGE: &str = "docs/operations.md";
/// Blocks with commands of `PENDING`: the test of the pages cannot run them yet.
const MARK: &str = "# Tested by tests/it/deploy/runbook.rs";

/// Commands that punctual does not have yet. Once one exists it must leave this list, and a block without any of them its
/// mark: then the test of the pages runs the block. When the list is empty, this file can go.
const PENDING: [&str; 8] = ["dead", "get", "health", "list", "pause", "resume", "status", "top"];

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
fn every_command_of_the_runbook_exists_or_is_known_to_come() {
    let dockerfile = text("Dockerfile");
    let (_, health) = dockerfile.split_once(r#"CMD ["punctual", ""#).expect("a health check");
    let mut named = named(&text(PAGE));
    named.extend(health.split('"').next().map(str::to_owned));
    let missing: BTreeSet<String> = named.difference(&existing()).cloned().collect();
    assert_eq!(
        missing,
        PENDING.map(str::to_owned).into(),
        "left: commands that {PAGE} and the Dockerfile name and punctual lacks"
    );
}

#[test]
fn a_block_that_the_test_of_the_pages_leaves_out_has_a_command_to_come() {
    let page = text(PAGE);
    let blocks: Vec<&str> = page.split(MARK).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    for block in &blocks {
        assert!(PENDING.iter().any(|pending| named(block).contains(*pending)), "take the mark away: {block}");
    }
    assert!(!blocks.is_empty(), "take PENDING and this test away");
}
