use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{client::Client, eventually, metrics_page::MetricsPage};
use crate::support::{
    RedisServer,
    command::Ended,
    prometheus::{Alert, Prometheus},
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request},
    scale::{full, rounds, seconds},
};

/// Within it log, metrics, overview, status and alerts show each change.
const SHOWN: Duration = Duration::from_mins(1);
/// Alerts about counters look back five minutes.
const FORGOTTEN: Duration = Duration::from_mins(7);
/// Alerts about what has happened or lasted, not about what is the case.
const LATER: [&str; 2] = ["PunctualDeadLetters", "PunctualLate"];

struct Night {
    client: Client,
    punctual: Punctual,
    /// `None`: not installed.
    prometheus: Option<Prometheus>,
    scheduled: usize,
}

/// A change, and conditions that hold once it is shown.
struct Change<'a> {
    name: &'a str,
    line: &'a dyn Fn(&str) -> bool,
    metric: &'a dyn Fn(&MetricsPage) -> bool,
    overview: &'a dyn Fn(&Value) -> bool,
    status: &'a dyn Fn(&Ended) -> bool,
    alerts: &'a dyn Fn(&[Alert]) -> bool,
}

impl Night {
    /// A part of the messages, due at once.
    async fn schedule(&mut self) {
        let part = rounds(50, 500);
        let messages: Vec<String> = (self.scheduled..self.scheduled + part)
            .map(|n| format!(r#"{{"id":"m{n}","payload":"night-payload-{n}"}}"#))
            .collect();
        self.client.schedule("web", &format!("[{}]", messages.join(","))).await;
        self.scheduled += part;
    }

    async fn status(&self) -> Ended {
        self.punctual.command(&["status", "--url", &self.punctual.url("")]).await
    }

    /// Waits until all five show it, then for a while.
    async fn shows(&self, change: Change<'_>) {
        let (begun, name) = (Instant::now(), change.name);
        let left = || SHOWN.saturating_sub(begun.elapsed());
        eventually(&format!("a log line of {name}"), left(), async || {
            self.punctual.log().lines().any(change.line).then_some(())
        })
        .await;
        let logged = begun.elapsed();
        eventually(&format!("a metric of {name}"), left(), async || {
            (change.metric)(&self.client.metrics().await).then_some(())
        })
        .await;
        eventually(&format!("an overview of {name}"), left(), async || {
            (change.overview)(&self.client.call("GET", "/v1/overview", "").await.json).then_some(())
        })
        .await;
        eventually(&format!("a status of {name}"), left(), async || {
            (change.status)(&self.status().await).then_some(())
        })
        .await;
        let commanded = begun.elapsed();
        if let Some(prometheus) = &self.prometheus {
            let mut latest = Vec::new();
            let alerted = eventually(&format!("an alert of {name}"), left(), async || {
                latest = prometheus.alerts().await;
                (change.alerts)(&latest).then(|| begun.elapsed())
            })
            .await;
            let firing = latest.iter().filter(|alert| alert.is_firing).map(described);
            println!("night: {name} alerted after {alerted:.1?}: {}", firing.collect::<Vec<_>>().join("; "));
        }
        println!("night: {name} logged after {logged:.1?}, in `status` after {commanded:.1?}");
        sleep(seconds(0, 65)).await;
    }

    /// Waits until no alert remains about what is the case; in the long form, until none remains.
    async fn quiet(&self) {
        let Some(prometheus) = &self.prometheus else { return };
        let max_wait = rounds(SHOWN, FORGOTTEN);
        eventually("all alerts are over", max_wait, async || {
            let alerts = prometheus.alerts().await;
            let is_over = |alert: &Alert| !full() && LATER.contains(&&*alert.name);
            alerts.iter().all(is_over).then_some(())
        })
        .await;
    }
}

fn described(alert: &Alert) -> String {
    let texts = ["summary", "description"].iter().filter_map(|name| alert.annotations[name].as_str());
    format!("{} ({})", alert.name, texts.collect::<Vec<_>>().join(". "))
}

fn is_up(metrics: &MetricsPage) -> bool {
    metrics.sum("punctual_sink_up", &["sink=\"hook\""]) == 1
}

fn responses(metrics: &MetricsPage, code: u16) -> u64 {
    metrics.sum("punctual_http_responses_total", &["sink=\"hook\"", &format!("code=\"{code}\"")])
}

fn attempts(metrics: &MetricsPage, outcome: &str) -> u64 {
    metrics.sum("punctual_sink_attempts_total", &["sink=\"hook\"", &format!("outcome=\"{outcome}\"")])
}

/// The sink as the overview shows it, down with this error.
fn is_down_with(overview: &Value, error: &str) -> bool {
    let sink = &overview["sinks"][0];
    let dated = ["since", "last_error_at"].iter().all(|field| sink[field].is_string());
    sink["breaker"] != "closed" && dated && sink["last_error"].as_str().is_some_and(|text| text.contains(error))
}

/// The row of the table with this name.
fn row<'a>(status: &'a Ended, name: &str) -> Vec<&'a str> {
    let mut rows = status.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|cells| cells.first() == Some(&name)).unwrap_or_else(|| panic!("no row of {name}: {status:?}"))
}

