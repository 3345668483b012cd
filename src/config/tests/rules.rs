//! Rules of single settings.

use super::*;

fn routed(more: &str) -> String {
    format!("sinks: {{s: {{type: redis_list, key: k}}}}\nroutes: {{a: {{sink: s}}}}\n{more}")
}

#[test]
fn the_address_of_the_server_is_read_without_the_rest() {
    let read = |yaml: &str| server_address(&Setup::new(&[yaml], &[]).sources);
    let listens = |listen: &str, is_tls, health: Option<&str>| {
        let health_listen = health.map(|address| address.parse().unwrap());
        ServerAddress { listen: listen.parse().unwrap(), is_tls, health_listen }
    };
    for (yaml, expected) in [
        ("{}", listens("127.0.0.1:8080", false, None)),
        ("sinks: 5\nserver: {listen: '127.0.0.1:9', tls: {cert_file: c}}", listens("127.0.0.1:9", true, None)),
        (
            "server: {tls: {cert_file: ''}, health_listen: '127.0.0.1:8'}",
            listens("127.0.0.1:8080", false, Some("127.0.0.1:8")),
        ),
        ("server: {health_listen: ''}", listens("127.0.0.1:8080", false, None)),
    ] {
        assert_eq!(read(yaml).ok(), Some(expected), "{yaml}");
    }
    let error = read("server: {health_listen: x}").unwrap_err().to_string();
    assert!(error.contains("`x` is not an address and port"), "{error}");
}

#[test]
fn variables_of_the_process_are_its_environment() {
    let sources = Sources::of_process(vec![], None);
    assert!(sources.env.iter().any(|(name, _)| name == "PATH"));
}

#[test]
fn a_development_keeps_the_places_of_all_settings_but_those_of_redis() {
    let mut setup = Setup::new(&["redis: {url: 'redis://one'}\nmax_sleep: soon"], &[]);
    setup.sources.development = Some("data".into());
    let problems = setup.problems();
    assert!(problems.len() == 1 && problems[0].starts_with("1.yaml:2:1: max_sleep: `soon`"), "{problems:?}");
}

#[test]
fn a_wrong_setting_in_an_entry_of_a_list_is_told_once_beside_others() {
    let yaml = "server: {auth: {tokens: [{rights: [read], routes: 5, token: t}, {rights: 7, routes: [x], token: t}]}}";
    let problems = Setup::new(&[yaml], &[]).problems();
    for path in ["tokens[0].routes", "tokens[1].rights"] {
        let path = path.replace('[', ".").replace(']', "");
        assert_eq!(problems.iter().filter(|problem| problem.contains(&path)).count(), 1, "{problems:?}");
    }
}

#[test]
fn defaults_of_an_unknown_type_are_refused() {
    let problems = Setup::new(&["sink_defaults: {pigeon: {}}"], &[]).problems();
    assert!(problems.len() == 1 && problems[0].contains("`pigeon` is unknown"), "{problems:?}");
}

#[test]
fn a_name_of_a_token_has_letters_digits_and_four_marks() {
    for (name, is_right) in [("ops.team_1@b-c", true), ("ops team", false), ("é", false)] {
        let yaml =
            format!("server: {{auth: {{tokens: [{{name: '{name}', rights: [read], routes: ['*'], token: t}}]}}}}");
        let wrong =
            Setup::new(&[&yaml], &[]).load().err().is_some_and(|errors| errors.to_string().contains("A-Za-z0-9"));
        assert_eq!(!wrong, is_right, "{name}");
    }
}

#[test]
fn a_schedule_that_has_ended_is_a_warning_and_any_other_wrong_rule_an_error() {
    let ended = routed("schedules: {n: {route: a, every: 1h, payload: x, ends_at: '2001-01-01T00:00:00Z'}}");
    let config = Setup::new(&[&ended], &[]).load().unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.warnings.iter().any(|warning| warning.to_string().contains("has passed")), "{:?}", config.warnings);
    for (rule, path) in [("every: 1h, jitter: 2h", "schedules.n.jitter"), ("cron: soon", "schedules.n.cron")] {
        let problems =
            Setup::new(&[&routed(&format!("schedules: {{n: {{route: a, {rule}, payload: x}}}}"))], &[]).problems();
        assert!(problems.len() == 1 && problems[0].contains(path), "{problems:?}");
    }
    let refused = routed("schedules: {n: {route: a, every: soon, payload: x}}");
    let problems = Setup::new(&[&refused], &[]).problems();
    assert!(problems.len() == 1 && problems[0].contains("`soon` is not a duration"), "{problems:?}");
}

