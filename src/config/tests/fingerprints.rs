//! Fingerprints of the parts of a configuration: a reload replaces the parts with another one.

use super::*;

const BASE: &str = "
sinks:
  a: { type: http, url: 'https://a', tls: { ca_file: CA } }
  b: { type: redis_list, key: b }
routes: { r: { sink: a, partitions: 2 }, q: { sink: b } }
sources: { s: { type: delayqueue, name: s, route: q } }
";

/// The names of the parts that another configuration changes, and whether its digest differs.
fn changed(setup: &Setup, other: &str) -> (Vec<String>, bool) {
    let [one, two] = [BASE, other].map(|yaml| {
        let yaml = yaml.replace("CA", &setup.directory.path().join("ca.pem").display().to_string());
        std::fs::write(&setup.sources.files[0], yaml).unwrap();
        setup.load().unwrap_or_else(|errors| panic!("{errors}"))
    });
    (differing(&one, &two), one.digest() != two.digest())
}

fn differing(one: &Config, two: &Config) -> Vec<String> {
    let maps = |config: &Config| {
        let all = config.fingerprints.clone();
        [("sinks", all.sinks), ("routes", all.routes), ("sources", all.sources), ("others", all.others)]
    };
    let mut names = Vec::new();
    for ((section, one), (_, two)) in maps(one).into_iter().zip(maps(two)) {
        let all: std::collections::BTreeSet<_> = one.keys().chain(two.keys()).collect();
        names.extend(
            all.into_iter().filter(|name| one.get(*name) != two.get(*name)).map(|name| format!("{section}.{name}")),
        );
    }
    let single = [
        ("schedules", one.fingerprints.schedules != two.fingerprints.schedules),
        ("auth", one.fingerprints.auth != two.fingerprints.auth),
    ];
    names.extend(single.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()));
    names
}

#[test]
fn a_setting_changes_the_part_that_has_it() {
    let setup = Setup::new(&[""], &[]);
    std::fs::write(setup.directory.path().join("ca.pem"), "one").unwrap();
    assert_eq!(changed(&setup, BASE), (vec![], false));
    let with = |more: &str| format!("{BASE}{more}");
    let cases: [(String, &[&str]); 9] = [
        (BASE.replace("https://a", "https://b"), &["sinks.a"]),
        (BASE.replace("key: b", "key: c"), &["sinks.b"]),
        (BASE.replace("sink: b", "sink: a"), &["routes.q"]),
        (BASE.replace("name: s,", "name: t,"), &["sources.s"]),
        (with("route_defaults: { max_in_flight: 7 }"), &["routes.q", "routes.r"]),
        (with("sink_defaults: { http: { timeout: 3s } }"), &["sinks.a"]),
        (with("max_sleep: 20s"), &["others.max_sleep"]),
        (with("server: { max_payload: 2MiB, auth: { tokens: [t] } }"), &["others.server.max_payload", "auth"]),
        (with("schedules: { n: { route: q, every: 1h, payload: x } }"), &["schedules"]),
    ];
    for (yaml, names) in cases {
        let (found, differs) = changed(&setup, &yaml);
        assert!(
            names.iter().all(|name| found.iter().any(|one| one == name)) && found.len() == names.len(),
            "{found:?} {names:?}"
        );
        assert!(differs, "{names:?}");
    }
    // The number of partitions counts for the whole alone.
    assert_eq!(changed(&setup, &BASE.replace("partitions: 2", "partitions: 3")), (vec![], true));
}

#[test]
fn another_content_of_a_file_that_a_setting_names_is_another_sink() {
    let setup = Setup::new(&[""], &[]);
    let write = |text: &str| std::fs::write(setup.directory.path().join("ca.pem"), text).unwrap();
    let yaml = BASE.replace("CA", &setup.directory.path().join("ca.pem").display().to_string());
    std::fs::write(&setup.sources.files[0], yaml).unwrap();
    write("one");
    let one = setup.load().unwrap_or_else(|errors| panic!("{errors}"));
    let again = setup.load().unwrap();
    assert_eq!((differing(&one, &again), one.digest() == again.digest()), (vec![], true));
    write("two");
    let two = setup.load().unwrap();
    assert_eq!((differing(&one, &two), one.digest() == two.digest()), (vec!["sinks.a".to_owned()], false));
    assert!(one.digest().number() < 1 << 48 && one.digest().to_string().len() == 12);
    assert_ne!(one.digest().number() >> 40, 0, "the first byte counts");
}
