//! `punctual --version`: the release, the commit, and the kind of build.

use std::{env::consts, sync::LazyLock};

/// Commit and its day. `deploy/release.sh` and the Dockerfile set the variable; other builds have none.
const COMMIT: Option<&str> = option_env!("PUNCTUAL_COMMIT");
/// Optional features of this program.
const FEATURES: [(&str, bool); 5] = [
    ("http", cfg!(feature = "http")),
    ("kafka", cfg!(feature = "kafka")),
    ("otlp", cfg!(feature = "otlp")),
    ("rabbitmq", cfg!(feature = "rabbitmq")),
    ("redis", cfg!(feature = "redis")),
];

/// One line, without the name of the program.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| text(COMMIT));
    &VERSION
}

fn text(commit: Option<&str>) -> String {
    let commit = match commit.filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("commit {commit}"),
        None => "development build".to_owned(),
    };
    let features: Vec<&str> = FEATURES.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect();
    let (release, system, processor) = (env!("CARGO_PKG_VERSION"), consts::OS, consts::ARCH);
    format!("{release} ({commit}; {system} {processor}; {})", features.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_names_its_commit_and_another_build_says_that_it_has_none() {
        let release = env!("CARGO_PKG_VERSION");
        let named = text(Some("40512b6d20e1 of 2026-11-26"));
        assert!(named.starts_with(&format!("{release} (commit 40512b6d20e1 of 2026-11-26; linux ")), "{named}");
        for none in [None, Some("")] {
            assert!(text(none).starts_with(&format!("{release} (development build; ")));
        }
        assert_eq!(named.contains("http, "), cfg!(feature = "http"));
    }
}
