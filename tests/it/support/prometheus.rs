use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{http, port::Port, servers::installed};

/// Interval of scrapes and evaluations; the times in the alerts stay.
const INTERVAL: &str = "1s";
/// Maximum duration of a start.
const START: Duration = Duration::from_secs(20);

/// A `prometheus` with the alerts of `deploy/`, configured as `deploy/compose` has it. Killed on drop.
pub struct Prometheus {
    // Before the directory: it is stopped first.
    process: Process,
    directory: TempDir,
    port: Port,
}

struct Process(Child);

/// An alert that is pending or firing.
#[derive(Clone, Debug)]
pub struct Alert {
    pub name: String,
    pub is_firing: bool,
    pub labels: Value,
    pub annotations: Value,
}

impl Prometheus {
    /// Scrapes these instances with this token. `None`, with a printed line, where the program is missing: never in CI.
    pub async fn start(instances: &[SocketAddr], token: &str) -> Option<Self> {
        if !installed("prometheus", "prometheus") {
            return None;
        }
        let (directory, port) = (tempfile::tempdir().expect("a directory"), Port::reserve());
        let file = |name: &str| directory.path().join(name);
        fs::write(file("token"), token).expect("written");
        // JSON is YAML.
        let configuration = configuration(instances, &file("token")).to_string();
        fs::write(file("prometheus.yml"), configuration).expect("written");
        let log = fs::File::create(file("log")).expect("a file");
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", file("data").display()))
            .arg(format!("--web.listen-address={}", port.address()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("it is installed");
        let prometheus = Self { process: Process(process), directory, port };
        prometheus.ready().await;
        Some(prometheus)
    }

    async fn ready(&self) {
        let deadline = Instant::now() + START;
        let ready = || http::client().get(format!("http://{}/-/ready", self.port.address())).send();
        while !ready().await.is_ok_and(|answer| answer.status() == 200) {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "process {} is not ready within {START:?}:\n{log}", self.process.0.id());
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn alerts(&self) -> Vec<Alert> {
        let data = self.get("alerts").await;
        let alert = |alert: &Value| Alert {
            name: alert["labels"]["alertname"].as_str().expect("a name").to_owned(),
            is_firing: alert["state"] == "firing",
            labels: alert["labels"].clone(),
            annotations: alert["annotations"].clone(),
        };
        data["alerts"].as_array().expect("a list").iter().map(alert).collect()
    }

    /// The series of the result, each with `metric` and `value`.
    pub async fn query(&self, query: &str) -> Vec<Value> {
        let data = self.get(&format!("query?query={}", utf8_percent_encode(query, NON_ALPHANUMERIC))).await;
        data["result"].as_array().expect("a vector").clone()
    }

    async fn get(&self, path: &str) -> Value {
        let url = format!("http://{}/api/v1/{path}", self.port.address());
        let answer = http::client().get(url).send().await.expect("an answer").text().await.expect("a text");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }
}

/// That of `deploy/compose`, with intervals, files and addresses of the test.
fn configuration(instances: &[SocketAddr], token: &Path) -> Value {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let text = fs::read_to_string(deploy.join("compose/prometheus.yml")).expect("readable");
    let mut configuration: Value = serde_saphyr::from_str(&text).expect("YAML");
    configuration["global"] = json!({ "scrape_interval": INTERVAL, "evaluation_interval": INTERVAL });
    configuration["rule_files"] = json!([deploy.join("prometheus/alerts.yml")]);
    let job = configuration["scrape_configs"][0].as_object_mut().expect("a job");
    job.remove("dns_sd_configs").expect("addresses by name");
    job.insert("static_configs".into(), json!([{ "targets": instances }]));
    job["authorization"]["credentials_file"] = json!(token);
    configuration
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
