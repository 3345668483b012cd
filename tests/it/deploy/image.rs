//! The Dockerfile, read: there is no daemon to build it with.

use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Duration};

use super::{path, run, text};
use crate::{
    program::eventually,
    support::{RedisServer, http, port::Port},
};

/// The default of the image.
const LISTEN: &str = "PUNCTUAL_DEFAULT__SERVER__LISTEN";

/// Instructions of the Dockerfile with their text; continued lines are one. Comments are left out.
fn instructions() -> Vec<(String, String)> {
    let text = text("Dockerfile");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| line.split_once(' ').expect("an instruction and its text"))
        .map(|(name, rest)| (name.to_owned(), rest.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

/// Instructions of the last stage, which becomes the image.
fn image() -> Vec<(String, String)> {
    let all = instructions();
    let last = all.iter().rposition(|(name, _)| name == "FROM").expect("a stage");
    all[last..].to_vec()
}

/// All instructions of a name.
fn all<'a>(instructions: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    instructions.iter().filter(|(of, _)| of == name).map(|(_, text)| &**text).collect()
}

fn environment() -> BTreeMap<String, String> {
    let image = image();
    let pairs = all(&image, "ENV").into_iter().flat_map(str::split_whitespace);
    pairs
        .map(|pair| pair.split_once('=').expect("a name and a value"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn the_user_is_a_number_and_not_root() {
    let image = image();
    assert_eq!(all(&image, "USER"), ["10001:10001"]);
    let prepared = all(&image, "RUN").concat();
    for part in ["--gid 10001", "--uid 10001", "-o 10001 -g 10001 -m 700 /data"] {
        assert!(prepared.contains(part), "{part}: {prepared}");
    }
    assert_eq!(all(&image, "VOLUME"), ["/data"]);
}

#[test]
fn its_health_is_that_of_the_process() {
    let image = image();
    let [check] = all(&image, "HEALTHCHECK")[..] else { panic!("one health check") };
    let (_, command) = check.split_once("CMD ").expect("a command");
    let words: Vec<String> = serde_json::from_str(command).expect("the exec form: there may be no shell");
    // Not readiness, which would restart the container while Redis is down.
    assert_eq!(words[..4], ["punctual", "health", "--live", "--url"]);
    let listen = &environment()[LISTEN];
    let port = listen.rsplit(':').next().expect("a port");
    assert_eq!(words[4..], [format!("http://127.0.0.1:{port}")]);
    assert_eq!(all(&image, "EXPOSE"), [port]);
    assert_eq!(all(&image, "ENTRYPOINT"), [r#"["punctual"]"#]);
}

#[test]
fn the_program_is_built_as_packages_are_and_all_that_it_reads_is_there() {
    let all_of_it = instructions();
    let build = all(&all_of_it, "RUN").into_iter().find(|text| text.contains("cargo build")).expect("it is built");
    assert!(build.contains("--locked") && build.contains("--profile dist"), "{build}");
    assert!(text("Cargo.toml").contains("[profile.dist]"));
    let copied = all(&all_of_it, "COPY").into_iter().filter(|text| !text.starts_with("--from"));
    let ignored = text(".dockerignore");
    let directory = tempfile::tempdir().expect("a directory");
    for source in copied.flat_map(|text| {
        let mut words: Vec<&str> = text.split(' ').collect();
        words.pop();
        words
    }) {
        assert!(ignored.contains(&format!("\n!{source}\n")), ".dockerignore leaves out {source}");
        copy(&path(source), &directory.path().join(source));
    }
    // A target of Cargo.toml that is not copied would be an error here.
    let manifest = directory.path().join("Cargo.toml");
    run(Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(manifest));
    included(&path("src"), directory.path());
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).expect("copied");
        return;
    }
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

/// Asserts that the copied files have each file that the code includes.
fn included(directory: &Path, copied: &Path) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let file = entry.expect("an entry").path();
        if file.is_dir() {
            included(&file, copied);
            continue;
        }
        let place = file.strip_prefix(path("")).expect("below the root").to_owned();
        // Modules of tests are not built.
        let is_test = place.file_stem().is_some_and(|name| name == "tests") || place.iter().any(|part| part == "tests");
        let code = fs::read_to_string(&file).unwrap_or_default();
        // The argument of `concat!` counts up to its first variable part: a directory.
        for name in code.split("include_str!(").skip(1).filter(|_| !is_test) {
            let name = name.split('"').nth(1).expect("a text");
            let target = copied.join(&place).parent().expect("a directory").join(name);
            assert!(target.exists(), "{} includes {name}, which the image does not copy", place.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listen_address_of_a_file_wins_over_that_of_the_image() {
    assert!(environment().contains_key(LISTEN));
    assert!(environment().keys().all(|name| !name.starts_with("PUNCTUAL__")), "such a variable wins over files");
    let (own, image, redis) = (Port::reserve(), Port::reserve(), RedisServer::start().await);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("punctual.yaml");
    let configuration = format!("redis: {{ url: '{}' }}\nserver: {{ listen: '{}' }}\n", redis.url(), own.address());
    fs::write(&file, configuration).expect("written");
    let _punctual = tokio::process::Command::new(env!("CARGO_BIN_EXE_punctual"))
        .args(["serve", "-c"])
        .arg(file)
        .env(LISTEN, image.address().to_string())
        .kill_on_drop(true)
        .spawn()
        .expect("the program was built");
    let answers = async |port: &Port| {
        let answer = http::client().get(format!("http://{}/livez", port.address())).send().await;
        answer.is_ok_and(|answer| answer.status() == 200).then_some(())
    };
    eventually("it listens where the file says", Duration::from_secs(20), async || answers(&own).await).await;
    assert!(answers(&image).await.is_none(), "and where the image says");
}
