//! Files of a release, as far as they are known without one: `tests/packages.sh` installs the packages themselves.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;

use super::{document, list, path, run, string, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_punctual");
/// Made by `deploy/release.sh`.
const MADE: &str = "target/package/";

/// `[package.metadata]` of Cargo.toml.
fn metadata() -> Value {
    let described = run(Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(path("Cargo.toml")));
    let described: Value = serde_json::from_str(&described).expect("JSON");
    let packages = list(&described, "/packages");
    packages.iter().find(|package| package["name"] == "punctual").expect("the program")["metadata"].clone()
}

#[test]
fn both_packages_have_the_same_files_and_those_of_the_checkout_exist() {
    let metadata = metadata();
    let deb: BTreeSet<&str> = list(&metadata, "/deb/assets").iter().map(|asset| string(asset, "/0")).collect();
    let mut rpm: BTreeSet<&str> =
        list(&metadata, "/generate-rpm/assets").iter().map(|asset| string(asset, "/source")).collect();
    // cargo-deb has a setting of its own for it.
    assert!(rpm.remove("deploy/systemd/punctual.service"));
    assert_eq!(deb, rpm);
    for file in deb.iter().filter(|file| !file.starts_with(MADE)) {
        let (directory, name) = file.rsplit_once('/').expect("a path");
        assert!(path(directory).is_dir() && (name == "*" || path(file).exists()), "{file}");
    }
    let script = text("deploy/release.sh");
    for place in deb.iter().filter_map(|file| file.strip_prefix(MADE)) {
        let place = place.trim_end_matches("/*");
        assert!(script.contains(&format!("target/package/{place}")) || place.contains('/'), "{place} is not made");
    }
}

#[test]
fn the_configuration_is_kept_by_upgrades_is_secret_and_works_as_it_is() {
    let metadata = metadata();
    assert_eq!(metadata["deb"]["conf-files"], Value::from(vec!["/etc/punctual/punctual.yaml"]));
    let of_deb = list(&metadata, "/deb/assets").iter().find(|asset| asset[0] == "deploy/package/punctual.yaml");
    assert_eq!(of_deb.expect("it is packaged")[2], "640");
    let of_rpm =
        list(&metadata, "/generate-rpm/assets").iter().find(|asset| asset["source"] == "deploy/package/punctual.yaml");
    let of_rpm = of_rpm.expect("it is packaged");
    assert_eq!((&of_rpm["config"], &of_rpm["mode"]), (&"noreplace".into(), &"640".into()));
    run(Command::new(PROGRAM).args(["check", "-c"]).arg(path("deploy/package/punctual.yaml")));
    // The lines that an operator takes out of comments, with the credential of the unit.
    let directory = tempfile::tempdir().expect("a directory");
    let token = directory.path().join("secrets_token");
    fs::write(&token, "0123456789abcdef").expect("written");
    let edited = text("deploy/package/punctual.yaml")
        .replace("# auth:", "auth:")
        .replace("# sinks:", "sinks:")
        .replace("#   shop:", "  shop:")
        .replace("# routes:", "routes:")
        .replace("#   order-timeout:", "  order-timeout:")
        .replace("/run/credentials/punctual.service/secrets_token", &token.display().to_string());
    let file = directory.path().join("punctual.yaml");
    fs::write(&file, edited).expect("written");
    let said = run(Command::new(PROGRAM).args(["check", "-c"]).arg(file));
    assert!(said.contains("1 route, 1 sink"), "{said}");
}

#[test]
fn scripts_of_packages_are_those_of_a_shell_and_create_the_user_of_the_unit() {
    let unit = text("deploy/systemd/punctual.service");
    assert!(unit.contains("\nUser=punctual\nGroup=punctual\n"));
    let metadata = metadata();
    let mut scripts = vec!["deploy/package/debian/postinst".to_owned(), "deploy/package/debian/postrm".to_owned()];
    for name in ["pre_install_script", "post_install_script", "pre_uninstall_script", "post_uninstall_script"] {
        scripts.push(string(&metadata, &format!("/generate-rpm/{name}")).to_owned());
    }
    for script in &scripts {
        run(Command::new("sh").arg("-n").arg(path(script)));
    }
    for script in [&scripts[0], &scripts[2]] {
        assert!(
            text(script).contains("useradd --system --user-group --no-create-home --home-dir /var/lib/punctual"),
            "{script}"
        );
    }
    for script in ["deploy/release.sh", "deploy/helm/check.sh", "tests/packages.sh"] {
        run(Command::new("bash").arg("-n").arg(path(script)));
    }
}

#[test]
fn the_forge_runs_the_script_and_nothing_else() {
    let workflow = document(".github/workflows/release.yml");
    let commands = list(&workflow, "/jobs/release/steps").iter().filter_map(|step| step["run"].as_str());
    let ours: Vec<&str> =
        commands.filter(|command| !command.contains("apt-get") && !command.contains("rustup")).collect();
    assert_eq!(ours.len(), 1);
    assert!(ours[0].ends_with("deploy/release.sh"), "{ours:?}");
}

#[test]
fn each_command_has_a_manual_page_and_completions() {
    let directory = tempfile::tempdir().expect("a directory");
    run(Command::new(PROGRAM).arg("man").arg(directory.path()));
    let help = run(Command::new(PROGRAM).arg("--help"));
    let listed = help.split("Commands:\n").nth(1).expect("commands").split("\n\n").next().expect("a list");
    let completions = ["bash", "zsh", "fish"].map(|shell| run(Command::new(PROGRAM).args(["completions", shell])));
    let commands: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let page = fs::read_to_string(directory.path().join(format!("punctual-{command}.1")));
        assert!(page.is_ok_and(|page| page.contains(".SH OPTIONS")), "{command}");
        assert!(completions.iter().all(|script| script.contains(command)), "{command}");
    }
    assert!(!directory.path().join("punctual-man.1").exists(), "it is for packagers");
}

