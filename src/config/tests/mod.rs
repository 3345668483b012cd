//! Whole configurations, and the settings that they result in.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use std::any::Any;

use tempfile::TempDir;

use super::*;
use crate::{
    connector::{
        self,
        http::HttpSettings,
        kafka::{KafkaSinkSettings, KafkaSourceSettings, Start},
        rabbitmq::{IdFrom, RabbitMqSinkSettings, RabbitMqSourceSettings},
        redis_list::RedisListSettings,
        redis_sets::{DelayQueueSettings, ScoreUnit, SortedSetSettings},
    },
    message::{FlowLimits, Metadata, Rate, Remember},
    secret::SecretUrl,
    sink::envelope::ListFormat,
};

mod bounds;
mod fingerprints;
mod fuzz;
mod hints;
mod mistakes;
mod rules;
mod secrets;

/// Files in a directory of their own, and an environment.
pub struct Setup {
    directory: TempDir,
    sources: Sources,
}

impl Setup {
    pub fn new(files: &[&str], env: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = |(number, text): (usize, &&str)| {
            let path = directory.path().join(format!("{}.yaml", number + 1));
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = files.iter().enumerate().map(file).collect();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { directory, sources: Sources { files, env, redis_url: None, development: None } }
    }

    pub fn load(&self) -> Result<Config, ConfigErrors> {
        load(&self.sources, &connector::registry())
    }

    /// The reports, without the directory in file names.
    pub fn problems(&self) -> Vec<String> {
        let directory = format!("{}/", self.directory.path().display());
        let errors = self.load().expect_err("the configuration is wrong");
        errors.0.iter().map(|problem| problem.to_string().replace(&directory, "")).collect()
    }
}

impl Config {
    fn sink<T: 'static>(&self, name: &str) -> &T {
        (&*self.sinks[name] as &dyn Any).downcast_ref().expect("a sink of this type")
    }

    fn source<T: 'static>(&self, name: &str) -> &T {
        (&*self.sources[name] as &dyn Any).downcast_ref().expect("a source of this type")
    }
}

#[test]
fn a_flow_has_its_own_settings_and_those_of_the_defaults() {
    let yaml = "
sinks: { jobs: { type: redis_list, key: jobs } }
route_defaults: { flow: { key: '{header:X-Tenant}', rate: 90/m } }
routes:
  tenants: { sink: jobs }
  slow: { sink: jobs, flow: { rate: 10/d } }
  burst: { sink: jobs, flow: { key: '{key}', burst: 20, parallel: 5 } }
  ordered: { sink: jobs, flow: { rate: 300/s, ordered: true } }
  empty: { sink: jobs, flow: }
";
    let config = Setup::new(&[yaml], &[]).load().unwrap_or_else(|errors| panic!("{errors}"));
    let metadata = Metadata {
        key: Some("k 1".into()),
        headers: [("x-tenant".to_owned(), "acme".to_owned())].into(),
        ..Metadata::default()
    };
    let flow = |route: &str| {
        let flow = config.routes[route].flow.as_ref()?;
        Some((flow.key.as_ref().map(|key| key.render(route, &metadata)), flow.limits))
    };
    let limits = |rate, burst, parallel, ordered| FlowLimits { rate: Rate::parse(rate).ok(), burst, parallel, ordered };
    let tenant = Some("acme".to_owned());
    assert_eq!(flow("tenants"), Some((tenant.clone(), limits("90/m", 1, None, false))));
    assert_eq!(flow("slow"), Some((tenant.clone(), limits("10/d", 1, None, false))));
    assert_eq!(flow("burst"), Some((Some("k~201".to_owned()), limits("90/m", 20, Some(5), false))));
    assert_eq!(flow("ordered"), Some((tenant, limits("300/s", 300, Some(1), true))));
    assert_eq!(flow("empty"), flow("tenants"), "empty is not set");
    let env = [("PUNCTUAL__ROUTES__A__FLOW__PARALLEL", "3"), ("PUNCTUAL__ROUTES__A__SINK", "s")];
    let config = Setup::new(&["sinks: {s: {type: redis_list, key: k}}"], &env).load().unwrap();
    let flow = config.routes["a"].flow.as_ref().unwrap();
    assert_eq!((flow.key.is_none(), flow.limits), (true, limits("", 1, Some(3), false)));
}

