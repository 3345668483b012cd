//! From the raw structs to `Config`: ranges, and what must fit together.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use url::Url;

use super::{
    Config, Listen, LogConfig, RedisConfig, RedisUrl, ServerConfig, ServerTls,
    entries::{Names, is_name},
    problem::{Path, Problems},
    raw::{RawConfig, RawLevel, RawLog, RawRedis},
    raw_server::{RawServer, RawServerTls},
    raw_source::RawSource,
    routes, sinks, sources, tokens,
    value::{Period, Size, Whole},
};
use crate::secret::{Secret, SecretUrl};

/// Largest `server.max_payload`, in bytes: a schedule script carries at most 4 MiB, metadata and the encoding of
/// the arguments included.
const MAX_PAYLOAD: u64 = 3 << 20;

/// Smallest `redis.max_memory`: a Redis that is empty, and one call of the largest.
const SMALLEST_MEMORY: Size = Size(16 << 20);

/// Largest `server.max_connections_per_address`: there are no more.
const MAX_PER_ADDRESS: u64 = 4096;

pub const fn millis(millis: u64) -> Period {
    Period(Duration::from_millis(millis))
}

pub fn config(raw: RawConfig, names: &Names, problems: &mut Problems) -> Option<Config> {
    let key_prefix = raw.redis.key_prefix.clone().unwrap_or_default();
    let redis = redis(raw.redis, problems);
    let max_payload = raw.server.max_payload.map(|size| size.0);
    let server = server(raw.server, names, problems);
    let log = log(&raw.log, problems);
    let range = millis(100)..=millis(600_000);
    let shutdown_timeout = problems.within(&Path::of("shutdown_timeout"), raw.shutdown_timeout, range);
    let max_sleep = problems.within(&Path::of("max_sleep"), raw.max_sleep, millis(100)..=millis(300_000));
    let mut timeouts = BTreeMap::new();
    let mut sinks = BTreeMap::new();
    for (name, sink) in raw.sinks {
        let at = Path::of("sinks").key(&name);
        timeouts.extend(sinks::timeout(&sink).map(|timeout| (name.clone(), timeout)));
        sinks.extend(sinks::sink(sink, &at, &key_prefix, problems).map(|sink| (name, sink)));
    }
    let from_kafka = raw.sources.values().filter_map(|source| match source {
        RawSource::Kafka(source) => source.route.clone(),
        _ => None,
    });
    let from_kafka: BTreeSet<String> = from_kafka.collect();
    let limits = routes::Limits { sinks: &names.sinks, timeouts: &timeouts, max_payload, from_kafka: &from_kafka };
    let mut routes = BTreeMap::new();
    for (name, route) in raw.routes {
        routes.extend(routes::route(&name, route, &limits, problems).map(|route| (name, route)));
    }
    let limits = sources::Limits { routes: &names.routes, key_prefix: &key_prefix };
    let mut sources = BTreeMap::new();
    for (name, source) in raw.sources {
        let at = Path::of("sources").key(&name);
        sources.extend(sources::source(source, &at, &limits, problems).map(|source| (name, source)));
    }
    sources::check_groups(&sources, problems);
    sources::check_keys(&sources, problems);
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

fn redis(raw: RawRedis, problems: &mut Problems) -> Option<RedisConfig> {
    let at = Path::of("redis");
    let tls = [raw.ca_file, raw.cert_file, raw.key_file];
    let url = problems.require(&at.key("url"), raw.url).and_then(|url| match url.expose() {
        "embedded" => {
            check_tls(&at, &tls, false, problems);
            Some(RedisUrl::Embedded)
        }
        _ => redis_server(&at, &url, &tls, problems).map(RedisUrl::Url),
    });
    let key_prefix = problems.require(&at.key("key_prefix"), raw.key_prefix);
    if let Some(prefix) = key_prefix.as_ref().filter(|prefix| !is_name(prefix)) {
        let text = format!("`{}` is not 1 to 64 of A-Za-z0-9._-", prefix.escape_debug());
        problems.add(&at.key("key_prefix"), text);
    }
    let data_dir = problems.require(&at.key("data_dir"), raw.data_dir);
    let max_memory = problems.within(&at.key("max_memory"), raw.max_memory, SMALLEST_MEMORY..=Size(u64::MAX >> 1));
    let timeout = problems.within(&at.key("timeout"), raw.timeout, millis(100)..=millis(60_000));
    let allow_eviction = problems.require(&at.key("allow_eviction"), raw.allow_eviction);
    let [ca_file, cert_file, key_file] = tls;
    Some(RedisConfig {
        url: url?,
        username: raw.username.filter(|name| !name.is_empty()),
        password: raw.password.filter(|password| !password.expose().is_empty()),
        ca_file,
        cert_file,
        key_file,
        key_prefix: key_prefix?,
        data_dir: data_dir?,
        max_memory: max_memory?.0,
        timeout: timeout?.0,
        allow_eviction: allow_eviction?.0,
    })
}

/// Checks the `url` at `at` of a Redis that runs already, with its TLS files.
pub fn redis_server(at: &Path, url: &Secret, tls: &[Option<PathBuf>; 3], problems: &mut Problems) -> Option<SecretUrl> {
    let url = problems.check(&at.key("url"), redis_url(url.expose()).map(|()| url.expose()))?;
    check_tls(at, tls, url.starts_with("rediss:"), problems);
    Some(url.into())
}

fn redis_url(text: &str) -> Result<(), String> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL such as redis://127.0.0.1:6379/0: {error}"))?;
    match url.scheme() {
        "redis" | "rediss" => {
            let database = url.path().trim_start_matches('/');
            if !url.has_host() {
                Err("names no host".into())
            } else if !database.is_empty() && database.parse::<u16>().is_err() {
                // Not shown: of a password with a slash it is the rest.
                Err("has no number for its database; a `/` in a password is to be written `%2F`".into())
            } else if url.fragment().is_some() {
                Err("must not have a `#` part; a server with an own certificate needs `ca_file`".into())
            } else {
                Ok(())
            }
        }
        "unix" | "redis+unix" if url.to_file_path().is_ok_and(|path| path.parent().is_some()) => Ok(()),
        "unix" | "redis+unix" => Err("names no socket: unix:///run/redis.sock".into()),
        other => Err(format!("has the scheme `{other}`; known: redis, rediss, unix")),
    }
}

/// `files`: `ca_file`, `cert_file`, `key_file` at `at`; `used`: whether the URL asks for TLS.
pub fn check_tls(at: &Path, files: &[Option<PathBuf>; 3], used: bool, problems: &mut Problems) {
    let keys = ["ca_file", "cert_file", "key_file"].map(|key| at.key(key));
    for (file, key) in files.iter().zip(&keys) {
        let Some(file) = file else { continue };
        if !used {
            problems.add(key, "needs a URL with TLS: rediss://, https:// or amqps://");
        } else if let Err(error) = File::open(file) {
            problems.add(key, format!("`{}` cannot be read: {error}", file.display()));
        }
    }
    match files {
        [_, Some(_), None] => problems.add(&keys[1], "needs `key_file` too"),
        [_, None, Some(_)] => problems.add(&keys[2], "needs `cert_file` too"),
        _ => {}
    }
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