#[test]
fn the_components_are_those_that_are_linked() {
    let directory = tempfile::tempdir().expect("a directory");
    let [sbom, licences] = ["sbom", "licences"].map(|name| directory.path().join(name));
    let make = || {
        run(Command::new("python3")
            .arg("deploy/package/components.py")
            .args(["--target", "x86_64-unknown-linux-gnu", "--features", "otlp,vendored", "--sbom"])
            .arg(&sbom)
            .arg("--licences")
            .arg(&licences)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .current_dir(path("")));
        (fs::read_to_string(&sbom).expect("an SBOM"), fs::read_to_string(&licences).expect("licences"))
    };
    let (text, terms) = make();
    assert_eq!(make(), (text.clone(), terms.clone()), "two runs differ");
    let sbom: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(sbom["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let names: BTreeSet<&str> = list(&sbom, "/components").iter().map(|component| string(component, "/name")).collect();
    for name in ["openssl-src", "rdkafka-sys", "libz-sys", "zstd-sys", "tokio", "opentelemetry", "punctual-migrate"] {
        assert!(names.contains(name), "{name} is linked");
    }
    for name in ["proptest", "tempfile", "serde_derive", "windows-sys", "pkg-config"] {
        assert!(!names.contains(name), "{name} is not linked");
    }
    let known: BTreeSet<&str> =
        list(&sbom, "/components").iter().map(|component| string(component, "/bom-ref")).collect();
    for dependency in list(&sbom, "/dependencies") {
        for used in list(dependency, "/dependsOn") {
            assert!(known.contains(used.as_str().expect("a reference")), "{used}");
        }
    }
    for terms_of in ["openssl/LICENSE.txt", "librdkafka/LICENSE", "src/zlib/LICENSE", "zstd/LICENSE"] {
        assert!(terms.contains(terms_of), "{terms_of}");
    }
}