#[test]
fn without_files_the_defaults_hold_and_redis_is_embedded() {
    let config = load(&Sources::default(), &connector::registry()).unwrap();
    assert_eq!(config.redis.url, RedisUrl::Embedded);
    assert_eq!(config.redis.username, None);
    assert!(config.redis.password.is_none());
    assert_eq!(config.redis.key_prefix, "punctual");
    assert_eq!(config.redis.data_dir, PathBuf::from("./punctual-data"));
    assert_eq!(config.redis.timeout.0, Duration::from_secs(5));
    assert!(!config.redis.allow_eviction.0);
    assert_eq!(config.server.listen, "127.0.0.1:8080".parse().unwrap());
    assert!(config.server.auth.is_none());
    assert_eq!(config.server.max_payload, 1 << 20);
    assert_eq!(config.server.request_timeout, Duration::from_secs(5));
    assert_eq!((config.log.format, config.log.level), (LogFormat::Text, LogLevel::Info));
    assert_eq!(config.shutdown_timeout, Duration::from_secs(10));
    assert_eq!(config.max_sleep, Duration::from_secs(30));
    assert!(config.sinks.is_empty() && config.routes.is_empty() && config.sources.is_empty());
}

#[test]
fn a_file_changes_what_it_names_and_entries_start_from_their_defaults() {
    let setup = Setup::new(
        &["
redis: { password: }
server: { auth: { tokens: [plain, { token: t, rights: [read], routes: [a] }], open_metrics: true } }
route_defaults: { retry: { max: 1m }, remember: { max: 90000 } }
sinks:
  web: { type: http, url: 'https://example.org/due', signing_secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw], headers: { X-A: '1' } }
  jobs: { type: redis_list, key: jobs, format: envelope, url: 'redis://10.0.0.1', timeout: 2s }
  orders: { type: kafka, brokers: ['a:1', '[::1]:2'], topic: orders.due, options: { compression.type: zstd, linger.ms: 5 } }
  mq: { type: rabbitmq, url: 'amqp://mq/shop?heartbeat=5', exchange: '', password: s }
sources:
  set: { type: sorted_set, key: delayed, unit: milliseconds, payload: hash, hash_prefix: task, route: a }
  go: { type: delayqueue, name: order-close, hash_tag: true, route: a, poll: 100ms }
  rabbit: { type: rabbitmq, url: 'amqp://mq', queue: in, id_from: message_id, delay_from: x_death, backoff: { max: 1m }, route: b.c }
  records: { type: kafka, brokers: 'a:1', topics: [t, u], group_id: g, start: earliest, max_overdue: 1h, route: r.k }
routes:
  a: { sink: web }
  r.k: { sink: web, remember: { max: 7 } }
  b.c: { sink: jobs, partitions: 4, lease: 10s, max_in_flight_bytes: 2MiB, retry: { factor: 1.5 }, remember: { for: 10m } }
  off: { sink: jobs, remember: { for: 0s } }
  few: { sink: jobs, remember: { for: 1s, max: 5 } }
"],
        &[],
    );
    let config = setup.load().unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.redis.url, RedisUrl::Url("redis://127.0.0.1:6379/0".into()));
    let auth = config.server.auth.as_ref().unwrap();
    assert!(auth.open_metrics);
    assert_eq!(auth.tokens[0].rights, [Right::Schedule, Right::Read, Right::Admin]);
    assert_eq!((auth.tokens[0].digest, auth.tokens[0].routes[0].as_str()), (TokenDigest::of("plain"), "*"));
    assert_eq!((auth.tokens[1].rights[0], auth.tokens[1].routes[0].as_str()), (Right::Read, "a"));
    let web: &HttpSettings = config.sink("web");
    assert_eq!(web.timeout.0, Duration::from_secs(10));
    assert_eq!((web.signing_secrets.iter().count(), web.headers["X-A"].expose()), (1, "1"));
    let jobs: &RedisListSettings = config.sink("jobs");
    assert_eq!((jobs.format, jobs.timeout.0), (ListFormat::Envelope, Duration::from_secs(2)));
    assert_eq!(jobs.server().unwrap().url.expose(), "redis://10.0.0.1");
    let orders: &KafkaSinkSettings = config.sink("orders");
    assert_eq!((orders.topic.as_constant(), orders.timeout.0), (Some("orders.due"), Duration::from_secs(10)));
    assert_eq!(orders.cluster().addresses(), "a:1,[::1]:2");
    let options = ["compression.type", "linger.ms"].map(|name| orders.options[name].0.expose());
    assert_eq!(options, ["zstd", "5"]);
    let mq: &RabbitMqSinkSettings = config.sink("mq");
    assert_eq!((mq.exchange.as_constant(), mq.timeout.0), (Some(""), 10 * SECOND));
    assert!(mq.address().unwrap().shape().is_none());
    assert_eq!((&mq.username, mq.password.as_ref().unwrap().expose()), (&None, "s"));
    let set: &SortedSetSettings = config.source("set");
    assert_eq!(
        (set.key.as_str(), set.unit, set.hash_prefix.as_deref()),
        ("delayed", ScoreUnit::Milliseconds, Some("task"))
    );
    assert_eq!((&*set.route, set.poll.0), ("a", SECOND));
    let go: &DelayQueueSettings = config.source("go");
    assert_eq!(
        (go.name.as_str(), go.prefix.as_str(), go.hash_tag.0, go.poll.0),
        ("order-close", "dp", true, SECOND / 10)
    );
    let rabbit: &RabbitMqSourceSettings = config.source("rabbit");
    assert_eq!((rabbit.queue.as_str(), rabbit.prefetch.0, rabbit.id_from), ("in", 1000, IdFrom::MessageId));
    assert_eq!(rabbit.delay(), Some(crate::retry::Backoff::new(SECOND, 2.0, 60 * SECOND, 0.2).unwrap()));
    let records: &KafkaSourceSettings = config.source("records");
    assert_eq!(
        (records.topics.iter().cloned().collect::<Vec<_>>().join(","), records.group_id.as_str()),
        ("t,u".to_owned(), "g")
    );
    assert_eq!((records.start, records.max_overdue), (Start::Earliest, Some(Period(3600 * SECOND))));
    let (a, b) = (&config.routes["a"], &config.routes["b.c"]);
    assert_eq!((a.partitions, a.lease, a.max_in_flight), (1, Duration::from_secs(30), 2000));
    let memory = |seconds, max| Some(Remember { period: Duration::from_secs(seconds), max });
    assert_eq!((a.remember, b.remember), (None, memory(600, 90_000)));
    assert_eq!(config.routes["r.k"].remember, memory(600, 7), "as it has a Kafka source");
    assert_eq!((config.routes["off"].remember, config.routes["few"].remember), (memory(0, 90_000), memory(1, 5)));
    assert_eq!((a.max_in_flight_bytes, a.retry.max_attempts), (64 << 20, 36));
    assert_eq!(a.retry.backoff, crate::retry::Backoff::new(SECOND, 2.0, 60 * SECOND, 0.2).unwrap());
    assert_eq!((b.partitions, b.lease, b.max_in_flight_bytes), (4, Duration::from_secs(10), 2 << 20));
    assert_eq!(b.retry.backoff, crate::retry::Backoff::new(SECOND, 1.5, 60 * SECOND, 0.2).unwrap());
}

