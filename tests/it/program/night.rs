use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{alone, client::Client, eventually, metrics_page::MetricsPage};
use crate::support::{
    RedisServer,
    punctual::Punctual,
    receiver::{Behaviour, Receiver, Request},
    scale::{full, rounds, seconds},
};

/// Within it log, metrics and overview show each change.
const SHOWN: Duration = Duration::from_mins(1);

struct Night {
    client: Client,
    punctual: Punctual,
    scheduled: usize,
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

    /// Waits until all three show it, then for a while.
    async fn shows(
        &self,
        what: &str,
        line: impl Fn(&str) -> bool,
        metric: impl Fn(&MetricsPage) -> bool,
        overview: impl Fn(&Value) -> bool,
    ) {
        let begun = Instant::now();
        eventually(&format!("a log line of {what}"), SHOWN, async || {
            self.punctual.log().lines().any(&line).then_some(())
        })
        .await;
        let logged = begun.elapsed();
        eventually(&format!("a metric of {what}"), SHOWN.saturating_sub(logged), async || {
            metric(&self.client.metrics().await).then_some(())
        })
        .await;
        eventually(&format!("an overview of {what}"), SHOWN.saturating_sub(begun.elapsed()), async || {
            overview(&self.client.call("GET", "/v1/overview", "").await.json).then_some(())
        })
        .await;
        println!("night: {what} logged after {logged:.1?}, all shown after {:.1?}", begun.elapsed());
        sleep(seconds(0, 65)).await;
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_endpoint_does_the_operator_sees_it_and_nothing_is_lost() {
    let _alone = alone().await;
    let (redis, mut receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = Punctual::start(&format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}', timeout: 2s }} }}\n\
         routes: {{ web: {{ sink: hook, retry: {{ max: 2s }} }} }}\n",
        redis.url(),
        receiver.url()
    ))
    .await;
    let mut night = Night { client: Client::of(&punctual), punctual, scheduled: 0 };

    receiver.behave(Behaviour::Status(500));
    night.schedule().await;
    night
        .shows(
            "500",
            |line| line.contains("the sink is down") && line.contains("HTTP 500"),
            |metrics| !is_up(metrics) && responses(metrics, 500) > 0 && attempts(metrics, "failed") > 0,
            |overview| is_down_with(overview, "HTTP 500"),
        )
        .await;

    receiver.behave(Behaviour::Echo(422));
    night.schedule().await;
    let is_death = |line: &str| line.contains("dead letters now") && line.contains("error=\"HTTP 422\"");
    night
        .shows(
            "422",
            |line| is_death(line) && line.contains("reason=\"rejected\" count=1 id=\"m"),
            |metrics| {
                let dead = metrics.sum("punctual_messages_dead_total", &["reason=\"rejected\""]);
                is_up(metrics) && dead > 0 && responses(metrics, 422) > 0 && attempts(metrics, "rejected") > 0
            },
            |overview| overview["routes"][0]["dead"].as_u64().is_some_and(|dead| dead > 0),
        )
        .await;
    let stats = night.client.drained("web", SHOWN).await;
    assert_eq!(stats["dead"], night.scheduled, "all were refused");
    let dead = night.client.call("GET", "/v1/routes/web/messages?state=dead&limit=1", "").await.json;
    let error = dead["messages"][0]["last_error"].as_str().expect("an error").to_owned();
    assert!(error.starts_with("rejected: HTTP 422: {") && error.contains("punctual-id"), "what it replied: {error}");

    receiver.behave(Behaviour::Hang);
    night.schedule().await;
    night
        .shows(
            "no reply",
            |line| line.contains("the sink is down") && line.contains("no reply within 2s"),
            |metrics| !is_up(metrics) && attempts(metrics, "throttled") > 0,
            |overview| is_down_with(overview, "no reply within 2s"),
        )
        .await;

    receiver.refuse();
    night.schedule().await;
    night
        .shows(
            "no endpoint",
            |line| line.contains("the sink is down") && line.contains("refused"),
            |metrics| !is_up(metrics) && attempts(metrics, "unavailable") > 0,
            |overview| is_down_with(overview, "refused"),
        )
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
    let is_closed = |overview: &Value| overview["sinks"][0]["breaker"] == "closed";
    night.shows("recovery", |line| line.contains(up_again), is_up, is_closed).await;
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

    let requests = receiver.requests();
    let taken: BTreeSet<&str> = requests[before..].iter().map(Request::id).collect();
    assert_eq!(taken.len(), night.scheduled, "nothing was confirmed before, and all is now");
    let overview = night.client.call("GET", "/v1/overview", "").await.json;
    assert!(overview["sinks"][0]["last_success_at"].is_string(), "{overview}");
    let log = night.punctual.log();
    assert_eq!(log.lines().find(|line| line.contains("night-payload")), None, "no payload is logged");
    assert!(!full() || log.contains("the sink is still down"), "each minute: {log}");
    let lines = log.lines().count();
    println!("night: {lines} lines");
    assert!(lines <= rounds(25, 50), "{log}");
}
