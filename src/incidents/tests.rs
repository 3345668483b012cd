use std::future::ready;

use tokio::{
    task::JoinHandle,
    time::{advance, sleep},
};
use tracing::subscriber::DefaultGuard;

use super::*;
use crate::log_lines::LogLines;

struct Fixture {
    incidents: Incidents,
    log: LogLines,
    begun: Instant,
    reporting: JoinHandle<()>,
    _guard: DefaultGuard,
}

impl Fixture {
    /// Reports 7 waiting messages for every subject.
    fn new() -> Self {
        let ((log, guard), incidents) = (LogLines::collect(), Incidents::default());
        let reported = incidents.clone();
        let reporting = tokio::spawn(async move { reported.report(|_| ready(Some(7))).await });
        Self { incidents, log, begun: Instant::now(), reporting, _guard: guard }
    }

    /// The lines since the previous call.
    async fn lines(&self) -> Vec<String> {
        // Lets the reporter run.
        sleep(Duration::from_millis(1)).await;
        self.log.take()
    }

    /// Fails once a second, and returns the lines, each with its second.
    async fn fail(&self, subject: &Subject, seconds: u64) -> Vec<(u64, String)> {
        let mut found = Vec::new();
        for _ in 0..seconds {
            self.incidents.failed(subject, "HTTP 500");
            let at = self.begun.elapsed().as_secs();
            found.extend(self.lines().await.into_iter().map(|line| (at, line)));
            advance(Duration::from_millis(999)).await;
        }
        found
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.reporting.abort();
    }
}

fn sink() -> Subject {
    Subject::Sink("hook".into())
}