#[test]
fn all_that_is_wrong_with_kafka_sources_is_told_at_once() {
    let setup = Setup::new(
        &["
sinks: { jobs: { type: redis_list, key: jobs } }
routes: { a: { sink: jobs }, b: { sink: jobs } }
source_defaults: { kafka: { brokers: ['k:1', 'k:2'], group_id: g } }
sources:
  one: { type: kafka, topics: [t, u], route: a }
  other-brokers: { type: kafka, brokers: ['l:1'], topics: t, route: b }
  other-group: { type: kafka, group_id: h, topics: t, route: b }
  other-cluster: { type: kafka, brokers: ['m:1'], topics: t, route: a }
  other-topic: { type: kafka, topics: v, route: b }
  same-route: { type: kafka, topics: t, route: a }
  two: { type: kafka, brokers: 'k:2', topics: [v, u], route: b }
  wrong: { type: kafka, brokers: k, topics: w, route: a, max_overdue: 1ms,
           options: { group.instance.id: i, max.poll.interval.ms: 29999 } }
"],
        &[],
    );
    let errors = setup.load().unwrap_err().to_string();
    for (path, text) in [
        ("sources.other-cluster.topics", "t of other brokers leads to this route too (sources.one), with the same ids"),
        ("sources.other-group.topics", "t of other brokers leads to this route too (sources.other-brokers)"),
        ("sources.same-route.topics", "t of other brokers leads to this route too (sources.other-cluster)"),
        ("sources.two.group_id", "`g` reads topic u for another route too: sources.one"),
        ("sources.wrong.brokers.0", "`k` is not a host"),
        ("sources.wrong.max_overdue", "`1ms` is not within"),
        ("sources.wrong.options.group.instance.id", "cannot be set"),
        ("sources.wrong.options.max.poll.interval.ms", "`29999` is below 30000"),
    ] {
        assert!(errors.contains(&format!("{path}: {text}")), "{path}: {text}\n{errors}");
    }
    assert_eq!(errors.lines().count(), 8, "{errors}");
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn what_two_sources_would_take_from_each_other_is_refused() {
    let setup = Setup::new(
        &["
sinks: { jobs: { type: redis_list, key: jobs } }
routes: { a: { sink: jobs }, b: { sink: jobs } }
sources:
  one: { type: sorted_set, key: s, route: a }
  other: { type: sorted_set, key: t, route: a }
  queue: { type: delayqueue, name: s, route: a }
  same-queue: { type: delayqueue, name: s, route: b }
  tagged: { type: delayqueue, name: s, hash_tag: true, route: b }
  two: { type: sorted_set, key: s, unit: milliseconds, route: b }
"],
        &[("PUNCTUAL__SERVER__AUTH__TOKENS", "[]")],
    );
    assert_eq!(
        setup.problems(),
        [
            "1.yaml:8:35: sources.same-queue.name: is that of sources.queue too",
            "1.yaml:10:28: sources.two.key: is that of sources.one too",
            "$PUNCTUAL__SERVER__AUTH__TOKENS: server.auth.tokens: is to be one text with commas between, without brackets",
        ]
    );
}

#[test]
fn defaults_of_the_environment_hold_unless_a_file_or_the_environment_says_otherwise() {
    let image = [
        ("PUNCTUAL_DEFAULT__SERVER__LISTEN", "127.0.0.1:1"),
        ("PUNCTUAL_DEFAULT__REDIS__DATA_DIR", "/data"),
        ("PUNCTUAL_DEFAULT__REDIS__URL", "redis://image"),
    ];
    let of = |files: &[&str], env: &[(&str, &str)]| {
        let config = Setup::new(files, &[&image, env].concat()).load().unwrap_or_else(|errors| panic!("{errors}"));
        (config.server.listen.to_string(), config.redis.data_dir, config.redis.url)
    };
    let redis_url = || RedisUrl::Url("redis://image".into());
    assert_eq!(of(&[], &[]), ("127.0.0.1:1".into(), "/data".into(), redis_url()));
    assert_eq!(of(&["server: { listen: }"], &[]), ("127.0.0.1:1".into(), "/data".into(), redis_url()));
    let file = "server: { listen: '127.0.0.1:2' }\nredis: { url: embedded }";
    assert_eq!(of(&[file], &[]), ("127.0.0.1:2".into(), "/data".into(), RedisUrl::Embedded));
    let environment = [("PUNCTUAL__SERVER__LISTEN", "127.0.0.1:3")];
    assert_eq!(of(&[file], &environment), ("127.0.0.1:3".into(), "/data".into(), RedisUrl::Embedded));
    let problems = Setup::new(&[], &[("PUNCTUAL_DEFAULT__SERVER__LISTENS", "x")]).problems();
    assert!(problems[0].starts_with("$PUNCTUAL_DEFAULT__SERVER__LISTENS: server.listens: "), "{problems:?}");
}

#[test]
fn on_a_cluster_a_sleep_is_longer_unless_it_is_set() {
    let yaml = "redis: { cluster: { urls: ['redis://a:1'] } }";
    let config = Setup::new(&[yaml], &[]).load().unwrap();
    assert_eq!(config.max_sleep, 90 * SECOND);
    let config = Setup::new(&[yaml, "max_sleep: 30s"], &[]).load().unwrap();
    assert_eq!(config.max_sleep, 30 * SECOND);
}

#[test]
fn sentinels_stand_in_place_of_the_url_of_the_defaults() {
    let yaml = "redis: { password: p, sentinel: { urls: ['redis://:q@a:1', 'redis://b:2'], master: m, username: u } }";
    let environment = [("PUNCTUAL_DEFAULT__REDIS__URL", "redis://image")];
    let config = Setup::new(&[yaml], &environment).load().unwrap_or_else(|errors| panic!("{errors}"));
    let RedisTopology::Sentinel(sentinel) = config.redis.topology() else { panic!("{:?}", config.redis) };
    let urls: Vec<&str> = sentinel.urls.iter().map(|url| url.0.expose()).collect();
    assert_eq!((urls, sentinel.master.as_deref()), (vec!["redis://:q@a:1", "redis://b:2"], Some("m")));
    assert_eq!((sentinel.username.as_deref(), config.redis.is_master_tls()), (Some("u"), false));

    let environment =
        [("PUNCTUAL__REDIS__SENTINEL__URLS", "rediss://a:1,rediss://b:2"), ("PUNCTUAL__REDIS__SENTINEL__MASTER", "m")];
    let config = Setup::new(&[], &environment).load().unwrap_or_else(|errors| panic!("{errors}"));
    assert!(matches!(config.redis.topology(), RedisTopology::Sentinel(_)), "without a file the default is `embedded`");
    assert!(config.redis.is_master_tls());
}

#[test]
fn dead_letters_are_forwarded_over_three_routes_and_in_no_circle() {
    let load = |routes: &str| {
        let yaml = format!("sinks: {{ s: {{ type: redis_list, key: k }} }}\nroutes:\n{routes}");
        Setup::new(&[&yaml], &[]).load()
    };
    let chain = "  a: { sink: s, dead: { forward: b } }\n  b: { sink: s, dead: { forward: c, then: purge } }\n  \
                 c: { sink: s, dead: { forward: d } }\n  d: { sink: s }\n";
    let config = load(chain).unwrap_or_else(|errors| panic!("{errors}"));
    let shown = |name: &str| config.routes[name].forward.as_ref().map(|to| (to.route.to_string(), to.purges));
    assert_eq!(shown("a"), Some(("b".to_owned(), false)));
    assert_eq!((shown("b"), shown("d")), (Some(("c".to_owned(), true)), None));
    let refused = |routes: &str| load(routes).expect_err("refused").to_string();
    let long = refused(&chain.replace("d: { sink: s }", "d: { sink: s, dead: { forward: e } }\n  e: { sink: s }"));
    assert!(long.contains("routes.a.dead.forward: forwards over more than 3 routes: a, b, c, d, e"), "{long}");
    let circle = refused(&chain.replace("forward: d", "forward: a"));
    assert!(circle.contains("routes.a.dead.forward: forwards in a circle: a, b, c, a"), "{circle}");
    let own = refused("  a: { sink: s, dead: { forward: a } }\n");
    assert!(own.contains("routes.a.dead.forward: is the route itself"), "{own}");
    let sink = refused("  a: { sink: s, dead: { forward: s } }\n");
    assert!(sink.contains("route `s` is unknown: known: a; it is a sink, name a route to it"), "{sink}");
    // A default for all routes is not one for the route that it names.
    let all = "  a: { sink: s }\n  b: { sink: s }\nroute_defaults: { dead: { forward: b } }\n";
    let config = load(all).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.routes["a"].forward.is_some() && config.routes["b"].forward.is_none());
}

#[test]
fn later_files_win_over_earlier_then_the_environment_then_the_command_line() {
    let mut setup = Setup::new(
        &[
            "max_sleep: 1s\nshutdown_timeout: 1s\nlog: { level: warn, format: json }\nredis: { url: 'redis://one' }\n\
             server: { auth: { tokens: [a, b] } }",
            "shutdown_timeout: 2s\nlog: { level: error }\nredis:\n  url:\nserver: { auth: { tokens: [c] } }",
        ],
        &[("PUNCTUAL__LOG__LEVEL", "debug"), ("PUNCTUAL__REDIS__TIMEOUT", "7s"), ("PUNCTUAL_PORT", "tcp://1.2.3.4")],
    );
    let config = setup.load().unwrap();
    assert_eq!((config.max_sleep, config.shutdown_timeout), (SECOND, 2 * SECOND));
    assert_eq!((config.log.level, config.log.format), (LogLevel::Debug, LogFormat::Json));
    assert_eq!(config.redis.url, RedisUrl::Url("redis://one".into()));
    assert_eq!(config.redis.timeout.0, 7 * SECOND);
    assert_eq!(config.server.auth.unwrap().tokens.len(), 1);

    setup.sources.env.insert("PUNCTUAL__REDIS__URL".into(), "redis://two".into());
    assert_eq!(setup.load().unwrap().redis.url, RedisUrl::Url("redis://two".into()));
    setup.sources.redis_url = Some(RedisUrlOption::Text("embedded".into()));
    assert_eq!(setup.load().unwrap().redis.url, RedisUrl::Embedded);
    let file = setup.directory.path().join("url");
    std::fs::write(&file, "redis://:hunter2@three\n").unwrap();
    setup.sources.redis_url = Some(RedisUrlOption::File(file.clone()));
    assert_eq!(setup.load().unwrap().redis.url, RedisUrl::Url("redis://:hunter2@three".into()));
    std::fs::write(&file, "redis://:hunter2@three/x\n").unwrap();
    let wrong =
        "--redis-url-file: redis.url: has no number for its database; a `/` in a password is to be written `%2F`";
    assert_eq!(setup.problems(), [wrong]);
    for nothing in ["", " \n"] {
        std::fs::write(&file, nothing).unwrap();
        let empty = format!("--redis-url-file: redis.url: the file `{}` is empty", file.display());
        let problems: Vec<_> = setup.load().expect_err("no URL").0.iter().map(ToString::to_string).collect();
        assert_eq!(problems, [empty]);
    }
    std::fs::remove_file(&file).unwrap();
    assert!(setup.problems()[0].starts_with("--redis-url-file: redis.url: the file `"), "{:?}", setup.problems());
}

#[test]
fn aliases_that_multiply_are_refused_before_they_do() {
    let level = |name: &str, inner: &str| format!("{name}: &{name} [{}]\n", vec![inner; 20].join(","));
    let yaml = [level("a", "x"), level("b", "*a"), level("c", "*b"), level("d", "*c")].concat();
    let problems = Setup::new(&[&yaml], &[]).problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("alias"), "{problems:?}");
    let used = "sinks: { s: { type: redis_list, key: k } }\nroutes: { a: &r { sink: s }, b: *r }";
    assert_eq!(Setup::new(&[used], &[]).load().expect("as they are meant").routes.len(), 2);
}

#[test]
fn text_from_variables_and_the_environment_is_never_typed_anew() {
    let yaml = "
redis: { password: '${PASSWORD}', allow_eviction: '${YES}' }
server: { max_payload: '${NUMBER}', auth: { tokens: '${TOKENS}' } }
route_defaults: { retry: { jitter: '${NUMBER:-1}', max_attempts: '${PASSWORD}' } }
sinks: { s: { type: http, url: 'http://${HOST}/', headers: { X: '$${HOST}' } } }
routes: { r: { sink: s, retry: { jitter: '0.5' } } }
";
    let env = [
        ("PASSWORD", "0123"),
        ("YES", "true"),
        ("NUMBER", "1000"),
        ("TOKENS", "one,two"),
        ("HOST", "a: [b"),
        ("PUNCTUAL__REDIS__USERNAME", "8080"),
        ("PUNCTUAL__ROUTES__R__PARTITIONS", "8"),
        ("PUNCTUAL__SINKS__S__HEADERS__AUTHORIZATION", "Basic ${NOT_A_VARIABLE}"),
    ];
    let yaml = yaml.replace("'http://${HOST}/'", "'http://h/${HOST}'");
    let config = Setup::new(&[&yaml], &env).load().unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.redis.password.as_ref().unwrap().expose(), "0123");
    assert_eq!(config.redis.username.as_deref(), Some("8080"));
    assert!(config.redis.allow_eviction.0);
    assert_eq!(config.server.max_payload, 1000);
    assert_eq!(config.server.auth.as_ref().unwrap().tokens.len(), 2);
    assert_eq!((config.routes["r"].partitions, config.routes["r"].retry.max_attempts), (8, 123));
    let sink: &HttpSettings = config.sink("s");
    assert_eq!(sink.url.expose(), "http://h/a: [b");
    assert_eq!(sink.header_map().unwrap()["X"], "${HOST}");
    assert_eq!(sink.header_map().unwrap()["authorization"], "Basic ${NOT_A_VARIABLE}");
}

