//! A script's header is its signature: its caller must keep to it.

use super::{
    bench::Bench,
    record::scripts,
    rows::PREFIX,
    scene::{LISTS, SCENES, SOURCE},
};

#[tokio::test]
async fn each_header_names_the_keys_that_its_caller_passes() {
    let mut bench = Bench::start().await;
    for (scene, script) in SCENES {
        let wanted = keys_in_header(script);
        bench.set(scene).await;
        let call = bench.record(scene, script).await;
        let passed: Vec<&str> = call.keys.iter().map(|key| name_of(key)).collect();
        let wanted = repeated(wanted, passed.len());
        assert_eq!(wanted.len(), passed.len(), "{script}.lua wants {wanted:?}, gets {passed:?}");
        for (wanted, passed) in wanted.into_iter().zip(passed) {
            let fits = if wanted == "set" { ["pending", "unack", "dead"].contains(&passed) } else { wanted == passed };
            assert!(fits, "{script}.lua calls `{wanted}` what its caller calls `{passed}`");
        }
    }
}

#[tokio::test]
async fn a_script_reads_the_clock_once_at_most() {
    let mut bench = Bench::start().await;
    for (scene, _) in SCENES {
        bench.set(scene).await;
        redis::cmd("CONFIG").arg("RESETSTAT").exec_async(&mut bench.raw).await.expect("reset");
        bench.act(scene).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut bench.raw).await.expect("the server answers");
        let read = stats.lines().find_map(|line| line.strip_prefix("cmdstat_time:calls="));
        assert!(read.is_none_or(|line| line.starts_with("1,")), "{scene}: {read:?}");
    }
}

#[test]
fn every_script_has_a_scene() {
    for name in scripts().keys() {
        assert!(SCENES.iter().any(|(_, script)| script == name), "lua/{name}.lua is called by no scene");
    }
}

fn keys_in_header(script: &str) -> Vec<String> {
    let text = super::lua(script);
    let line = text.lines().find_map(|line| line.strip_prefix("-- KEYS")).unwrap_or_else(|| panic!("{script}.lua"));
    if script == "produce" {
        assert!(line.contains("{P:<route>:<partition>}:pending"), "{line}");
        return vec!["pending".to_owned()];
    }
    line.split(';').next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// `list...` stands for one or more lists, `(pending unack)...` for one or more of such groups.
fn repeated(wanted: Vec<String>, count: usize) -> Vec<String> {
    let Some(line) = wanted.join(" ").strip_suffix("...").map(str::to_owned) else { return wanted };
    let (once, group) = match line.strip_suffix(')') {
        Some(line) => line.split_once('(').expect("a group has a beginning"),
        None => line.rsplit_once(' ').unwrap_or(("", &line)),
    };
    let group = group.split_whitespace().cycle().map(str::to_owned);
    let once: Vec<String> = once.split_whitespace().map(str::to_owned).collect();
    let rest = count.saturating_sub(once.len()).max(1);
    once.into_iter().chain(group.take(rest)).collect()
}

fn name_of(key: &str) -> &str {
    if key == format!("{PREFIX}:routes") {
        return "P:routes";
    }
    if let Some(theirs) = key.strip_prefix("dp:jobs:") {
        return match theirs {
            "pending" => "their_pending",
            "unack" => "their_unack",
            "retry:cnt" => "counts",
            body if body.starts_with("msg:") => "body",
            list => list,
        };
    }
    match key {
        SOURCE => "source",
        list if LISTS.contains(&list) => "list",
        task if task.starts_with("task:") => "details",
        own => own.split_once("}:").expect("a key of a partition").1,
    }
}
