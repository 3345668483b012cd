//! From the raw structs to `Config`: ranges, and what must fit together.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use figment::value::{Dict, Value};

use super::{
    Config, Listen, LogConfig, RedisConfig, RedisUrl, ServerConfig, ServerTls,
    entries::{checked_names, is_name},
    problem::{Path, Problems},
    raw::{RawConfig, RawLevel, RawLog, RawRedis},
    raw_server::{RawServer, RawServerTls},
    read::unknown,
    registry::{Registry, Section},
    routes,
    shared::{Context, check_redis_url, check_tls},
    tokens,
    value::{Period, Size, Whole},
};
use crate::source::SourceSettings;

/// The names that the configuration gives, also to entries with mistakes.
#[derive(Debug, Default)]
pub struct Names {
    pub sinks: BTreeSet<String>,
    pub routes: BTreeSet<String>,
}

/// Largest `server.max_payload`, in bytes: a schedule script carries at most 4 MiB, metadata and the encoding of
/// the arguments included.
const MAX_PAYLOAD: u64 = 3 << 20;

/// Largest `server.max_connections_per_address`: there are no more.
const MAX_PER_ADDRESS: u64 = 4096;

pub const fn millis(millis: u64) -> Period {
    Period(Duration::from_millis(millis))
}

pub fn config(raw: RawConfig, registry: &Registry, built_in: &Dict, problems: &mut Problems) -> Option<Config> {
    let key_prefix = raw.redis.key_prefix.clone().unwrap_or_default();
    let redis = redis(raw.redis, problems);
    let max_payload = raw.server.max_payload.map(|size| size.0);
    let log = log(&raw.log, problems);
    let range = millis(100)..=millis(600_000);
    let shutdown_timeout = problems.within(&Path::of("shutdown_timeout"), raw.shutdown_timeout, range);
    let max_sleep = problems.within(&Path::of("max_sleep"), raw.max_sleep, millis(100)..=millis(300_000));
    let names = Names {
        sinks: checked_names(&raw.sinks, "sinks", problems),
        routes: checked_names(&raw.routes, "routes", problems),
    };
    checked_names(&raw.sources, "sources", problems);
    let server = server(raw.server, &names, problems);
    let context = Context { key_prefix: &key_prefix, routes: &names.routes };
    let section = |name: &'static str, entries, defaults_name: &'static str, defaults| Section {
        name,
        entries,
        defaults_name,
        defaults,
        built_in: built_in.get(defaults_name).and_then(Value::as_dict).expect("a section of the defaults"),
    };
    let sinks = section("sinks", raw.sinks, "sink_defaults", raw.sink_defaults);
    let sinks = registry.sinks.read(sinks, &context, problems);
    let sources = section("sources", raw.sources, "source_defaults", raw.source_defaults);
    let sources = registry.sources.read(sources, &context, problems);
    check_sources(&sources, &names.routes, problems);
    let timeouts = sinks.iter().map(|(name, sink)| (name.clone(), sink.timeout()));
    let timeout_at = |name: &String| Path::of("sinks").key(name).key("timeout");
    let timeouts = timeouts.filter(|(name, _)| !problems.is_refused(&timeout_at(name))).collect();
    let reading_again = sources.values().filter(|source| source.reads_again());
    let reading_again = reading_again.map(|source| source.route().to_string()).collect();
    let limits = routes::Limits { sinks: &names.sinks, timeouts: &timeouts, max_payload, from_kafka: &reading_again };
    let routes = section("routes", raw.routes, "route_defaults", raw.route_defaults);
    let routes = routes::all(routes, &limits, problems);
    Some(Config {
        redis: redis?,
        server: server?,
        log: log?,
        shutdown_timeout: shutdown_timeout?.0,
        max_sleep: max_sleep?.0,
        sinks,
        routes,
        sources,
    })
}

/// What sources have to fit in with: routes, and each other.
fn check_sources(
    sources: &BTreeMap<String, Arc<dyn SourceSettings>>,
    routes: &BTreeSet<String>,
    problems: &mut Problems,
) {
    for (place, (name, source)) in sources.iter().enumerate() {
        let at = Path::of("sources").key(name);
        if !routes.contains(&**source.route()) {
            problems.add(&at.key("route"), format!("route {}", unknown(source.route(), routes)));
        }
        for (other_name, other) in sources.iter().take(place) {
            if let Some((key, text)) = source.conflict(&**other, other_name) {
                problems.add(&at.key(key), text);
            }
        }
    }
}

