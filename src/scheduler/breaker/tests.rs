//! The breaker without a scheduler: its incidents, gauges, probes and waiting tasks.

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::time::advance;

use super::{down::PROBE_INTERVAL, *};
use crate::message::MessageId;

const CEILING: usize = 40;

fn key(id: &str) -> MessageKey {
    ("r".into(), MessageId::parse(id).unwrap())
}

fn lost() -> Outcome {
    Outcome::Unavailable { error: "connection refused".into() }
}

fn throttled() -> Outcome {
    Outcome::Throttled { error: "HTTP 503".into(), retry_after: None }
}

fn sink() -> Subject {
    Subject::Sink("s".into())
}

fn joined(incidents: &Incidents) -> Arc<Breaker> {
    let breaker = Breaker::new("s");
    breaker.join(CEILING, incidents);
    breaker
}

/// The permits of messages that are claimed, as many as are granted of those that are wanted.
fn claim(breaker: &Arc<Breaker>, want: usize) -> Vec<SinkPermit> {
    let Some(mut admission) = breaker.admit(want) else { return Vec::new() };
    let messages = admission.messages() as usize;
    admission.claimed(messages);
    (0..messages).map(|n| admission.sink_permit(key(&format!("m{n}")))).collect()
}

/// Sends one message, and returns its permit after this outcome.
fn send(breaker: &Arc<Breaker>, id: &str, domain: Option<&str>, outcome: &Outcome) -> SinkPermit {
    let mut admission = breaker.admit(1).expect("a permit");
    admission.claimed(1);
    let mut permit = admission.sink_permit(key(id));
    let domain = domain.map(Domain::from);
    permit.conclude(Instant::now(), outcome, domain.as_ref(), 0.0);
    permit
}

