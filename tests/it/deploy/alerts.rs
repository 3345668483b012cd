//! `deploy/prometheus/`: the alerts are valid, each is tested and has its section in the runbook.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

use super::{ENVIRONMENT, document, installed, list, path, promql::Query, run, string, text};

const RULES: &str = "deploy/prometheus/alerts.yml";
const TESTS: &str = "deploy/prometheus/alerts.test.yml";
const ENVIRONMENTS: &str = "deploy/prometheus/environments.test.yml";
const RUNBOOK: &str = "docs/operations.md";

pub struct Alert {
    pub name: String,
    pub query: String,
    rule: Value,
}

pub fn alerts() -> Vec<Alert> {
    let rules = document(RULES);
    let groups = list(&rules, "/groups");
    let rules = groups.iter().flat_map(|group| list(group, "/rules"));
    let alert = |rule: &Value| Alert {
        name: string(rule, "/alert").to_owned(),
        query: string(rule, "/expr").to_owned(),
        rule: rule.clone(),
    };
    rules.map(alert).collect()
}

impl Alert {
    /// The queries of its annotations, which are `query (printf "..." LABEL)`.
    pub fn lookups(&self) -> Vec<String> {
        let annotations = self.rule["annotations"].as_object().expect("annotations");
        let texts = annotations.values().map(|text| text.as_str().expect("a text"));
        let lookup = |text: &str| text.split('"').next().expect("a query").replace("%q", "\"\"");
        texts.flat_map(|text| text.split("query (printf \"").skip(1)).map(lookup).collect()
    }
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    if !installed("promtool", "prometheus") {
        return;
    }
    run(Command::new("promtool").args(["check", "rules"]).arg(path(RULES)));
    run(Command::new("promtool").args(["test", "rules"]).arg(path(TESTS)).arg(path(ENVIRONMENTS)));
}

#[test]
fn each_alert_is_tested_to_fire_and_to_stay_silent() {
    let tests = document(TESTS);
    let cases: Vec<&Value> = list(&tests, "/tests").iter().flat_map(|test| list(test, "/alert_rule_test")).collect();
    for alert in alerts() {
        let of_it = cases.iter().filter(|case| case["alertname"] == *alert.name);
        let (silent, firing): (Vec<&Value>, Vec<&Value>) =
            of_it.copied().partition(|case| list(case, "/exp_alerts").is_empty());
        assert!(!silent.is_empty() && !firing.is_empty(), "{} is not tested both ways", alert.name);
    }
    let names: BTreeSet<String> = alerts().into_iter().map(|alert| alert.name).collect();
    for case in cases {
        assert!(names.contains(string(case, "/alertname")), "a test of no alert: {case}");
    }
}

#[test]
fn each_alert_has_a_section_in_the_runbook_and_each_section_an_alert() {
    let page = text(RUNBOOK);
    let sections: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .filter(|title| title.starts_with("Punctual"))
        .collect();
    let alerts = alerts();
    let names: BTreeSet<&str> = alerts.iter().map(|alert| &*alert.name).collect();
    assert_eq!(sections, names, "left: sections of {RUNBOOK}, right: {RULES}");
    assert_eq!(names.len(), alerts.len(), "a name is used twice");
    for alert in &alerts {
        let url = string(&alert.rule, "/annotations/runbook_url");
        assert_eq!(url, format!("{RUNBOOK}#{}", alert.name.to_lowercase()));
        assert!(["warning", "critical"].contains(&string(&alert.rule, "/labels/severity")), "{}", alert.name);
    }
}

#[test]
fn no_alert_adds_up_or_joins_environments() {
    let tested = document(ENVIRONMENTS);
    let tested = list(&tested, "/tests").iter().flat_map(|test| list(test, "/alert_rule_test"));
    let tested: BTreeSet<&str> = tested.map(|case| string(case, "/alertname")).collect();
    let all = |labels: &BTreeSet<String>| ENVIRONMENT.iter().all(|label| labels.contains(*label));
    for alert in alerts() {
        assert!(tested.contains(&*alert.name), "{} is not tested in {ENVIRONMENTS}", alert.name);
        let query = Query::parse(&alert.query);
        // `on ()`: only when there is none of any environment.
        let groupings = query.groupings.iter().filter(|labels| !labels.is_empty());
        let lacking: Vec<_> = groupings.filter(|labels| !all(labels)).collect();
        assert!(lacking.is_empty(), "{}: {lacking:?} lack job or namespace", alert.name);
        for aggregation in ["sum(", "max(", "min(", "count(", "avg("] {
            assert!(!alert.query.contains(aggregation), "{}: `{aggregation}` has no `by`", alert.name);
        }
        for lookup in alert.lookups() {
            assert!(Query::parse(&lookup).selectors.iter().all(all), "{}: {lookup}", alert.name);
        }
    }
}

/// Prometheus would show an empty text for any other.
#[test]
fn summaries_name_labels_that_the_query_keeps() {
    for alert in alerts() {
        let query = Query::parse(&alert.query);
        let kept = query.kept.unwrap_or_else(|| BTreeSet::from(["job", "namespace", "instance"].map(str::to_owned)));
        for label in string(&alert.rule, "/annotations/summary").split("$labels.").skip(1) {
            let label = label.split([' ', '}']).next().unwrap_or_default();
            assert!(kept.contains(label), "{}: the query keeps {kept:?}, not `{label}`", alert.name);
        }
    }
}