fn domain(name: &str) -> Subject {
    Subject::Domain { sink: "hook".into(), domain: name.into() }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_a_line_at_once_one_a_minute_and_one_at_the_end() {
    let fixture = Fixture::new();
    let lines = fixture.fail(&sink(), 150).await;
    let still = |seconds: u64| {
        let text = format!("WARN the sink is still down sink=\"hook\" error=\"HTTP 500\" seconds={seconds} waiting=7");
        (seconds, text)
    };
    let first = "WARN the sink is down: one probe a second sink=\"hook\" error=\"HTTP 500\"";
    assert_eq!(lines, [(0, first.to_owned()), still(60), still(120)]);
    assert!(fixture.incidents.ended(&sink()) && !fixture.incidents.ended(&sink()));
    let end = "INFO the sink is up again: slow start sink=\"hook\" seconds=150 waiting=7";
    assert_eq!(fixture.lines().await, [end]);
    advance(10 * LOG_INTERVAL).await;
    assert_eq!(fixture.lines().await, [""; 0], "nothing more");
}

#[tokio::test(start_paused = true)]
async fn outages_that_end_and_begin_again_are_one_pair_of_lines_a_minute() {
    for subject in [Subject::Source("in".into()), sink(), domain("a")] {
        let fixture = Fixture::new();
        let mut lines = Vec::new();
        for second in 0..150 {
            fixture.incidents.failed(&subject, "the route is full");
            advance(Duration::from_millis(500)).await;
            assert!(fixture.incidents.ended(&subject) && !fixture.incidents.is_down(&subject));
            lines.extend(fixture.lines().await.into_iter().map(|line| (second, line)));
            advance(Duration::from_millis(499)).await;
        }
        assert_eq!(lines.len(), 6, "{lines:#?}");
        for pair in lines.chunks(2) {
            assert!(pair[0].1.starts_with("WARN ") && pair[1].1.starts_with("INFO "), "{lines:#?}");
        }
        // One that lasts is logged at the end of the minute, another cause at once.
        fixture.incidents.failed(&subject, "the route is full");
        assert_eq!(fixture.lines().await, [""; 0]);
        advance(LOG_INTERVAL).await;
        let lines = fixture.lines().await;
        assert!(lines.len() == 1 && lines[0].starts_with("WARN ") && !lines[0].contains("still"), "{lines:?}");
        fixture.incidents.ended(&subject);
        assert_eq!(fixture.lines().await.len(), 1);
        fixture.incidents.failed(&subject, "no connection");
        assert_eq!(fixture.lines().await.len(), 1);
        fixture.incidents.ended(&subject);
        assert_eq!(fixture.lines().await.len(), 1);
        advance(LOG_INTERVAL).await;
        assert_eq!(fixture.lines().await, [""; 0]);
        assert_eq!(fixture.incidents.lock().outages.len(), 0, "nothing is kept");
    }
}

#[tokio::test(start_paused = true)]
async fn another_cause_is_logged_at_once_and_only_the_first_time() {
    let fixture = Fixture::new();
    for round in 0..3 {
        for n in 0..10 {
            fixture.incidents.failed(&Subject::Redis, &format!("error {n}"));
        }
        let lines = fixture.lines().await;
        assert_eq!(lines.len(), if round == 0 { 5 } else { 0 }, "{lines:?}");
    }
    advance(LOG_INTERVAL).await;
    assert_eq!(fixture.lines().await, ["ERROR redis still cannot be used error=\"error 9\" seconds=60 waiting=7"]);
}

#[tokio::test(start_paused = true)]
async fn a_domain_is_logged_again_only_if_it_failed_again_and_ten_of_a_sink_are() {
    let fixture = Fixture::new();
    fixture.incidents.failed(&domain("a"), "HTTP 404");
    assert_eq!(fixture.lines().await.len(), 1);
    advance(5 * LOG_INTERVAL).await;
    assert_eq!(fixture.lines().await, [""; 0], "no message of it is left, perhaps");
    fixture.incidents.failed(&domain("a"), "HTTP 404");
    advance(LOG_INTERVAL).await;
    assert_eq!(fixture.lines().await.len(), 1);
    for n in 0..100 {
        fixture.incidents.failed(&domain(&format!("d{n}")), "HTTP 404");
    }
    assert_eq!(fixture.lines().await.len(), MAX_DOMAINS - 1);
    // A domain that is up again makes room for another one.
    assert!(fixture.incidents.ended(&domain("d2")));
    fixture.incidents.failed(&domain("other"), "HTTP 404");
    assert_eq!(fixture.lines().await.len(), 2);
    fixture.incidents.forget_domains("hook");
    assert!(!fixture.incidents.ended(&domain("d1")));
}

#[tokio::test(start_paused = true)]
async fn deaths_are_a_line_with_a_sample_at_once_then_counts_by_the_minute() {
    let fixture = Fixture::new();
    let route: Arc<str> = "web".into();
    let die = |reason, id: &str| {
        let sample = Sample::new(id, "HTTP 422");
        fixture.incidents.died(&route, reason, 1, Some(sample));
    };
    for n in 0..100 {
        die(DeadReason::Rejected, &format!("m{n}"));
    }
    die(DeadReason::Expired, "late");
    let line = |reason: &str, count: u32, id: &str| {
        format!(
            "WARN messages are dead letters now route=\"web\" reason=\"{reason}\" count={count} id=\"{id}\" error=\"HTTP 422\""
        )
    };
    assert_eq!(fixture.lines().await, [line("rejected", 1, "m0"), line("expired", 1, "late")]);
    advance(LOG_INTERVAL).await;
    let lines = fixture.lines().await;
    let has_times = |line: &str| line.contains(" first=\"") && line.contains(" last=\"");
    assert!(lines.len() == 1 && has_times(&lines[0]), "{lines:?}");
    let times = lines[0].find(" first=").unwrap()..lines[0].find(" id=").unwrap();
    assert_eq!([lines[0][..times.start].to_owned() + &lines[0][times.end..]], [line("rejected", 99, "m99")]);
    advance(LOG_INTERVAL).await;
    assert_eq!(fixture.lines().await, [""; 0]);
    die(DeadReason::Rejected, "later");
    assert_eq!(fixture.lines().await, [line("rejected", 1, "later")]);
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_error_is_a_line_at_once_and_their_number_is_bounded() {
    let fixture = Fixture::new();
    let route: Arc<str> = "web".into();
    let die = |error: &str| {
        let sample = Sample::new("m", error);
        fixture.incidents.died(&route, DeadReason::Attempts, 1, Some(sample));
    };
    for n in 1000..1100 {
        die("HTTP 500");
        die(&format!("order {n} is unknown"));
    }
    let lines = fixture.lines().await;
    assert!(lines.len() == 2 && lines[1].ends_with("count=1 id=\"m\" error=\"order 1000 is unknown\""), "{lines:?}");
    advance(LOG_INTERVAL).await;
    let lines = fixture.lines().await;
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("count=99 ")), "{lines:?}");
    for n in 0..26 * 26 {
        let name = |n: u32| char::from_u32(u32::from(b'a') + n).unwrap();
        die(&format!("error {}{}", name(n / 26), name(n % 26)));
    }
    let lines = fixture.lines().await;
    assert_eq!(
        lines.len(),
        MAX_KINDS - 2 + 1,
        "two kinds of the last minute, and one line for those beyond the bound: {lines:?}"
    );
    assert_eq!(fixture.incidents.lock().deaths.len(), MAX_KINDS + 1);
    advance(2 * LOG_INTERVAL).await;
    fixture.lines().await;
    advance(2 * LOG_INTERVAL).await;
    die("another one");
    assert_eq!(fixture.lines().await.len(), 1, "it has the place of one that is over");
}

#[tokio::test(start_paused = true)]
async fn a_redis_that_loads_its_data_is_no_new_outage_and_ends_none() {
    let fixture = Fixture::new();
    fixture.incidents.recovers(&Subject::Redis, "redis loading");
    assert!(!fixture.incidents.is_down(&Subject::Redis));
    fixture.incidents.failed(&Subject::Redis, "connection refused");
    assert_eq!(fixture.lines().await.len(), 1);
    fixture.incidents.recovers(&Subject::Redis, "redis loading");
    assert_eq!(fixture.lines().await, [""; 0]);
    advance(LOG_INTERVAL).await;
    assert_eq!(
        fixture.lines().await,
        ["ERROR redis still cannot be used error=\"redis loading\" seconds=60 waiting=7"]
    );
}
