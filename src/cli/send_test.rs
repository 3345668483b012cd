//! `punctual send-test SINK`: sends one message to a sink, without a queue, and shows the answer.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use serde_json::json;
use tokio::time::{Duration, Instant, timeout};

use super::{
    check::open,
    failure::Failure,
    global::Global,
    message::fields,
    output,
    schedule::{content_type, given_payload, headers},
};
use crate::{
    api::ulids,
    config::Config,
    message::{Headers, Metadata},
    sink::{Delivery, OpenSink, Outcome, Render, Report, Reported, Sink},
    time::UnixMillis,
};

/// The header of a test message, by which receivers can tell it.
const TEST: &str = "Punctual-Test";
/// The payload unless one is given.
const PAYLOAD: &str = "test";
/// The route of a test message if no route has the sink.
const ROUTE: &str = "send-test";
/// Maximum time until the sink is reachable, as in `check --connect`.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);
/// Time after the sink's own timeout for the last outcome.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct SendTestArguments {
    /// A sink of the configuration
    sink: String,
    /// The payload as text; `test` by default; `-`: from standard input
    #[arg(long)]
    payload: Option<String>,
    /// `Name: value`; can be repeated
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    #[arg(long)]
    key: Option<String>,
    /// By default `application/json` for a payload that is JSON, otherwise `text/plain; charset=utf-8`
    #[arg(long)]
    content_type: Option<String>,
    /// The route that the message shows; by default the first one with this sink
    #[arg(long)]
    route: Option<String>,
}

/// The sink's answer.
struct Answer {
    reported: Reported,
    duration: Duration,
}

pub async fn run(global: &Global, arguments: SendTestArguments) -> Result<(), Failure> {
    let config = global.load()?;
    let name = arguments.sink.clone();
    let Some(settings) = config.sinks.get(&name) else {
        let known: Vec<&str> = config.sinks.keys().map(String::as_str).collect();
        let text = format!("the configuration has no sink `{name}`: it has {}", known.join(", "));
        return Err(Failure::NotFound(text));
    };
    let delivery = delivery(&config, arguments)?;
    let id = delivery.id.clone();
    let opened = settings.open().map_err(|error| Failure::Configuration(format!("sinks.{name}: {error}")))?;
    let Answer { reported, duration } = match opened {
        OpenSink::Sink(sink) => {
            let answer = send(&*sink, delivery).await;
            sink.stop();
            sink.close().await;
            answer
        }
        OpenSink::List { render, .. } => push(&config, &render, &delivery).await?,
    };
    let Reported { domain, outcome, reply, .. } = reported;
    let json = json!({
        "id": id.as_str(),
        "sink": name,
        "type": settings.kind(),
        "outcome": outcome.kind(),
        "duration_ms": u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        "status": reply.as_ref().map(|reply| reply.status),
        "destination": domain.as_deref(),
        "error": outcome.error(),
        "answer": reply.as_ref().map(|reply| &*reply.text).filter(|text| !text.is_empty()),
    });
    let text = fields(&json, &["id", "sink", "type", "outcome", "status", "duration_ms", "destination"]);
    output::result(global, json, text)?;
    match outcome {
        Outcome::Confirmed => Ok(()),
        _ => Err(Failure::Failed(format!("the sink `{name}` did not confirm the message"))),
    }
}

fn delivery(config: &Config, arguments: SendTestArguments) -> Result<Delivery, Failure> {
    let SendTestArguments { sink, payload, headers: given, key, content_type: named, route } = arguments;
    let payload = match payload.as_deref() {
        None => PAYLOAD.as_bytes().to_vec(),
        Some("-") => given_payload()?,
        Some(text) => text.as_bytes().to_vec(),
    };
    let mut metadata = Metadata {
        headers: Headers::from(headers(&given)?),
        key,
        content_type: named.or_else(|| content_type(&payload).map(str::to_owned)),
        ..Metadata::default()
    };
    metadata.headers.insert(TEST.to_owned(), "true".to_owned());
    metadata.validate().map_err(|(field, text)| Failure::Usage(format!("{field}: {text}")))?;
    let of_config = || config.routes.iter().find(|(_, route)| *route.sink == *sink).map(|(name, _)| name.clone());
    let route = route.or_else(of_config).unwrap_or_else(|| ROUTE.to_owned());
    Ok(Delivery {
        id: ulids()(),
        route: Arc::from(route),
        attempt: 1,
        due: now(),
        metadata,
        payload: payload.into(),
        send_until: None,
    })
}

#[expect(clippy::disallowed_methods, reason = "no Redis is asked for its clock")]
fn now() -> UnixMillis {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).ok().and_then(UnixMillis::new).unwrap_or_default()
}

fn failed(outcome: Outcome) -> Reported {
    Reported { index: 0, domain: None, outcome, reply: None }
}

fn unavailable(error: String) -> Reported {
    failed(Outcome::Unavailable { error })
}

async fn send(sink: &dyn Sink, delivery: Delivery) -> Answer {
    let started = Instant::now();
    let checked = timeout(CHECK_TIMEOUT, sink.check()).await;
    if let Err(error) = checked.unwrap_or_else(|_| Err(format!("no answer in {CHECK_TIMEOUT:?}"))) {
        return Answer { reported: unavailable(error), duration: started.elapsed() };
    }
    let started = Instant::now();
    let (report, mut outcomes) = Report::channel();
    let limit = sink.timeout() + REPORT_TIMEOUT;
    let sent = timeout(limit, async { tokio::join!(sink.send(vec![delivery], report), outcomes.recv()).1 }).await;
    let late = || failed(Outcome::Throttled { error: format!("no outcome in {limit:?}"), retry_after: None });
    Answer { reported: sent.ok().flatten().unwrap_or_else(late), duration: started.elapsed() }
}

/// Pushes to a list on the queue's own Redis.
async fn push(config: &Config, render: &Render, delivery: &Delivery) -> Result<Answer, Failure> {
    let started = Instant::now();
    let element = match render(delivery) {
        Ok(element) => element,
        Err(error) => {
            return Ok(Answer { reported: failed(Outcome::Unsendable { error }), duration: started.elapsed() });
        }
    };
    let (own, _) = open(config).await?.connection().map_err(Failure::Failed)?;
    let pushed: Result<u64, _> = own.run(redis::cmd("RPUSH").arg(&*element.list).arg(&element.value[..])).await;
    let outcome = pushed.map_or_else(|error| Outcome::Unavailable { error: error.to_string() }, |_| Outcome::Confirmed);
    let reported = Reported { domain: Some(element.list), ..failed(outcome) };
    Ok(Answer { reported, duration: started.elapsed() })
}
