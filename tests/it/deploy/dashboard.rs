//! `deploy/grafana/`: the dashboard is whole, and Prometheus parses its queries.

use std::{collections::BTreeSet, fmt::Write, fs, process::Command, time::Duration};

use serde_json::Value;

use super::{ENVIRONMENT, document, installed, list, metrics::Scene, promql::Query, run, string};
use crate::{program::eventually, support::prometheus::Prometheus};

const DASHBOARD: &str = "deploy/grafana/dashboards/punctual.json";
/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;
/// Maximum wait for scraped data. Prometheus scrapes each second; on a busy machine scrapes and rules are late.
const MAX_WAIT: Duration = Duration::from_mins(2);

pub struct Panel {
    pub title: String,
    /// With variables replaced, as a query of Prometheus.
    pub query: String,
    legend: String,
}

/// Every query of every panel, and of the variables.
pub fn queries() -> Vec<Panel> {
    let dashboard = document(DASHBOARD);
    let mut found = Vec::new();
    for panel in list(&dashboard, "/panels").iter().filter(|panel| panel["type"] != "row") {
        for target in list(panel, "/targets") {
            let query = string(target, "/expr").replace("$__rate_interval", "5m");
            let legend = string(target, "/legendFormat").to_owned();
            found.push(Panel { title: string(panel, "/title").to_owned(), query, legend });
        }
    }
    for variable in list(&dashboard, "/templating/list").iter().filter(|variable| variable["type"] == "query") {
        let query = string(variable, "/query/query");
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).expect("label_values");
        let (metric, label) = inner.split_once(", ").expect("a metric and a label");
        let title = format!("variable {}", string(variable, "/name"));
        found.push(Panel { title, query: format!("sum by ({label}) ({metric})"), legend: String::new() });
    }
    found
}

#[test]
fn promtool_parses_each_query() {
    if !installed("promtool", "prometheus") {
        return;
    }
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, panel) in queries().iter().enumerate() {
        let query = Value::from(&*panel.query);
        writeln!(rules, "      - {{ record: 'panel:{number}', expr: {query} }}").expect("a string takes all");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rules.yml");
    fs::write(&file, rules).expect("written");
    run(Command::new("promtool").args(["check", "rules"]).arg(file));
}

/// Queries that compare show only what is wrong: here without the comparison.
#[tokio::test(flavor = "multi_thread")]
async fn each_panel_shows_data_after_some_traffic() {
    let scene = Scene::start().await;
    let Some(prometheus) = Prometheus::start(&[scene.punctual.address()], "none").await else { return };
    eventually("the first scrape", MAX_WAIT, async || (!prometheus.query("up == 1").await.is_empty()).then_some(()))
        .await;
    scene.traffic().await;
    let mut missing = queries();
    eventually("data of all panels", MAX_WAIT, async || {
        let mut still = Vec::new();
        for panel in std::mem::take(&mut missing) {
            let variables = [("$job", "punctual"), ("$namespace", ""), ("$route", ".*"), ("$sink", ".*")];
            let replaced = |query: String, (name, value): &(&str, &str)| query.replace(name, value);
            let query = variables.iter().fold(panel.query.clone(), replaced);
            let series = prometheus.query(query.trim_end_matches(" > 0").replace(" == 0", "").as_str()).await;
            if !series.iter().any(|series| string(series, "/value/1") != "NaN") {
                still.push(panel);
            }
        }
        missing = still;
        println!("no data yet: {:?}", missing.iter().map(|panel| &*panel.query).collect::<Vec<_>>());
        missing.is_empty().then_some(())
    })
    .await;
}

#[test]
fn each_query_is_of_one_environment() {
    for panel in queries().iter().filter(|panel| !["variable job", "variable namespace"].contains(&&*panel.title)) {
        for selector in Query::parse(&panel.query).selectors {
            let lacks = ENVIRONMENT.iter().find(|label| !selector.contains(**label));
            assert_eq!(lacks, None, "{}: {}", panel.title, panel.query);
        }
    }
    let dashboard = document(DASHBOARD);
    for variable in list(&dashboard, "/templating/list")
        .iter()
        .filter(|variable| ENVIRONMENT.iter().any(|name| variable["name"] == *name))
    {
        assert!(variable["multi"] == false && variable["includeAll"] == false, "{variable}");
    }
}

#[test]
fn legends_name_labels_that_the_query_keeps() {
    for panel in queries() {
        let kept = Query::parse(&panel.query).kept.unwrap_or_default();
        for label in panel.legend.split("{{").skip(1) {
            let label = label.split("}}").next().unwrap_or_default();
            assert!(kept.contains(label), "{}: the query keeps {kept:?}, not `{label}`", panel.title);
        }
    }
}

#[test]
fn the_dashboard_has_its_rows_and_no_panel_lies_over_another() {
    let dashboard = document(DASHBOARD);
    let panels = list(&dashboard, "/panels");
    let rows: Vec<&str> =
        panels.iter().filter(|panel| panel["type"] == "row").map(|row| string(row, "/title")).collect();
    assert_eq!(rows, ["Overview", "Sinks", "Sources", "Redis and process"]);
    let (mut taken, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "{}: an id is used twice", panel["title"]);
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().expect("a number"));
        assert!(x + w <= COLUMNS, "{} is too far to the right", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{} lies over another", panel["title"]);
        }
        if panel["type"] != "row" {
            assert_eq!(string(panel, "/datasource/uid"), "${datasource}");
        }
    }
    let variables: BTreeSet<&str> =
        list(&dashboard, "/templating/list").iter().map(|variable| string(variable, "/name")).collect();
    for panel in queries() {
        for name in panel.query.split('$').skip(1) {
            let name = name.split(|char: char| !char.is_ascii_alphanumeric()).next().unwrap_or_default();
            assert!(variables.contains(name), "{}: no variable `{name}`", panel.title);
        }
    }
}

#[test]
fn grafana_is_provisioned_with_it() {
    let source = document("deploy/grafana/provisioning/datasources/prometheus.yaml");
    assert_eq!(string(&source, "/datasources/0/type"), "prometheus");
    assert_eq!(string(&source, "/datasources/0/url"), "${PROMETHEUS_URL}");
    let provider = document("deploy/grafana/provisioning/dashboards/punctual.yaml");
    let folder = string(&provider, "/providers/0/options/path");
    let compose = document("deploy/compose/compose.yaml");
    let mounted = |from: &str, to: &str| {
        let mount = format!("{from}:{to}:ro");
        list(&compose, "/services/grafana/volumes").iter().any(|volume| *volume == *mount)
    };
    assert!(mounted("../grafana/dashboards", folder), "compose mounts the dashboards elsewhere");
    assert!(mounted("../grafana/provisioning", "/etc/grafana/provisioning"));
    assert!(compose["services"]["grafana"]["environment"]["PROMETHEUS_URL"].is_string());
}
