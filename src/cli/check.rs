//! `punctual check`: is the configuration valid, as `serve` would find it, and, with `--connect`, does everything that it
//! names answer?

use std::collections::BTreeMap;

use clap::Args;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Duration, timeout};

use super::{Global, failure::Failure, open, output, table};
use crate::{
    app::{embedded, settings, sinks::RunningSink, sources::RunningSource},
    config::{Config, Problem, RedisUrl, SettingOrigin},
    sink::SinkSettings,
    store::redis::RedisStore,
};

/// What was asked and its answer.
type Answer = (String, Result<(), String>);
/// Of sources that answered, by name.
type Advice = BTreeMap<String, String>;

/// Longest wait for one answer: longer than any sink's own bound on connecting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Args)]
pub struct CheckArguments {
    /// Also ask Redis, every sink and every source whether they can be used
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
        config.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    }
    let warnings: Vec<Value> = config.warnings.iter().map(shown).collect();
    if !arguments.connect {
        close_all(&running_sinks).await;
        let (routes, sinks, sources) = (config.routes.len(), config.sinks.len(), config.sources.len());
        let text = if global.json {
            let counts =
                json!({ "valid": true, "routes": routes, "sinks": sinks, "sources": sources, "warnings": warnings });
            counts.to_string()
        } else {
            format!("the configuration is valid: {routes} routes, {sinks} sinks, {sources} sources")
        };
        return output::line(text);
    }
    let (answers, advice) = ask_all(&config, &running_sinks).await;
    close_all(&running_sinks).await;
    let failed = answers.values().filter(|answer| answer.is_err()).count();
    if global.json {
        let answers: BTreeMap<_, _> =
            answers.iter().map(|(name, answer)| (name, answer.as_ref().err().map_or("ok", String::as_str))).collect();
        output::line(json!({ "valid": true, "answers": answers, "advice": advice, "warnings": warnings }))?;
    } else {
        let good = |name: &str| {
            let sink = name.strip_prefix("sinks.").and_then(|name| config.sinks.get(name));
            let varying = sink.and_then(|sink| sink.varying());
            let varying = varying.map(|setting| format!("`{setting}` depends on the message"));
            varying.as_ref().or(advice.get(name)).map_or_else(|| "ok".to_owned(), |more| format!("ok, {more}"))
        };
        let rows: Vec<_> = answers
            .iter()
            .map(|(name, answer)| vec![name.clone(), answer.clone().err().unwrap_or_else(|| good(name))])
            .collect();
        table::print(&["WHAT", "ANSWER"], &rows)?;
    }
    if failed == 0 { Ok(()) } else { Err(Failure::Failed(format!("{failed} of {} cannot be used", answers.len()))) }
}

/// Of an invalid configuration; with `--json`, also as JSON on standard output.
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

async fn ask_all(
    config: &Config,
    running_sinks: &BTreeMap<String, RunningSink>,
) -> (BTreeMap<String, Result<(), String>>, Advice) {
    let redis = async { ("redis".to_owned(), within(ask_redis(config)).await) };
    let sinks = running_sinks.iter().map(async |(name, sink)| {
        let answer = within(ask_sink(sink, &*config.sinks[name])).await;
        (format!("sinks.{name}"), answer)
    });
    let (redis, mut sinks, (sources, advice)) = tokio::join!(redis, join_all(sinks), ask_sources(config));
    // What delivers into the queue's own Redis has nothing else to ask.
    for ((_, answer), sink) in sinks.iter_mut().zip(running_sinks.values()) {
        if sink.is_on_redis() {
            answer.clone_from(&redis.1);
        }
    }
    (sinks.into_iter().chain(sources).chain([redis]).collect(), advice)
}

async fn ask_sink(sink: &RunningSink, settings: &dyn SinkSettings) -> Result<(), String> {
    sink.check().await?;
    // Not asked whenever the API shows the sinks.
    settings.check_rights(ANSWER_TIMEOUT).await
}

async fn ask_sources(config: &Config) -> (Vec<Answer>, Advice) {
    let backend = open::backend(config).await.map_err(|error| error.to_string());
    let runs_later = embedded_runs_later(config).await;
    let asked = config.sources.iter().map(async |(name, source)| {
        let full_name = format!("sources.{name}");
        if runs_later && source.is_on_redis() {
            return ((full_name, Ok(())), None);
        }
        let source = RunningSource::new(name, &**source, || backend.as_ref().map_err(Clone::clone), config.max_sleep);
        let (answer, advice) = match source {
            Ok(source) => match within(source.check()).await {
                Ok(()) => (Ok(()), timeout(ANSWER_TIMEOUT, source.advice()).await.unwrap_or_default()),
                Err(error) => (Err(error), None),
            },
            Err(error) => (Err(error), None),
        };
        let advice = advice.map(|advice| (full_name.clone(), advice));
        ((full_name, answer), advice)
    });
    let (answers, advice): (Vec<_>, Vec<_>) = join_all(asked).await.into_iter().unzip();
    (answers, advice.into_iter().flatten().collect())
}

async fn close_all(running_sinks: &BTreeMap<String, RunningSink>) {
    join_all(running_sinks.values().map(RunningSink::close)).await;
}

/// The embedded Redis runs only while `serve` does.
async fn embedded_runs_later(config: &Config) -> bool {
    config.redis.url == RedisUrl::Embedded && embedded::running_url(&config.redis.data_dir).await.is_err()
}

async fn ask_redis(config: &Config) -> Result<(), String> {
    if embedded_runs_later(config).await {
        return embedded::check_installed().map_err(|error| error.to_string());
    }
    let backend = open::backend(config).await.map_err(|error| error.to_string())?;
    let store = RedisStore::new(backend.connection(), &config.redis.key_prefix, []);
    // Here, and not in every error of Redis: /readyz shows those to callers without a token.
    let with_address = |error: String| match &config.redis.url {
        RedisUrl::Url(url) => format!("{url}: {error}"),
        RedisUrl::Embedded => error,
    };
    let safe = store.check_safety(config.redis.allow_eviction.0).await;
    safe.map_err(|error| with_address(error.to_string()))?;
    store.check_writable().await.map_err(|error| with_address(error.to_string()))
}

async fn within(answer: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(format!("no answer in {ANSWER_TIMEOUT:?}")))
}
