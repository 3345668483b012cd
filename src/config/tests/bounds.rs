//! Values at their bounds are valid, and all settings arrive.

use super::*;
use crate::message::HistoryLimits;

fn route(settings: &str) -> RouteConfig {
    let yaml = format!("sinks: {{s: {{type: redis_list, key: k}}}}\nroutes:\n  a:\n    sink: s\n    {settings}");
    Setup::new(&[&yaml], &[]).load().unwrap_or_else(|errors| panic!("{settings}: {errors}")).routes.remove("a").unwrap()
}

#[test]
fn the_least_values_that_are_possible_are_valid() {
    assert_eq!(route("lease: 10s 500ms").lease, Duration::from_millis(10_500));
    assert_eq!(route("max_in_flight_bytes: 1152KiB").max_in_flight_bytes, 1152 * 1024);
    assert_eq!(route("limits: {messages: 8}\n    partitions: 8").limits.messages, Some(8));
    assert_eq!(route("limits: {bytes: 2304KiB}\n    partitions: 2").limits.bytes, Some(2304 * 1024));
    let flow = route("flow: {parallel: 1, ordered: true}").flow.unwrap().limits;
    assert_eq!((flow.parallel, flow.ordered), (Some(1), true));
    let redis = "redis: {url: 'redis://a', timeout: 1s, durability: {replicas: 1, timeout: 500ms}}";
    assert!(Setup::new(&[redis], &[]).load().is_ok());
}

#[test]
fn a_history_needs_a_time_unless_it_is_a_default() {
    let limits = |hours, max| Some(HistoryLimits { period: Duration::from_hours(hours), max });
    assert_eq!(route("history: {for: 2h, max: 7}").history, limits(2, 7));
    let default = route("history: {for: 2h}").history.unwrap().max;
    assert_eq!((route("lease: 20s").history, default > 7), (None, true));
    let with_default = |settings: &str| {
        let yaml = format!(
            "sinks: {{s: {{type: redis_list, key: k}}}}\nroute_defaults: {{history: {{max: 9}}}}\nroutes: {{a: {{sink: s{settings}}}}}"
        );
        Setup::new(&[&yaml], &[]).load().unwrap_or_else(|errors| panic!("{errors}")).routes["a"].history
    };
    assert_eq!((with_default(""), with_default(", history: {for: 1h}")), (None, limits(1, 9)));
}

#[test]
fn a_window_is_that_of_its_settings() {
    // A Thursday.
    let noon = 1_700_136_000_000;
    let is_open = |settings: &str| route(&format!("window: {settings}")).window.map(|calendar| calendar.at(noon).open);
    assert!(route("lease: 20s").window.is_none());
    for (settings, open) in [
        ("{from: '12:00', to: '13:00'}", true),
        ("{from: '11:00', to: '12:00'}", false),
        ("{days: thu, from: '12:00', to: '13:00'}", true),
        ("{days: [mon, fri], from: '12:00', to: '13:00'}", false),
        ("[{from: '01:00', to: '02:00'}, {from: '12:00', to: '13:00'}]", true),
        ("{from: '13:00', to: '14:00', time_zone: Europe/Berlin}", true),
        ("{from: '22:00', to: '12:01'}", true),
    ] {
        assert_eq!(is_open(settings), Some(open), "{settings}");
    }
}

#[test]
fn a_schedule_has_the_settings_of_its_entry() {
    let yaml = "
sinks: {s: {type: redis_list, key: k}}
routes: {a: {sink: s}}
schedules:
  plain: {route: a, every: 1h, payload: text}
  full:
    route: a
    every: 1h
    payload: {b: 1}
    content_type: application/x-custom
    max_attempts: 7
    flow: f
    key: k
    headers: {X-A: '1'}
    expires_after: 5s
    jitter: 3s
  empty: {route: a, every: 1h, payload: x, flow: ''}
";
    let config = Setup::new(&[yaml], &[]).load().unwrap_or_else(|errors| panic!("{errors}"));
    let one = |name: &str| config.schedules.iter().find(|one| one.name() == name).unwrap();
    let full = one("full");
    assert_eq!(
        full.metadata,
        Metadata {
            headers: [("X-A".to_owned(), "1".to_owned())].into(),
            key: Some("k".into()),
            flow: Some("f".into()),
            content_type: Some("application/x-custom".into()),
            max_attempts: Some(7),
            ..Metadata::default()
        }
    );
    assert_eq!((&full.payload[..], full.expires_after, full.rule.jitter), (&br#"{"b":1}"#[..], Some(5000), 3000));
    let plain = one("plain");
    assert_eq!(
        (&plain.payload[..], plain.metadata.content_type.as_deref()),
        (&b"text"[..], Some("text/plain; charset=utf-8"))
    );
    assert_eq!((plain.metadata.flow.as_ref(), plain.metadata.max_attempts), (None, None));
    assert_eq!(one("empty").metadata.flow, None);
}

#[test]
fn a_payload_of_a_schedule_is_sent_as_it_is_written_or_refused() {
    let load = |payload: &str| {
        let yaml = format!(
            "sinks: {{s: {{type: redis_list, key: k}}}}\nroutes: {{a: {{sink: s}}}}\n\
             schedules: {{n: {{route: a, every: 1h, payload: {payload}}}}}"
        );
        let loaded = Setup::new(&[&yaml], &[]).load();
        loaded.map(|config| config.schedules[0].payload.to_vec()).map_err(|errors| errors.to_string())
    };
    for (payload, sent) in [
        (
            "{user: null, keep: 1, nested: {a: ~, b: [1, null]}}",
            r#"{"keep":1,"nested":{"a":null,"b":[1,null]},"user":null}"#,
        ),
        ("18446744073709551615", "18446744073709551615"),
        ("[0.1, -3, 0x1F, true]", "[0.1,-3,31,true]"),
        ("'.inf and'", ".inf and"),
        ("{a: '12345678901234567890123'}", r#"{"a":"12345678901234567890123"}"#),
    ] {
        assert_eq!(load(payload).map(|sent| String::from_utf8(sent).unwrap()).as_deref(), Ok(sent), "{payload}");
    }
    for payload in ["12345678901234567890123", "{a: [1e400]}", ".nan", "{a: -.inf}", "9007199254740992.0"] {
        let error = load(payload).unwrap_err();
        assert!(error.contains("schedules.n.payload: has the number"), "{payload}: {error}");
    }
    let empty = Setup::new(&["schedules: {n: }"], &[]).problems();
    assert!(empty.iter().any(|text| text.contains("schedules.n: must be a mapping, not empty")), "{empty:?}");
    assert!(load("null").unwrap_err().contains("schedules.n.payload: is missing"));
    assert!(!load("null").unwrap_err().contains("headers"));
    let error = load("x, headers: {v: 1.10}").unwrap_err();
    assert!(error.contains("schedules.n.headers.v: must be text, not a number: put it in quotes"), "{error}");
}
