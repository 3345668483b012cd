//! Wrong configurations: every mistake is reported with its origin.

use self::{
    entries::{ROUTE_MISTAKES, SOURCE_MISTAKES},
    sinks::SINK_MISTAKES,
};
use super::*;

mod entries;
mod sinks;

fn problems(yaml: &str) -> Vec<String> {
    Setup::new(&[yaml], &[]).problems()
}

/// One mistake each: YAML, and the one report it must lead to.
const MISTAKES: &[(&str, &str)] = &[
    // Form
    ("max_sleep: 1s\nmax_sleep: 2s", "1.yaml:2:1: max_sleep: is a duplicate key"),
    ("redis: {timeout: 1s, timeout: 2s}", "1.yaml:1:22: redis.timeout: is a duplicate key"),
    ("rediss: {}", "1.yaml:1:1: rediss: `rediss` is unknown: did you mean `redis`? known: redis, server, log, "),
    (
        "redis:\n  time_out: 1s",
        "1.yaml:2:3: redis.time_out: `time_out` is unknown: did you mean `timeout`? known: url, ",
    ),
    ("redis: 5", "1.yaml:1:1: redis: must be a mapping, not a number"),
    ("redis: text", "1.yaml:1:1: redis: must be a mapping, not text"),
    ("redis: true", "1.yaml:1:1: redis: must be a mapping, not true or false"),
    ("max_sleep: {}", "1.yaml:1:1: max_sleep: must be a duration such as `30s`, not a mapping"),
    ("[]", "1.yaml:1:1: must hold a mapping"),
    ("max_sleep: [1s]", "1.yaml:1:1: max_sleep: must be a duration such as `30s`, not a list"),
    ("max_sleep: 5", "1.yaml:1:1: max_sleep: `5` is not a duration such as `30s`: time unit needed"),
    ("max_sleep: soon", "1.yaml:1:1: max_sleep: `soon` is not a duration such as `30s`: "),
    ("server: {max_payload: 1mb}", "1.yaml:1:10: server.max_payload: `1mb` is not a size such as"),
    ("redis: {password: 1234}", "1.yaml:1:9: redis.password: must be text, not a number: put it in quotes"),
    ("redis: {allow_eviction: maybe}", "1.yaml:1:9: redis.allow_eviction: `maybe` is neither true nor false"),
    ("log: {level: loud}", "1.yaml:1:7: log.level: `loud` is unknown: known: error, warn, info, debug, trace"),
    ("log: {format: jsn}", "1.yaml:1:7: log.format: `jsn` is unknown: did you mean `json`? known: text, json"),
    ("server: {auth: {tokens: [a, ]}, listen: ':1'}", "1.yaml:1:33: server.listen: `:1` is not an address and port"),
    // Spans
    ("tracing: {otlp: {sample: 1.5}}", "1.yaml:1:18: tracing.otlp.sample: `1.5` is not within 0 .. 1"),
    ("tracing: {otlp: {sample: -0.1}}", "1.yaml:1:18: tracing.otlp.sample: `-0.1` is not within 0 .. 1"),
    ("tracing: {otlp: {sample: half}}", "1.yaml:1:18: tracing.otlp.sample: `half` is not a number"),
    ("tracing: {otlp: {timeout: 50ms}}", "1.yaml:1:18: tracing.otlp.timeout: `50ms` is not within 100ms .. 1m"),
    (
        "tracing: {otlp: {endpoint: collector}}",
        "1.yaml:1:18: tracing.otlp.endpoint: is not a URL such as http://127.0.0.1:4318: ",
    ),
    (
        "tracing: {otlp: {endpoint: 'collector:4317'}}",
        "1.yaml:1:18: tracing.otlp.endpoint: has the scheme `collector`; known: http, https",
    ),
    (
        "tracing: {otlp: {endpoint: 'grpc://c:4317'}}",
        "1.yaml:1:18: tracing.otlp.endpoint: has the scheme `grpc`; known: http, https",
    ),
    (
        "tracing: {otlp: {endpoint: 'http://c/#a'}}",
        "1.yaml:1:18: tracing.otlp.endpoint: is not a URL such as http://127.0.0.1:4318: it has a `#` part",
    ),
    ("tracing: {otlp: {headers: {'a b': c}}}", "1.yaml:1:28: tracing.otlp.headers.a b: `a b` is not a header name"),
    (
        "tracing: {otlp: {headers: {a: \"b\\nc\"}}}",
        "1.yaml:1:28: tracing.otlp.headers.a: has a value with control characters",
    ),
    (
        "tracing: {otlp: {headers: {Content-Type: x}}}",
        "1.yaml:1:28: tracing.otlp.headers.Content-Type: is a header that the export itself sets",
    ),
    ("tracing: {delivery: child}", "1.yaml:1:11: tracing.delivery: `child` is unknown: known: link, parent"),
    // Expansion
    (
        "redis:\n  url: redis://${HOST}",
        "1.yaml:2:3: redis.url: names the environment variable `HOST`, which is not set",
    ),
    ("server: {auth: {tokens: [a, '${T}']}}", "1.yaml:1:29: server.auth.tokens.1: names the environment variable `T`"),
    ("redis: {password: '${file:/none}'}", "1.yaml:1:9: redis.password: names the file `/none`: "),
    // Redis
    ("redis: {url: 'http://a'}", "1.yaml:1:9: redis.url: has the scheme `http`; known: redis, rediss, unix"),
    ("redis: {url: localhost}", "1.yaml:1:9: redis.url: is not a URL such as redis://"),
    ("redis: {url: 'redis://a/x'}", "1.yaml:1:9: redis.url: has no number for its database"),
    ("redis: {url: 'rediss://a#insecure'}", "1.yaml:1:9: redis.url: must not have a `#` part"),
    ("redis: {url: 'unix:///'}", "1.yaml:1:9: redis.url: names no socket"),
    ("redis: {sentinel: {urls: ['redis://a:1']}}", "1.yaml:1:9: redis.sentinel.master: is missing"),
    ("redis: {sentinel: {master: m}}", "1.yaml:1:9: redis.sentinel.urls: is missing"),
    ("redis: {sentinel: {urls: ['redis://a'], master: m}}", "1.yaml:1:27: redis.sentinel.urls.0: names no port: "),
    (
        "redis: {sentinel: {urls: ['redis://a:1', 'redis://a:2/1'], master: m}}",
        "1.yaml:1:42: redis.sentinel.urls.1: names a database: ",
    ),
    (
        "redis: {sentinel: {urls: ['unix:///run/s.sock'], master: m}}",
        "1.yaml:1:27: redis.sentinel.urls.0: is no address of a sentinel, ",
    ),
    (
        "redis: {sentinel: {urls: ['redis://a:1', 'rediss://a:2'], master: m}}",
        "1.yaml:1:20: redis.sentinel.urls: mixes redis:// and rediss://",
    ),
    (
        "redis: {sentinel: {urls: ['redis://a:1'], master: m, tls: {ca_file: /etc/hostname}}}",
        "1.yaml:1:60: redis.sentinel.tls.ca_file: needs a URL with TLS",
    ),
    (
        "redis: {cluster: {urls: ['redis://a']}}",
        "1.yaml:1:26: redis.cluster.urls.0: is no address of a server of a cluster, ",
    ),
    ("redis: {cluster: {urls: ['redis://a:1/1']}}", "1.yaml:1:26: redis.cluster.urls.0: names a database: "),
    ("redis: {cluster: {urls: ['redis://u:p@a:1']}}", "1.yaml:1:26: redis.cluster.urls.0: names a user: "),
    (
        "redis: {cluster: {urls: ['redis://a:1', 'rediss://a:2']}}",
        "1.yaml:1:19: redis.cluster.urls: mixes redis:// and rediss://",
    ),
    (
        "redis: {cluster: {urls: ['redis://a:1']}, tls: {ca_file: /etc/hostname}}",
        "1.yaml:1:49: redis.tls.ca_file: needs a URL with TLS",
    ),
    (
        "redis: {url: 'redis://b', cluster: {urls: ['redis://a:1']}}",
        "1.yaml:1:27: redis.cluster: stands in place of `redis.url`, which is set too (",
    ),
    (
        "redis: {cluster: {urls: ['redis://a:1']}, sentinel: {urls: ['redis://a:1'], master: m}}",
        "1.yaml:1:9: redis.cluster: stands in place of `redis.sentinel`, which is set too",
    ),
    (
        "redis: {cluster: {urls: ['redis://a:1']}}\nsinks: {s: {type: redis_list, key: k}}",
        "1.yaml:2:9: sinks.s.url: is needed with `redis.cluster`: ",
    ),
    (
        "redis: {cluster: {urls: ['redis://a:1']}}\nsources: {s: {type: sorted_set, key: k, route: r}}\nroutes: {r: {sink: l}}\nsinks: {l: {type: redis_list, key: k, url: 'redis://b'}}",
        "1.yaml:2:15: sources.s.type: takes keys of other programs: ",
    ),
    (
        "redis: {url: 'redis://b', sentinel: {urls: ['redis://a:1'], master: m}}",
        "1.yaml:1:27: redis.sentinel: stands in place of `redis.url`, which is set too (",
    ),
    (
        "redis: {timeout: 1s, durability: {replicas: 1, timeout: 501ms}}",
        "1.yaml:1:48: redis.durability.timeout: is more than half of `redis.timeout`",
    ),
    (
        "redis: {url: embedded, durability: {replicas: 1}}",
        "1.yaml:1:37: redis.durability.replicas: needs a Redis with replicas",
    ),
    ("redis: {durability: {replicas: 101}}", "1.yaml:1:22: redis.durability.replicas: `101` is not within 0 .. 100"),
    ("redis: {key_prefix: 'a:{b'}", "1.yaml:1:9: redis.key_prefix: `a:{b` is not 1 to 64 of A-Za-z0-9._-"),
    ("redis: {timeout: 61s}", "1.yaml:1:9: redis.timeout: `1m 1s` is not within 100ms .. 1m"),
    ("redis: {tls: {ca_file: /etc/hostname}}", "1.yaml:1:15: redis.tls.ca_file: needs a URL with TLS"),
    ("redis: {url: 'rediss://a', tls: {ca_file: /none}}", "1.yaml:1:34: redis.tls.ca_file: `/none` cannot be read: "),
    (
        "redis: {url: 'rediss://a', tls: {key_file: /etc/hostname}}",
        "1.yaml:1:34: redis.tls.key_file: needs `cert_file` too",
    ),
    (
        "redis: {url: 'rediss://a', tls: {cert_file: /etc/hostname}}",
        "1.yaml:1:34: redis.tls.cert_file: needs `key_file` too",
    ),
    // Server
    ("server: {listen: '0.0.0.0:80'}", "1.yaml:1:10: server.listen: `0.0.0.0:80` is open to others: set `server.auth"),
    ("server: {listen: '[::]:80', auth: none}", "1.yaml:1:10: server.listen: `[::]:80` is open to others"),
    ("server: {listen: 'unix:run/a.sock'}", "1.yaml:1:10: server.listen: `unix:run/a.sock` names no socket by its wh"),
    ("server: {tls: {cert_file: /etc/hostname}}", "1.yaml:1:16: server.tls.cert_file: needs `key_file` too"),
    ("server: {tls: {cert_file: /etc/hostname, key_file: /none}}", "1.yaml:1:42: server.tls.key_file: `/none` can"),
    (
        "server: {listen: 'unix:/a', tls: {cert_file: /etc/hostname, key_file: /etc/hostname}}",
        "1.yaml:1:29: server.tls: is for an address; a Unix socket has none",
    ),
    ("server: {health_listen: '8081'}", "1.yaml:1:10: server.health_listen: `8081` is not an address and port"),
    ("server: {health_listen: '127.0.0.1:8080'}", "1.yaml:1:10: server.health_listen: is that of `listen`"),
    (
        "server: {max_connections_per_address: 0}",
        "1.yaml:1:10: server.max_connections_per_address: `0` is not within 1 .. 4096",
    ),
    ("server: {auth: nobody}", "1.yaml:1:10: server.auth: must be `none` or a mapping with `tokens`"),
    (
        "server: {auth: {tokens: [{token: a, rights: [schedule], limits: {messages_per_second: 0}}]}}",
        "1.yaml:1:66: server.auth.tokens.0.limits.messages_per_second: `0` is not within 1 .. 1000000",
    ),
    (
        "server: {auth: {tokens: [{token: a, rights: [read], limits: {messages_per_second: 5}}]}}",
        "1.yaml:1:62: server.auth.tokens.0.limits.messages_per_second: needs the right `schedule`",
    ),
    ("redis: {max_memory: 1MiB}", "1.yaml:1:9: redis.max_memory: `1MiB` is not within 16MiB .. "),
    (
        "server: {auth: {tokens: [{token: a, rights: [], limits: {messages_per_second: 5}}]}}",
        "1.yaml:1:37: server.auth.tokens.0.rights: is missing",
    ),
    (
        "server: {auth: {tokens: [{token: a, name: 'a b', rights: [read]}]}}",
        "1.yaml:1:37: server.auth.tokens.0.name: is not 1 to",
    ),
    ("server: {auth: {tokens: [{token: a, name: '', rights: [read]}]}}", "1.yaml:1:37: server.auth.tokens.0.name: "),
    ("redis: {cluster: {urls: ['redis://u@a:1']}}", "1.yaml:1:26: redis.cluster.urls.0: names a user: "),
    ("redis: {cluster: {urls: ['redis://:p@a:1']}}", "1.yaml:1:26: redis.cluster.urls.0: names a user: "),
    ("server: {auth: {tokens: [{token: a}]}}", "1.yaml:1:26: server.auth.tokens.0.rights: is missing"),
    ("server: {auth: {tokens: [{rights: [read]}]}}", "1.yaml:1:26: server.auth.tokens.0.token: is missing"),
    ("server: {auth: {tokens: [a, 5]}}", "1.yaml:1:29: server.auth.tokens.1: must be a text or a mapping with `token`"),
    ("server: {auth: {tokens: ['']}}", "1.yaml:1:26: server.auth.tokens.0: has an empty token"),
    (
        "server: {auth: {tokens: [{token: a, rights: [all]}]}}",
        "1.yaml:1:46: server.auth.tokens.0.rights.0: `all` is unkn",
    ),
    (
        "server: {auth: {tokens: [a, {token: c, rights: [read], routes: [b]}]}}",
        "1.yaml:1:65: server.auth.tokens.1.routes.0: route `b` is unknown: known: nothing",
    ),
    // An empty value in place of a list does not count as missing.
    ("server:\n  auth:", "1.yaml:2:3: server.auth: must be `none` or a mapping with `tokens`"),
    ("server:\n  auth: {}", "1.yaml:2:3: server.auth.tokens: is missing"),
    ("server:\n  auth: {open_metrics: true}", "1.yaml:2:3: server.auth.tokens: is missing"),
    ("server:\n  auth:\n    tokens:", "1.yaml:3:5: server.auth.tokens: must be a list, not empty"),
    ("server:\n  auth:\n    tokens: []", "1.yaml:3:5: server.auth.tokens: is missing"),
    (
        "server:\n  auth:\n    tokens:\n    - token: a\n      rights: [read]\n      routes:",
        "1.yaml:6:7: server.auth.tokens.0.routes: must be a list, not empty",
    ),
    (
        "server: {auth: {tokens: [{token: a, rights: [read], routes: []}]}}",
        "1.yaml:1:53: server.auth.tokens.0.routes: is empty: name routes, or `*` for all",
    ),
    (
        "server:\n  auth:\n    tokens:\n    - token: a\n      rights:",
        "1.yaml:5:7: server.auth.tokens.0.rights: must be a list, not empty",
    ),
    (
        "sinks: {a: {type: http, url: 'http://b', signing_secrets: }}",
        "1.yaml:1:42: sinks.a.signing_secrets: must be a list, not empty",
    ),
    (
        "sink_defaults: {http: {signing_secrets: }}",
        "1.yaml:1:24: sink_defaults.http.signing_secrets: must be a list, not empty",
    ),
    // Tokens
    (
        "server: {auth: {tokens: [a, b, {token: a, rights: [read]}]}}",
        "1.yaml:1:32: server.auth.tokens.2: is the token of server.auth.tokens.0 too",
    ),
    (
        "server: {auth: {tokens: ['sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb', a]}}",
        "1.yaml:1:101: server.auth.tokens.1: is the token of server.auth.tokens.0 too",
    ),
    (
        "server: {auth: {tokens: ['sha256:ca978112']}}",
        "1.yaml:1:26: server.auth.tokens.0: is not `sha256:` followed by 64 hexadecimal digits",
    ),
    (
        "server: {auth: {tokens: [fifteen-letters]}, listen: '0.0.0.0:80'}",
        "1.yaml:1:26: server.auth.tokens.0: is shorter than 16 characters, and `server.listen` is open to others",
    ),
    ("server: {max_payload: 4MiB}", "1.yaml:1:10: server.max_payload: `4MiB` is not within 1 .. 3MiB"),
    ("server: {request_timeout: 1ms}", "1.yaml:1:10: server.request_timeout: `1ms` is not within 100ms .. 1m"),
    ("max_sleep: 6m", "1.yaml:1:1: max_sleep: `6m` is not within 100ms .. 5m"),
    ("shutdown_timeout: 0s", "1.yaml:1:1: shutdown_timeout: `0s` is not within 100ms .. 10m"),
    // Sources
    ("sources:\n  a:", "1.yaml:2:3: sources.a: must be a mapping with a `type`"),
    (
        "sources: {a: {route: b}}",
        "1.yaml:1:11: sources.a.type: is missing: one of delayqueue, kafka, rabbitmq, sorted_set",
    ),
    ("sources: {a: {type: sorted_set, key: b}}", "1.yaml:1:11: sources.a.route: is missing"),
    ("sources: {a: {type: sorted_set, key: b, route: c}}", "1.yaml:1:41: sources.a.route: route `c` is unknown"),
    // Routes
    ("routes:\n  a:", "1.yaml:2:3: routes.a: must be a mapping, not empty"),
    ("routes: {a: {}}", "1.yaml:1:10: routes.a.sink: is missing"),
    ("routes: {a: {sink: b}}", "1.yaml:1:14: routes.a.sink: sink `b` is unknown: known: nothing"),
    ("route_defaults:\n  lese: 1s", "1.yaml:2:3: route_defaults.lese: `lese` is unknown: did you mean `lease`?"),
];

