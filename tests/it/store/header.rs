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
        let fits = |(wanted, passed): (&&str, &&str)| {
            if *wanted == "set" { ["pending", "unack", "dead"].contains(passed) } else { wanted == passed }
        };
        let fits = |wanted: &[&str]| wanted.len() == passed.len() && wanted.iter().zip(&passed).all(fits);
        let is_so = possible(&wanted, passed.len()).iter().any(|wanted| fits(wanted));
        assert!(is_so, "{script}.lua wants `{wanted}`, gets {passed:?}");
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

fn keys_in_header(script: &str) -> String {
    let text = super::lua(script);
    let line = text.lines().find_map(|line| line.strip_prefix("-- KEYS")).unwrap_or_else(|| panic!("{script}.lua"));
    if script == "produce" {
        assert!(line.contains("{P:<route>:<index>/<N>}:pending"), "{line}");
        return "pending".to_owned();
    }
    line.split(';').next().unwrap_or_default().to_owned()
}

/// The names that `[flow]` replaces.
const FLOW_KEYS: [&str; 6] = ["flows", "waiting", "flights", "gates", "slots", "rules"];

/// The lists of `count` names that a header allows. `[name]` can be absent. `list...` means
/// one or more lists, `(pending unack)...` one or more of such groups.
fn possible(header: &str, count: usize) -> Vec<Vec<&str>> {
    let mut rest = header;
    let mut found: Vec<Vec<&str>> = vec![Vec::new()];
    while !rest.trim_start().is_empty() {
        rest = rest.trim_start();
        let (names, after) = match rest.strip_prefix('(') {
            Some(group) => group.split_once(')').expect("a group has an end"),
            None => rest.split_at(rest.find([' ', '.']).unwrap_or(rest.len())),
        };
        let mut names: Vec<&str> = names.split_whitespace().collect();
        let is_optional = names[0].starts_with('[');
        if names.last() == Some(&"[flow]") {
            names.pop();
            names.extend(FLOW_KEYS);
        }
        if names.last() == Some(&"[history]") {
            names.pop();
            names.extend(["history", "ended"]);
        }
        for name in &mut names {
            *name = name.trim_matches(['[', ']']);
        }
        let (most, after) = after.strip_prefix("...").map_or((1, after), |after| (count, after));
        found = found
            .iter()
            .flat_map(|before| {
                (usize::from(!is_optional)..=most).map(|times| [before.clone(), names.repeat(times)].concat())
            })
            .filter(|list| list.len() <= count)
            .collect();
        rest = after;
    }
    found
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