fn opened(incidents: &Incidents) -> Arc<Breaker> {
    let breaker = joined(incidents);
    send(&breaker, "a", None, &lost());
    send(&breaker, "b", None, &lost());
    assert_eq!(breaker.status().state, BreakerState::Open);
    breaker
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_sink_is_an_incident_until_it_is_up() {
    let incidents = Incidents::default();
    let breaker = joined(&incidents);
    send(&breaker, "a", None, &lost());
    assert!(!incidents.is_down(&sink()) && breaker.is_closed(), "it may be this message");
    send(&breaker, "b", None, &lost());
    assert!(incidents.is_down(&sink()) && !breaker.is_closed());
    advance(PROBE_INTERVAL).await;
    send(&breaker, "c", None, &Outcome::Confirmed);
    assert!(!incidents.is_down(&sink()) && breaker.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_replaced_breaker_ends_no_incident_of_its_successor() {
    let incidents = Incidents::default();
    let breaker = joined(&incidents);
    breaker.retire();
    // A route that has not seen the change yet.
    breaker.join(CEILING, &incidents);
    send(&breaker, "a", None, &lost());
    send(&breaker, "b", None, &lost());
    assert!(!incidents.is_down(&sink()), "not told");
    incidents.failed(&sink(), "refused");
    advance(PROBE_INTERVAL).await;
    send(&breaker, "c", None, &Outcome::Confirmed);
    assert!(breaker.is_closed() && incidents.is_down(&sink()));
}

#[tokio::test(start_paused = true)]
async fn a_domain_that_goes_down_is_an_incident_and_shown_at_once() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let shown = |number: u32| recorder.handle().render().contains(&format!("_domains_down{{sink=\"s\"}} {number}\n"));
    let incidents = Incidents::default();
    let breaker = joined(&incidents);
    let domain = Subject::Domain { sink: "s".into(), domain: "x".into() };
    // While the permit lives, nothing else reports.
    let permit = send(&breaker, "a", Some("x"), &lost());
    assert!(shown(1) && incidents.is_down(&domain), "{}", recorder.handle().render());
    drop(permit);
    let permit = send(&breaker, "b", Some("x"), &Outcome::Confirmed);
    assert!(shown(0) && !incidents.is_down(&domain), "{}", recorder.handle().render());
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn the_window_of_a_slow_start_ends_at_the_ceiling_of_the_routes_that_are_left() {
    let incidents = Incidents::default();
    let breaker = opened(&incidents);
    breaker.join(1000, &incidents);
    breaker.leave(1000);
    advance(PROBE_INTERVAL).await;
    send(&breaker, "c", None, &Outcome::Confirmed);
    let mut windows = Vec::new();
    for _ in 0..3 {
        let mut permits = claim(&breaker, 500);
        windows.push(permits.len());
        for permit in &mut permits {
            permit.conclude(Instant::now(), &Outcome::Confirmed, None, 0.0);
        }
    }
    assert_eq!(windows, [10, 20, 500]);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_goes_on_when_the_slow_start_ends() {
    let incidents = Incidents::default();
    let breaker = Breaker::new("s");
    breaker.join(11, &incidents);
    send(&breaker, "a", None, &lost());
    send(&breaker, "b", None, &lost());
    advance(PROBE_INTERVAL).await;
    send(&breaker, "c", None, &Outcome::Confirmed);
    let mut permits = claim(&breaker, 100);
    assert_eq!(permits.len(), 10);
    let waiting = Arc::clone(&breaker);
    let waiting = tokio::spawn(async move { waiting.ready().await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    // The window has reached the ceiling.
    permits[0].conclude(Instant::now(), &Outcome::Confirmed, None, 0.0);
    let ended = tokio::time::timeout(Duration::from_secs(1), waiting).await;
    assert!(ended.is_ok(), "it was not woken");
}

#[tokio::test(start_paused = true)]
async fn a_probe_passes_over_messages_that_were_lost_but_no_others() {
    let incidents = Incidents::default();
    let breaker = opened(&incidents);
    let probe = |id: &str| {
        let mut admission = breaker.admit(1).expect("a probe");
        admission.claimed(1);
        admission.sink_permit(key(id))
    };
    advance(PROBE_INTERVAL).await;
    let lost = probe("a");
    assert_eq!(lost.wait(None, 0.0), Some(Duration::ZERO));
    // A dead message leaves no trace.
    lost.forget();
    assert_eq!(lost.wait(None, 0.0), None);
    drop(lost);
    assert_eq!(probe("new").wait(None, 0.0), None);
}

#[tokio::test(start_paused = true)]
async fn a_probe_passes_over_ten_lost_messages_and_those_of_a_domain_that_is_down_do_not_count() {
    let breaker = joined(&Incidents::default());
    let domain = Domain::from("x");
    send(&breaker, "x0", Some("x"), &lost());
    send(&breaker, "a", None, &lost());
    send(&breaker, "b", None, &lost());
    advance(PROBE_INTERVAL).await;
    assert!(!breaker.is_closed() && breaker.has_domains_down());
    let probe = |id: &str, domain: Option<&Domain>| {
        let mut admission = breaker.admit(1).expect("a probe");
        admission.claimed(1);
        admission.sink_permit(key(id)).wait(domain, 0.0)
    };
    assert_eq!(probe("x4", Some(&domain)), None, "the probe of its domain");
    for _ in 0..10 {
        assert_eq!(probe("a", None), Some(Duration::ZERO));
        assert!(probe("x5", Some(&domain)).is_some_and(|wait| !wait.is_zero()));
    }
    assert_eq!(probe("a", None), None);
    assert_eq!(probe("a", None), Some(Duration::ZERO), "the count begins anew");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_freed_with_other_messages_is_unused() {
    let breaker = joined(&Incidents::default());
    let mut before = claim(&breaker, 1).pop().expect("a permit");
    send(&breaker, "a", None, &lost());
    send(&breaker, "b", None, &lost());
    advance(PROBE_INTERVAL).await;
    let probe = claim(&breaker, 1).pop().expect("a probe");
    assert_eq!(breaker.status().state, BreakerState::HalfOpen);
    before.absorb(probe);
    drop(before);
    assert_eq!((breaker.status().state, breaker.status().in_flight), (BreakerState::Open, 0));
    assert!(breaker.admit(1).is_some(), "another message is the probe");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_only_its_domain_refuses_shows_that_the_sink_is_up() {
    for (outcome, state) in [(throttled(), BreakerState::Closed), (lost(), BreakerState::Open)] {
        let incidents = Incidents::default();
        let breaker = joined(&incidents);
        for n in 0..4 {
            send(&breaker, &format!("x{n}"), Some("x"), &throttled());
        }
        send(&breaker, "a", None, &lost());
        send(&breaker, "b", None, &lost());
        assert_eq!(breaker.status().state, BreakerState::Open);
        advance(PROBE_INTERVAL).await;
        send(&breaker, "x4", Some("x"), &outcome);
        assert_eq!(breaker.status().state, state, "{outcome:?}");
    }
}