#[test]
fn every_mistake_is_reported_where_it_was_made_and_alone() {
    let mut wrong = Vec::new();
    let mut compare = |yaml: &str, expected: &str| {
        let problems = problems(yaml);
        if problems.len() != 1 || !problems[0].starts_with(expected) {
            wrong.push(format!("{yaml}\n  expected {expected}\n  reported {problems:#?}"));
        }
    };
    for (yaml, expected) in MISTAKES.iter().chain(SINK_MISTAKES) {
        compare(yaml, expected);
    }
    for (source, expected) in SOURCE_MISTAKES {
        let routes = "routes: {r: {sink: s}}\nsinks: {s: {type: redis_list, key: k}}";
        compare(&format!("sources: {{a: {{{source}, route: r}}}}\n{routes}"), expected);
    }
    for (setting, expected) in ROUTE_MISTAKES {
        let yaml = format!("sinks: {{s: {{type: redis_list, key: k}}}}\nroutes:\n  a-b:\n    sink: s\n    {setting}");
        let column = setting.find('{').map_or(5, |at| at + 6);
        compare(&yaml, &format!("1.yaml:5:{column}: routes.a-b.{expected}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_mistakes_of_a_flow_are_reported_together() {
    let flow = "routes:\n  a: {sink: s, partitions: 2, flow: {rat: 1/s, burst: 0, parallel: 3, ordered: true, key: x}}";
    let expected = [
        "1.yaml:2:16: routes.a.partitions: excludes `flow`: a flow needs one partition, which carries more than the \
         rate of any key. On a cluster, other routes use the other primaries",
        "1.yaml:2:38: routes.a.flow.rat: `rat` is unknown: did you mean `rate`? known: key, rate, burst, parallel, ordered",
        "1.yaml:2:48: routes.a.flow.burst: `0` is not within 1 .. 1000000",
        "1.yaml:2:58: routes.a.flow.parallel: `3` contradicts `ordered: true`, which sends one message of a key at a time",
        "1.yaml:2:86: routes.a.flow.key: has no placeholder: without `key` the whole route is one flow",
    ];
    let sinks = "\nsinks: {s: {type: redis_list, key: k}}";
    assert_eq!(problems(&format!("{flow}{sinks}")), expected);
    for (yaml, expected) in [
        ("routes: {a: {sink: s, flow: {}}}", "1.yaml:1:23: routes.a.flow: has no effect: it needs `rate`, "),
        (
            "route_defaults: {flow: {rate: 1/s}}\nroutes: {a: {sink: s, flow: {burst: 5}}, b: {sink: s, partitions: 2}}",
            "1.yaml:2:55: routes.b.partitions: excludes `flow`",
        ),
        (
            "route_defaults: {flow: {rate: 0/s}}\nroutes: {a: {sink: s, flow: {burst: 5}}, b: {sink: s}}",
            "1.yaml:1:25: route_defaults.flow.rate: `0` messages",
        ),
    ] {
        let problems = problems(&format!("{yaml}{sinks}"));
        assert!(problems.len() == 1 && problems[0].starts_with(expected), "{problems:?}");
    }
}

#[test]
fn all_mistakes_of_all_sources_are_reported_together() {
    let setup = Setup::new(
        &[
            "redis:\n  timeout: 5\n  url: redis://u:hunter2@\nserver:\n  listen: 0.0.0.0:80\n  port: 1\n\
             server: {}\nmax_sleep: 10m\nroute_defaults: {lease: 5s, partitions: many}",
            "sinks:\n  web: {type: http, url: 'https://example.org', timeout: 1x, signing_secrets: [hunter2, whsec_!]}\n\
             \x20 other: {type: carrier_pigeon}\n  list: {type: redis_list, key: k}\n\
             routes:\n  a: {sink: web, lease: 2h}\n  b: {sink: wbe}\n  c: {sink: list}\n  d: {sink: other}",
        ],
        &[("PUNCTUAL__LOG__LEVEL", "9"), ("PUNCTUAL__ROUTES__A__RETRY__FACTOR", "0"), ("PUNCTUAL__X", "1")],
    );
    assert_eq!(
        setup.problems(),
        [
            "1.yaml:2:3: redis.timeout: `5` is not a duration such as `30s`: time unit needed, for example 5sec or 5ms",
            "1.yaml:3:3: redis.url: is not a URL such as redis://127.0.0.1:6379/0: empty host",
            "1.yaml:7:1: server: is a duplicate key: it is at line 4, column 1 too",
            "1.yaml:8:1: max_sleep: `10m` is not within 100ms .. 5m",
            "1.yaml:9:18: routes.c.lease: `5s` is too short for the timeout of its sink, 10s, and 500ms",
            "1.yaml:9:29: route_defaults.partitions: `many` is not a whole number",
            "2.yaml:2:49: sinks.web.timeout: `1x` is not a duration such as `30s`: unknown time unit \"x\", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations)",
            "2.yaml:2:80: sinks.web.signing_secrets.0: is not `whsec_` or `whsk_` followed by base64, as Standard Webhooks has it",
            "2.yaml:2:89: sinks.web.signing_secrets.1: is not `whsec_` or `whsk_` followed by base64, as Standard Webhooks has it",
            "2.yaml:3:11: sinks.other.type: `carrier_pigeon` is unknown: known: http, kafka, redis_list, rabbitmq",
            "2.yaml:6:18: routes.a.lease: `2h` is not within 1s .. 1h",
            "2.yaml:7:7: routes.b.sink: sink `wbe` is unknown: did you mean `web`? known: list, other, web",
            "$PUNCTUAL__LOG__LEVEL: log.level: `9` is unknown: known: error, warn, info, debug, trace",
            "$PUNCTUAL__ROUTES__A__RETRY__FACTOR: routes.a.retry.factor: 0 is not within 1 .. 100",
            "$PUNCTUAL__X: x: `x` is unknown: known: redis, server, log, tracing, shutdown_timeout, max_sleep, max_in_flight_bytes, sink_defaults, sinks, route_defaults, routes, source_defaults, sources, schedules, schedules_revision",
        ]
    );
}

#[test]
fn what_cannot_be_expanded_hides_no_other_mistake() {
    assert_eq!(
        problems("redis: {url: '${HOST}'}\nroutes: {a: {sink: b}}"),
        [
            "1.yaml:1:9: redis.url: names the environment variable `HOST`, which is not set",
            "1.yaml:2:14: routes.a.sink: sink `b` is unknown: known: nothing",
        ]
    );
}

#[test]
fn a_file_that_cannot_be_parsed_hides_only_what_would_mislead() {
    let setup = Setup::new(&["routes: {a: {sink: b}}\nredis: [", "a: 1\na: 2"], &[]);
    let problems = setup.problems();
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(problems[0].starts_with("1.yaml:2:") || problems[0].starts_with("1.yaml:3:"), "{problems:#?}");
    assert_eq!(problems[1], "2.yaml:2:1: a: is a duplicate key: it is at line 1, column 1 too");
    let missing = Sources { files: vec!["/none.yaml".into()], ..Sources::default() };
    assert!(
        load(&missing, &connector::registry())
            .unwrap_err()
            .to_string()
            .starts_with("/none.yaml: cannot be read: No such file")
    );
}
