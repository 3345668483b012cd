//! `punctual check`: validates the configuration as `serve` does. With `--connect` it also checks that Redis, sinks and
//! sources answer.

use std::{
    collections::BTreeMap,
    fmt::Write,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use futures::{FutureExt, TryFutureExt, future::join_all};
use jiff::Zoned;
use serde_json::{Value, json};
use tokio::time::{Duration, timeout};

use super::{failure::Failure, global::Global, output, table};
use crate::{
    app::{backend::Backend, embedded, settings, sinks::RunningSink, sources::RunningSource},
    config::{Config, Problem, RedisTopology, SettingOrigin},
    queue::NewSchedule,
    sink::SinkSettings,
    source::SourceSettings,
    store::{
        StoreError,
        redis::connection::{ServerAddress, SlotMap},
    },
};

/// A recommendation for a usable part, or the error of an unusable one.
type Answer = Result<Option<String>, String>;

/// Maximum time for one reply: longer than the connect timeout of any sink.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Number of openings of a window, and of occurrences of a schedule, that are shown.
const SHOWN: usize = 3;

#[derive(Args)]
pub struct CheckArguments {
    /// Also check that Redis, every sink and every source can be used
    #[arg(long)]
    connect: bool,
}

pub async fn run(global: &Global, arguments: CheckArguments) -> Result<(), Failure> {
    let config = match global.read() {
        Ok(config) => config,
        Err(errors) => return refuse(global, &errors.0.iter().map(shown).collect::<Vec<_>>(), errors.to_string()),
    };
    let running_sinks = match settings::check(&config) {
        Ok(running_sinks) => running_sinks,
        Err(text) => {
            let problems: Vec<_> = text.lines().map(|line| json!({ "text": line })).collect();
            return refuse(global, &problems, text);
        }
    };
    if !global.json {
        config.warnings.iter().for_each(|warning| output::note(format_args!("warning: {warning}")));
    }
    let warnings: Vec<Value> = config.warnings.iter().map(shown).collect();
    if !arguments.connect {
        close_all(&running_sinks).await;
        let (routes, sinks, sources) = (config.routes.len(), config.sinks.len(), config.sources.len());
        let (now, digest) = (now(), config.digest().to_string());
        let (windows, schedules) = (windows(&config, now), schedules(&config, now));
        let mut json = json!({
            "valid": true, "digest": digest, "routes": routes, "sinks": sinks, "sources": sources, "warnings": warnings
        });
        if !windows.is_empty() {
            json["windows"] = windows
                .iter()
                .map(|(route, spans)| ((*route).clone(), spans.iter().map(span).collect::<Vec<_>>()))
                .collect();
        }
        if !schedules.is_empty() {
            json["schedules"] = schedules
                .iter()
                .map(|(schedule, next)| (schedule.name().to_owned(), next.iter().map(rfc3339).collect::<Vec<_>>()))
                .collect();
        }
        let parts = [(routes, "route"), (sinks, "sink"), (sources, "source")];
        let parts = parts.into_iter().chain((!schedules.is_empty()).then_some((schedules.len(), "schedule")));
        let parts = parts.map(|(number, one)| output::counted(number as u64, one)).collect::<Vec<_>>().join(", ");
        let mut text = format!("the configuration is valid: {parts}");
        for (route, spans) in windows {
            let shown = |at: &Zoned| at.strftime("%a %Y-%m-%d %H:%M %:z").to_string();
            let spans: Vec<_> =
                spans.iter().map(|[opens, closes]| format!("from {} to {}", shown(opens), shown(closes))).collect();
            let times = if spans.is_empty() { "always".to_owned() } else { spans.join(", ") };
            let _ = write!(text, "\nroute {route} delivers {times}");
        }
        for (schedule, next) in schedules {
            let next: Vec<_> = next.iter().map(|at| at.strftime("%a %Y-%m-%d %H:%M:%S %:z").to_string()).collect();
            let times = if next.is_empty() { "never again".to_owned() } else { next.join(", ") };
            let _ = write!(text, "\nschedule {} of {} fires {times}", schedule.name(), schedule.route);
        }
        let _ = write!(text, "\ndigest {digest}");
        return output::result(global, json, text);
    }
    let answers = ask_all(&config, &running_sinks).await;
    close_all(&running_sinks).await;
    let varying = |name: &str| {
        let setting = config.sinks.get(name.strip_prefix("sinks.")?)?.varying()?;
        Some(format!("`{setting}` depends on the message"))
    };
    let (mut short, mut advice, mut rows) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for (name, answer) in &answers {
        short.insert(name, answer.as_ref().map_or_else(|error| &**error, |_| "ok"));
        advice.extend(answer.iter().flatten().map(|advice| (name, advice)));
        let good = |advice: &Option<String>| {
            let parts = [Some("ok".to_owned()), varying(name), advice.clone()];
            parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
        };
        rows.push(vec![name.clone(), answer.as_ref().map_or_else(Clone::clone, good)]);
    }
    let json = json!({ "valid": true, "answers": short, "advice": advice, "warnings": warnings });
    output::result(global, json, table::text(&["WHAT", "ANSWER"], &rows))?;
    match answers.values().filter(|answer| answer.is_err()).count() {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} of {} cannot be used", answers.len()))),
    }
}