#[test]
fn json_is_a_configuration_too() {
    let config =
        Setup::new(&[r#"{"max_sleep": "2s", "sinks": {"s": {"type": "redis_list", "key": "k"}}}"#], &[]).load();
    assert_eq!(config.unwrap().max_sleep, 2 * SECOND);
}

#[test]
fn the_schema_describes_the_defaults_and_refuses_what_is_wrong() {
    let schema = schema(&connector::registry());
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    // Editors show the forms of a value at its setting. Only sections and choices have definitions of their own.
    let definitions = schema["$defs"].as_object().unwrap().iter();
    let forms: Vec<_> = definitions.filter(|(_, one)| one.get("anyOf").is_some()).map(|(name, _)| name).collect();
    assert_eq!(forms, Vec::<&String>::new());
    let validator = jsonschema::validator_for(&schema).unwrap();
    let json = |yaml: &str| {
        let values: BTreeMap<String, serde_json::Value> = serde_saphyr::from_str(yaml).unwrap();
        serde_json::to_value(values).unwrap()
    };
    let example = "
server: { auth: { tokens: [plain, { token: t, rights: [read], routes: ['*'] }] }, max_payload: 1MiB }
sinks: { web: { type: http, url: 'https://example.org' }, jobs: { type: redis_list, key: jobs, format: payload },
  orders: { type: kafka, brokers: ['b:1'], topic: t, options: { linger.ms: 5, compression.type: zstd } },
  mq: { type: rabbitmq, url: 'amqp://mq', exchange: e } }
routes: { a: { sink: web, retry: { factor: 1.5 } } }
";
    for right in [include_str!("../../../config/defaults.yaml"), example, "server: { auth: none }"] {
        let errors: Vec<String> = validator.iter_errors(&json(right)).map(|error| error.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new());
    }
    for wrong in [
        "rdis: {}",
        "redis: { user: a }",
        "max_sleep: 5",
        "server: { auth: { tokens: [{ token: t, rights: [all] }] } }",
        "sinks: { a: { type: pigeon } }",
        "sinks: { a: { type: http, key: k } }",
        "sinks: { a: { url: 'http://b' } }",
        "routes: { a: { retry: { tries: 1 } } }",
    ] {
        assert!(!validator.is_valid(&json(wrong)), "{wrong}");
    }
}