/// The command fails: in the table and on standard error is the sink with this error.
fn fails_with(status: &Ended, error: &str) -> bool {
    let sink = row(status, "hook");
    status.code == Some(1)
        && sink[2] == "DOWN"
        && sink[4..].join(" ").contains(error)
        && status.error.lines().any(|line| line.contains("sink `hook` is down: ") && line.contains(error))
}

/// The command succeeds, and the sink is up in it.
fn is_good(status: &Ended) -> bool {
    status.code == Some(0) && status.error.is_empty() && row(status, "hook")[2] == "up"
}

/// Whether `web` has dead letters for this reason alone, with a sample of this error.
fn has_dead(status: &Ended, reason: &str, error: &str) -> bool {
    let line = status.out.lines().find_map(|line| line.strip_prefix("web: "));
    row(status, "web")[7].parse::<u64>().is_ok_and(|dead| {
        let shown = format!("{dead} dead: {reason} {dead} ({error}");
        dead > 0 && line.is_some_and(|line| line.starts_with(&shown))
    })
}

fn alerts_of<'a>(alerts: &'a [Alert], name: &str) -> impl Iterator<Item = &'a Alert> {
    alerts.iter().filter(move |alert| alert.is_firing && alert.name == name)
}

/// The sink is down, and this is a part of the reason.
fn is_alerted(alerts: &[Alert], reason: &str) -> bool {
    alerts_of(alerts, "PunctualSinkDown").any(|alert| {
        alert.labels["sink"] == "hook"
            && alert.annotations["description"].as_str().expect("a description").contains(reason)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_endpoint_does_the_operator_sees_it_and_nothing_is_lost() {
    let (redis, mut receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}', timeout: 2s }} }}\n\
         routes: {{ web: {{ sink: hook, retry: {{ max: 2s }} }} }}\n",
        redis.url(),
        receiver.url()
    ))
    .await;
    let prometheus = Prometheus::start(&[punctual.address()], "none").await;
    let mut night = Night { client: Client::of(&punctual), punctual, prometheus, scheduled: 0 };
    assert!(is_good(&night.status().await));
    night.quiet().await;

    receiver.behave(Behaviour::Status(500));
    night.schedule().await;
    night
        .shows(Change {
            name: "500",
            line: &|line| line.contains("the sink is down") && line.contains("HTTP 500"),
            metric: &|metrics| !is_up(metrics) && responses(metrics, 500) > 0 && attempts(metrics, "failed") > 0,
            overview: &|overview| is_down_with(overview, "HTTP 500"),
            status: &|status| fails_with(status, "HTTP 500"),
            alerts: &|alerts| is_alerted(alerts, "failed") && is_alerted(alerts, "HTTP 500"),
        })
        .await;

    receiver.behave(Behaviour::Echo(422));
    night.schedule().await;
    let is_death = |line: &str| line.contains("dead letters now") && line.contains("error=\"HTTP 422\"");
    night
        .shows(Change {
            name: "422",
            line: &|line| is_death(line) && line.contains("reason=\"rejected\" count=1 id=\"m"),
            metric: &|metrics| {
                let dead = metrics.sum("punctual_messages_dead_total", &["reason=\"rejected\""]);
                is_up(metrics) && dead > 0 && responses(metrics, 422) > 0 && attempts(metrics, "rejected") > 0
            },
            overview: &|overview| overview["routes"][0]["dead"].as_u64().is_some_and(|dead| dead > 0),
            status: &|status| is_good(status) && has_dead(status, "rejected", "HTTP 422: {"),
            alerts: &|alerts| {
                let mut deaths = alerts_of(alerts, "PunctualDeadLetters");
                deaths.any(|alert| alert.labels["route"] == "web" && alert.labels["reason"] == "rejected")
                    && !alerts.iter().any(|alert| alert.name == "PunctualSinkDown")
            },
        })
        .await;
    let stats = night.client.drained("web", SHOWN).await;
    assert_eq!(stats["dead"], night.scheduled, "all were refused");
    let dead = night.client.call("GET", "/v1/routes/web/messages?state=dead&limit=1", "").await.json;
    let error = dead["messages"][0]["last_error"].as_str().expect("an error").to_owned();
    assert!(error.starts_with("rejected: HTTP 422: {") && error.contains("punctual-id"), "what it replied: {error}");

    receiver.behave(Behaviour::Hang);
    night.schedule().await;
    night
        .shows(Change {
            name: "no reply",
            line: &|line| line.contains("the sink is down") && line.contains("no reply within 2s"),
            metric: &|metrics| !is_up(metrics) && attempts(metrics, "throttled") > 0,
            overview: &|overview| is_down_with(overview, "no reply within 2s"),
            status: &|status| fails_with(status, "no reply within 2s"),
            alerts: &|alerts| is_alerted(alerts, "throttled"),
        })
        .await;

    receiver.refuse();
    night.schedule().await;
    night
        .shows(Change {
            name: "no endpoint",
            line: &|line| line.contains("the sink is down") && line.contains("refused"),
            metric: &|metrics| !is_up(metrics) && attempts(metrics, "unavailable") > 0,
            overview: &|overview| is_down_with(overview, "refused"),
            status: &|status| fails_with(status, "refused"),
            alerts: &|alerts| is_alerted(alerts, "unavailable"),
        })
        .await;

    let (before, up_again) = (receiver.count(), "the sink is up again");
    let recoveries = night.punctual.log().matches(up_again).count();
    receiver.behave(Behaviour::Status(200));
    receiver.listen();
    let line = eventually("the recovery is logged", SHOWN, async || {
        let log = night.punctual.log();
        log.lines().filter(|line| line.contains(up_again)).nth(recoveries).map(str::to_owned)
    })
    .await;
    assert!(line.contains("seconds=") && line.contains("waiting="), "{line}");
    night
        .shows(Change {
            name: "recovery",
            line: &|line| line.contains(up_again),
            metric: &is_up,
            overview: &|overview| overview["sinks"][0]["breaker"] == "closed",
            status: &is_good,
            alerts: &|alerts| !alerts.iter().any(|alert| alert.name == "PunctualSinkDown"),
        })
        .await;
    all_is_delivered(&night, &receiver, before).await;
    the_log_is_short(&night.punctual.log());
}

/// By now or after a redrive; `before`: requests before the recovery.
async fn all_is_delivered(night: &Night, receiver: &Receiver, before: usize) {
    let delivered = night.client.drained("web", SHOWN).await;
    println!("night: {} of {} are dead letters", delivered["dead"], night.scheduled);
    let mut redriven = 0;
    loop {
        let answer = night.client.call("POST", "/v1/routes/web/dead/redrive", r#"{"all":true}"#).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        redriven += answer.json["count"].as_u64().expect("a number");
        if answer.json["more"] == false {
            break;
        }
    }
    assert_eq!(delivered["dead"], redriven);
    assert_eq!(night.client.drained("web", SHOWN).await["dead"], 0);
    night.quiet().await;

    let requests = receiver.requests();
    let taken: BTreeSet<&str> = requests[before..].iter().map(Request::id).collect();
    assert_eq!(taken.len(), night.scheduled, "nothing was confirmed before, and all is now");
    let overview = night.client.call("GET", "/v1/overview", "").await.json;
    assert!(overview["sinks"][0]["last_success_at"].is_string(), "{overview}");
}

fn the_log_is_short(log: &str) {
    assert_eq!(log.lines().find(|line| line.contains("night-payload")), None, "no payload is logged");
    assert!(!full() || log.contains("the sink is still down"), "each minute: {log}");
    let lines = log.lines().count();
    println!("night: {lines} lines");
    assert!(lines <= rounds(25, 50), "{log}");
}