fn rfc3339(at: &Zoned) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// An opening and its closing.
fn span([opens, closes]: &[Zoned; 2]) -> Value {
    json!([rfc3339(opens), rfc3339(closes)])
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "for display: without --connect no Redis is asked for its clock")]
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    u64::try_from(now).unwrap_or(u64::MAX)
}

/// The next `SHOWN` openings and closings of each route with windows, in its first time zone.
fn windows(config: &Config, now: u64) -> Vec<(&String, Vec<[Zoned; 2]>)> {
    let with_windows = config.routes.iter().filter_map(|(name, route)| Some((name, route.window.as_ref()?)));
    with_windows.map(|(name, calendar)| (name, calendar.next_openings(now, SHOWN))).collect()
}

/// The next `SHOWN` occurrences of each schedule, in its time zone.
fn schedules(config: &Config, now: u64) -> Vec<(&NewSchedule, Vec<Zoned>)> {
    config.schedules.iter().map(|schedule| (schedule, schedule.rule.next_local(now, SHOWN))).collect()
}

/// Reports an invalid configuration; with `--json`, also as JSON on standard output.
fn refuse(global: &Global, problems: &[Value], text: String) -> Result<(), Failure> {
    if global.json {
        output::line(json!({ "valid": false, "problems": problems }))?;
    }
    Err(Failure::Configuration(text))
}

fn shown(Problem { origin, path, text }: &Problem) -> Value {
    let mut shown = json!({ "path": path.to_string(), "text": text });
    match origin {
        Some(SettingOrigin::File { file, line, column }) => {
            shown["file"] = file.display().to_string().into();
            shown["line"] = (*line).into();
            shown["column"] = (*column).into();
        }
        Some(SettingOrigin::Variable(name)) => shown["variable"] = name.as_str().into(),
        Some(SettingOrigin::CommandLine(option)) => shown["option"] = (*option).into(),
        None => {}
    }
    shown
}

async fn ask_all(config: &Config, running_sinks: &BTreeMap<String, RunningSink>) -> BTreeMap<String, Answer> {
    let redis = within(ask_redis(config)).shared();
    let sinks = running_sinks.iter().map(async |(name, sink)| {
        let settings = &*config.sinks[name];
        let answer = if !sink.is_on_redis() {
            within(ask_sink(sink, settings)).await
        } else if let Err(error) = redis.clone().await {
            Err(error)
        } else {
            within(ask_list(config, sink)).await
        };
        (format!("sinks.{name}"), answer.map(|()| settings.remark()))
    });
    let (namers, redis, sinks, sources) =
        tokio::join!(ask_namers(config), redis.clone(), join_all(sinks), ask_sources(config));
    let routes = if redis.is_ok() { ask_routes(config).await } else { Vec::new() };
    sinks.into_iter().chain(sources).chain(namers).chain(routes).chain([("redis".to_owned(), redis)]).collect()
}

/// Compares the numbers of partitions with the registered ones. Returns the routes that a start would move or refuse.
async fn ask_routes(config: &Config) -> Vec<(String, Answer)> {
    // With an error, Redis as a whole was reported. An embedded one that runs later is not known yet.
    let Ok(backend) = open(config).await else { return Vec::new() };
    let store = backend.store(&config.redis.key_prefix, []);
    let mut answers = Vec::new();
    for (name, route) in &config.routes {
        let to = route.partitions;
        let answer = match within(store.would_move(name, to).map_err(|error| error.to_string())).await {
            Ok(None) => continue,
            Ok(Some(from)) => Ok(Some(format!("the start moves its messages from {from} to {to} partitions"))),
            Err(error) => Err(error),
        };
        answers.push((format!("routes.{name}"), answer));
    }
    answers
}

async fn ask_sink(sink: &RunningSink, settings: &dyn SinkSettings) -> Result<(), String> {
    sink.check(None).await?;
    // Only here, not in the checks that the API shows, because the server logs a refusal.
    settings.check_rights(ANSWER_TIMEOUT).await
}

