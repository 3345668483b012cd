//! Broken configurations: each one loads, or fails with mistakes and their places. No mistake shows a secret.

use std::{env, io::Write, path::Path as FilePath};

use super::*;
use crate::fuzz::FuzzTarget;

const SECRET: &str = "hunter2-of-the-environment";

const TARGET: FuzzTarget = FuzzTarget {
    name: "config",
    words: &[
        "redis:\n",
        "server:\n",
        "sinks:\n",
        "routes:\n",
        "sources:\n",
        "  ",
        "- ",
        ": ",
        "{ ",
        " }",
        "[",
        "]",
        "&a ",
        "*a",
        "<<: ",
        "!!binary ",
        "|\n",
        "---\n",
        "# ",
        "${SECRET}",
        "${NONE:-x}",
        "${NONE}",
        "$${",
        "${",
        "}",
        "'",
        "\"",
        "type: http",
        "type: kafka",
        "type: rabbitmq",
        "type: redis_list",
        "url: https://h/",
        "{key}",
        "allow: ",
        "30s",
        "1MiB",
        "sha256:",
        "tokens: ",
        "null",
        "~",
        "true",
        ".inf",
        "0x10",
        "1e3",
    ],
    run,
};

fn run(input: &[u8]) -> String {
    // In memory if possible: a busy disk would take most of the time.
    let memory = FilePath::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
    let mut file = tempfile::NamedTempFile::new_in(folder).expect("a file");
    file.write_all(input).expect("written");
    // `${SECRET}` can be in a setting that is not secret and is shown, so it has another value.
    let env = [("SECRET", "shown"), ("PUNCTUAL__REDIS__PASSWORD", SECRET)];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let loaded = load(
        &Sources { files: vec![file.path().to_owned()], env, redis_url: None, development: None },
        &connector::registry(),
    );
    drop(file);
    match loaded {
        Ok(config) => {
            assert!(!format!("{config:?}").contains(SECRET));
            format!("good {} {} {}", config.sinks.len().min(2), config.routes.len().min(2), config.sources.len().min(2))
        }
        Err(errors) => {
            assert!(!errors.0.is_empty());
            let text = errors.0.iter().map(|problem| problem.text.clone()).collect::<Vec<_>>().join(";");
            assert!(!errors.to_string().contains(SECRET), "{errors}");
            text
        }
    }
}

#[test]
fn the_corpus_keeps_to_what_is_promised() {
    TARGET.replay();
}

#[test]
#[ignore = "runs for minutes: tests/run.sh --fuzz"]
fn mutations_keep_to_what_is_promised() {
    TARGET.explore();
}