#[test]
fn the_schema_takes_empty_settings_but_those_that_are_mistakes() {
    let validator = jsonschema::validator_for(&schema(&connector::registry())).unwrap();
    let errors = |yaml: &str| {
        let values: BTreeMap<String, serde_json::Value> = serde_saphyr::from_str(yaml).unwrap();
        let values = serde_json::to_value(values).unwrap();
        validator.iter_errors(&values).map(|error| error.to_string()).collect::<Vec<_>>()
    };
    let sink = |more: &str| format!("sinks: {{a: {{type: http, url: 'http://b/{{header:X}}', {more}}}}}");
    let route = |more: &str| routed("").replace("sink: s", &format!("sink: s, {more}"));
    for right in [
        "max_sleep:",
        "redis: {password: }",
        "tracing: {otlp: {endpoint: , headers: }}",
        &sink("allow: , headers: , timeout: "),
        &sink("allow: ['/**']"),
        &route("window: , lease: , flow: "),
        &route("window: {from: '08:00', to: '18:00'}"),
        &route("window: [{from: '08:00', to: '18:00'}]"),
    ] {
        assert_eq!(errors(right), Vec::<String>::new(), "{right}");
    }
    for wrong in [
        "server: {auth: }",
        "server: {auth: {tokens: }}",
        &sink("signing_secrets: "),
        &sink("allow: {a: b}"),
        &route("window: 5"),
        &route("window: [5]"),
        &route("window: {of: never}"),
    ] {
        assert!(!errors(wrong).is_empty(), "{wrong}");
    }
}

#[test]
fn only_files_that_a_setting_names_are_part_of_its_fingerprint() {
    let setup = Setup::new(&[""], &[]);
    let key = setup.directory.path().join("key");
    let yaml = routed("").replace("key: k", &format!("key: '{}'", key.display()));
    std::fs::write(&setup.sources.files[0], yaml).unwrap();
    let fingerprint = |content: &str| {
        std::fs::write(&key, content).unwrap();
        setup.load().unwrap_or_else(|errors| panic!("{errors}")).fingerprints.sinks
    };
    assert!(fingerprint("one") == fingerprint("two"), "the name of a list can be that of a file");
}

#[test]
fn sinks_and_sources_tell_their_type_and_where_they_lead() {
    let yaml = "
sinks:
  http: {type: http, url: 'http://b'}
  redis_list: {type: redis_list, key: jobs}
  kafka: {type: kafka, brokers: ['b:1'], topic: t}
  rabbitmq: {type: rabbitmq, url: 'amqp://mq', exchange: e}
  lists: {type: redis_list, key: '{header:X}', allow: ['*']}
routes: {r: {sink: redis_list}}
sources:
  sorted_set: {type: sorted_set, key: k, route: r}
  delayqueue: {type: delayqueue, name: one, route: r}
  kafka: {type: kafka, brokers: ['b:1'], topics: [t], group_id: g, start: latest, route: r}
  rabbitmq: {type: rabbitmq, url: 'amqp://mq', queue: q, route: r}
  other: {type: delayqueue, name: two, route: r}
";
    let config = Setup::new(&[yaml], &[]).load().unwrap_or_else(|errors| panic!("{errors}"));
    for (name, sink) in &config.sinks {
        let (kind, varying) = if name == "lists" { ("redis_list", Some("key")) } else { (&**name, None) };
        assert_eq!((sink.kind(), sink.varying()), (kind, varying), "{name}");
        assert!(name == "kafka" || sink.remark().is_none(), "{name}: {:?}", sink.remark());
    }
    for (name, source) in &config.sources {
        let kind = if name == "other" { "delayqueue" } else { name };
        assert_eq!(
            (source.kind(), source.is_on_redis()),
            (kind, matches!(kind, "sorted_set" | "delayqueue")),
            "{name}"
        );
    }
}