fn redis(raw: RawRedis, problems: &mut Problems) -> Option<RedisConfig> {
    let at = Path::of("redis");
    let url = problems.require(&at.key("url"), raw.url).and_then(|url| match url.expose() {
        "embedded" => Some(RedisUrl::Embedded),
        url => problems.check(&at.key("url"), check_redis_url(url)).map(|()| RedisUrl::Url(url.into())),
    });
    if let Some(url) = &url {
        let encrypted = matches!(url, RedisUrl::Url(url) if url.expose().starts_with("rediss:"));
        check_tls(&at, &raw.tls, encrypted, problems);
    }
    let key_prefix = problems.require(&at.key("key_prefix"), raw.key_prefix);
    if let Some(prefix) = key_prefix.as_ref().filter(|prefix| !is_name(prefix)) {
        let text = format!("`{}` is not 1 to 64 of A-Za-z0-9._-", prefix.escape_debug());
        problems.add(&at.key("key_prefix"), text);
    }
    let data_dir = problems.require(&at.key("data_dir"), raw.data_dir);
    let timeout = problems.within(&at.key("timeout"), raw.timeout, millis(100)..=millis(60_000));
    let allow_eviction = problems.require(&at.key("allow_eviction"), raw.allow_eviction);
    Some(RedisConfig {
        url: url?,
        username: raw.username.filter(|name| !name.is_empty()),
        password: raw.password.filter(|password| !password.expose().is_empty()),
        tls: raw.tls,
        key_prefix: key_prefix?,
        data_dir: data_dir?,
        timeout: timeout?.0,
        allow_eviction: allow_eviction?.0,
    })
}

fn server(raw: RawServer, names: &Names, problems: &mut Problems) -> Option<ServerConfig> {
    let at = Path::of("server");
    let listen = problems
        .require(&at.key("listen"), raw.listen)
        .and_then(|text| problems.check(&at.key("listen"), text.parse::<Listen>()));
    let open = listen.as_ref().filter(|listen| !listen.is_local());
    let auth = tokens::auth(raw.auth, open.is_some(), names, problems);
    if let Some(listen) = open.filter(|_| auth.is_none()) {
        let text = format!("`{listen}` is open to others: set `server.auth.tokens`, or listen on 127.0.0.1");
        problems.add(&at.key("listen"), text);
    }
    let tls = server_tls(raw.tls, listen.as_ref(), problems);
    let health_listen = raw.health_listen.filter(|text| !text.is_empty()).and_then(|text| {
        let wrong = format!("`{text}` is not an address and port such as 127.0.0.1:8081");
        problems.check(&at.key("health_listen"), text.parse::<SocketAddr>().map_err(|_| wrong))
    });
    if health_listen.is_some_and(|health| listen == Some(Listen::Tcp(health))) {
        problems.add(&at.key("health_listen"), "is that of `listen`, which answers probes anyway");
    }
    let per_address = raw.max_connections_per_address.and_then(|number| {
        problems.within(&at.key("max_connections_per_address"), Some(number), Whole(1)..=Whole(MAX_PER_ADDRESS))
    });
    let max_payload = problems.within(&at.key("max_payload"), raw.max_payload, Size(1)..=Size(MAX_PAYLOAD));
    let range = millis(100)..=millis(60_000);
    let request_timeout = problems.within(&at.key("request_timeout"), raw.request_timeout, range);
    Some(ServerConfig {
        listen: listen?,
        tls,
        health_listen,
        max_connections_per_address: per_address.map(|number| usize::try_from(number.0).expect("at most 4096")),
        auth,
        max_payload: usize::try_from(max_payload?.0).expect("at most 3 MiB"),
        request_timeout: request_timeout?.0,
    })
}

fn server_tls(raw: RawServerTls, listen: Option<&Listen>, problems: &mut Problems) -> Option<ServerTls> {
    let at = Path::of("server.tls");
    let files = [(raw.cert_file, "cert_file"), (raw.key_file, "key_file")];
    for (file, key) in &files {
        if let Some(file) = file
            && let Err(error) = File::open(file)
        {
            problems.add(&at.key(*key), format!("`{}` cannot be read: {error}", file.display()));
        }
    }
    match files.map(|(file, _)| file) {
        [Some(_), Some(_)] if matches!(listen, Some(Listen::Unix(_))) => {
            problems.add(&at, "is for an address; a Unix socket has none");
            None
        }
        [Some(cert_file), Some(key_file)] => Some(ServerTls { cert_file, key_file }),
        [Some(_), None] => {
            problems.add(&at.key("cert_file"), "needs `key_file` too");
            None
        }
        [None, Some(_)] => {
            problems.add(&at.key("key_file"), "needs `cert_file` too");
            None
        }
        [None, None] => None,
    }
}

fn log(raw: &RawLog, problems: &mut Problems) -> Option<LogConfig> {
    let format = problems.require(&Path::of("log.format"), raw.format);
    let level = problems.require(&Path::of("log.level"), raw.level).map(|level| match level {
        RawLevel::Error => tracing::Level::ERROR,
        RawLevel::Warn => tracing::Level::WARN,
        RawLevel::Info => tracing::Level::INFO,
        RawLevel::Debug => tracing::Level::DEBUG,
        RawLevel::Trace => tracing::Level::TRACE,
    });
    Some(LogConfig { format: format?, level: level? })
}
