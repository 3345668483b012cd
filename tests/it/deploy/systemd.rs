//! `deploy/systemd/`: systemd accepts the unit, and finds it hardened.

use std::{fs, process::Command};

use tempfile::TempDir;

use super::{document, installed, run, text};

const UNIT: &str = "deploy/systemd/punctual.service";
/// Highest exposure level that `systemd-analyze security` may find, times ten: it is 1.4.
const EXPOSURE: &str = "14";

/// The unit with the program where the tests have it.
fn unit() -> (TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("punctual.service");
    let here = text(UNIT).replace("/usr/bin/punctual", env!("CARGO_BIN_EXE_punctual"));
    fs::write(&file, here).expect("written");
    (directory, file)
}

#[test]
fn systemd_accepts_the_unit() {
    if installed("systemd-analyze", "systemd") {
        let (_directory, file) = unit();
        let said = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(file));
        assert_eq!(said, "", "an unknown setting is no error to systemd");
    }
}

#[test]
fn the_unit_is_as_hard_as_its_page_says() {
    if installed("systemd-analyze", "systemd") {
        let (_directory, file) = unit();
        let mut command = Command::new("systemd-analyze");
        let said = run(command.args(["security", "--offline=true", "--threshold", EXPOSURE, "--no-pager"]).arg(file));
        let level = said.lines().find_map(|line| line.split_once("Overall exposure level")).expect("a level").1;
        let level = level.split_whitespace().nth(2).expect("a number");
        assert!(
            text("docs/deploy.md").contains(&format!("exposure level is {level}")),
            "docs/deploy.md says another: {level}"
        );
    }
}

#[test]
fn messages_in_flight_have_their_time_to_finish() {
    let unit = text(UNIT);
    let setting =
        |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).expect("it is set");
    let shutdown = document("config/defaults.yaml")["shutdown_timeout"].as_str().expect("a duration").to_owned();
    let seconds = |text: &str| text.trim_end_matches('s').parse::<u64>().expect("seconds");
    assert!(seconds(setting("TimeoutStopSec")) >= seconds(&shutdown) + 5);
    assert_eq!(setting("RestartPreventExitStatus"), "2", "the exit code of a wrong configuration");
    assert!(!unit.contains("\nExecStartPre="), "its exit code would not prevent a restart, every 2 s and forever");
}