/// Checks a list on the queue's Redis, unless an embedded one runs only with `serve`.
async fn ask_list(config: &Config, sink: &RunningSink) -> Result<(), String> {
    if embedded_runs_later(config).await {
        return Ok(());
    }
    let (own, _) = open(config).await.map_err(|error| error.to_string())?.connection()?;
    sink.check(Some(&own)).await
}

async fn ask_sources(config: &Config) -> Vec<(String, Answer)> {
    let backend = open(config).await.map_err(|error| error.to_string());
    let runs_later = embedded_runs_later(config).await;
    let ask = async |name: &str, source: &dyn SourceSettings| {
        if runs_later && source.is_on_redis() {
            return Ok(None);
        }
        let source = RunningSource::new(name, source, || backend.as_ref().map_err(Clone::clone), config.max_sleep)?;
        within(source.check()).await?;
        Ok(timeout(ANSWER_TIMEOUT, source.advice()).await.unwrap_or_default())
    };
    let ask = &ask;
    join_all(config.sources.iter().map(async |(name, source)| (format!("sources.{name}"), ask(name, &**source).await)))
        .await
}

async fn close_all(running_sinks: &BTreeMap<String, RunningSink>) {
    join_all(running_sinks.values().map(RunningSink::close)).await;
}

/// Whether the embedded Redis will run only with `serve`.
async fn embedded_runs_later(config: &Config) -> bool {
    matches!(config.redis.topology(), RedisTopology::Embedded)
        && embedded::running_url(&config.redis.data_dir).await.is_err()
}

/// Checks each sentinel, or each configured server of a cluster, so that a wrong address is reported before it is
/// needed.
async fn ask_namers(config: &Config) -> Vec<(String, Answer)> {
    // An error that concerns all servers is reported for Redis as a whole.
    let Ok(backend) = open(config).await else { return Vec::new() };
    if let Some(cluster) = backend.cluster() {
        let named = |answer: Result<SlotMap, StoreError>| match answer.map(|map| map.primaries().len()) {
            Ok(1) => Ok(Some("names 1 primary".to_owned())),
            Ok(primaries) => Ok(Some(format!("names {primaries} primaries"))),
            Err(error) => Err(error.to_string()),
        };
        let answers = cluster.answers().await.into_iter().enumerate();
        return answers.map(|(place, answer)| (format!("redis.cluster.urls.{place}"), named(answer))).collect();
    }
    let Some(sentinels) = backend.sentinels() else { return Vec::new() };
    let answers = sentinels.answers().await.into_iter().enumerate();
    let named = |answer: Result<ServerAddress, StoreError>| match answer {
        Ok(master) => Ok(Some(format!("names {master}"))),
        Err(error) => Err(error.to_string()),
    };
    answers.map(|(place, answer)| (format!("redis.sentinel.urls.{place}"), named(answer))).collect()
}

async fn ask_redis(config: &Config) -> Answer {
    if embedded_runs_later(config).await {
        return embedded::check_installed().map(|()| None).map_err(|error| error.to_string());
    }
    let backend = open(config).await.map_err(|error| error.to_string())?;
    let store = backend.store(&config.redis.key_prefix, []);
    // The address is added here, not in every error of Redis: /readyz shows those to callers without a token.
    let with_address = |error: String| match (config.redis.topology(), backend.master()) {
        (RedisTopology::Url(url), _) => format!("{url}: {error}"),
        (RedisTopology::Sentinel(_), Some(master)) => format!("{master}: {error}"),
        _ => error,
    };
    let safe = store.check_safety(config.redis.allow_eviction.0).await;
    safe.map_err(|error| with_address(error.to_string()))?;
    store.check_rights().await.map_err(|error| with_address(error.to_string()))?;
    store.check_writable().await.map_err(|error| with_address(error.to_string()))?;
    store.check_durable().await.map_err(|error| with_address(error.to_string()))?;
    let guarantee = store.guarantee().await.map_err(|error| with_address(error.to_string()))?;
    Ok(match backend.master() {
        Some(master) => {
            Some(format!("the primary is {master}; {}", guarantee.unwrap_or_else(|| "it has no replica".into())))
        }
        None => guarantee,
    })
}

async fn within<T>(answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(format!("no answer in {ANSWER_TIMEOUT:?}")))
}

/// The Redis of the configuration.
pub async fn open(config: &Config) -> Result<Backend, Failure> {
    let embedded = match config.redis.topology() {
        RedisTopology::Embedded => Some(
            embedded::running_url(&config.redis.data_dir).await.map_err(|error| Failure::Failed(error.to_string()))?,
        ),
        RedisTopology::Url(_) | RedisTopology::Sentinel(_) | RedisTopology::Cluster(_) => None,
    };
    Backend::new(&config.redis, embedded).map_err(Failure::Configuration)
}
