//! Messages that enter over a source, or by `produce.lua`.

use std::{sync::LazyLock, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    calls::{Draft, Heard, Request, Times},
    clients::Clients,
    clock,
    history::{Answer, Call, NO_INSTANCE, Operation},
    oracle::Life,
    payload,
    producers::{Input, Known, connection, is_refusal},
    random::Random,
};
use crate::support::receiver::wall_clock;

const SCRIPT: &str = include_str!("../../../lua/produce.lua");
static PRODUCE: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SCRIPT));
/// In milliseconds.
const MAX_DELAY: u64 = 6000;
const MAX_REPEAT: Duration = Duration::from_secs(25);
const ANSWER: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

/// A call of `produce.lua`.
pub struct Production {
    route: &'static str,
    id: String,
    /// As the script takes it.
    due: String,
    options: String,
}

impl Draft<'_> {
    /// Schedules it with `produce.lua`.
    pub fn production(self, times: Times) -> Request {
        let Self { route, id, version, flow, group, .. } = self;
        let mut options = json!({ "headers": { "X-Version": version.to_string() } });
        if let Some(flow) = flow {
            options[super::routes::flow_field(route)] = flow.into();
        }
        if let Some(group) = group {
            options["group"] = group.into();
        }
        let due = times.deliver_at.map_or_else(|| format!("+{}", times.delay), |at| at.to_string());
        let production = Production { route, id: id.to_owned(), due, options: options.to_string() };
        let method = reqwest::Method::POST;
        let request = Request::new(Operation::Schedule, method, String::new(), payload::of(id, version), times);
        Request { version, production: Some(production), ..request }
    }
}

impl Clients {
    /// Calls the script on the first of the servers that takes writes. The answer has the form of the API.
    pub async fn produce(&self, production: &Production, payload: &str) -> Heard {
        let mut heard = Heard::Refused;
        let Some(tag) = self.tag(production).await else { return heard };
        for port in self.writers.ports().await {
            let Some(mut link) = connection(port).await else { continue };
            let produced = timeout(ANSWER, produce(&mut link, &tag, production, payload)).await;
            heard = match produced {
                Ok(Ok((status, due))) => match self.producers.replicated(&mut link, &tag).await {
                    Known::Confirmed => Heard::Status(200, json!({ "status": status, "deliver_at": due }).to_string()),
                    Known::Refused => Heard::Refused,
                    Known::Unknown(error) => Heard::Silence(error),
                },
                // The route has another number of partitions now.
                Ok(Err(error)) if is_refusal(&error) || error.to_string().contains("wrong-partition") => Heard::Refused,
                Ok(Err(error)) if error.to_string().contains("PUNCTUAL") => Heard::Status(500, error.to_string()),
                Ok(Err(error)) => Heard::Silence(error.to_string()),
                Err(_) => Heard::Silence("no answer".into()),
            };
            if !matches!(heard, Heard::Refused) {
                break;
            }
        }
        heard
    }

    /// The hash tag of the partition. `None`: no server tells the number of partitions.
    async fn tag(&self, Production { route, id, .. }: &Production) -> Option<String> {
        for port in self.writers.ports().await {
            let Some(mut link) = connection(port).await else { continue };
            let mut question = redis::cmd("HGET");
            question.arg("punctual:routes").arg(route);
            // Another server of a cluster has the key.
            let Ok(Ok(registered)) = timeout(ANSWER, question.query_async::<Option<String>>(&mut link)).await else {
                continue;
            };
            let registered: Value = registered.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            let count = registered["partitions"].as_u64().unwrap_or(1);
            let index = u64::from(crc32fast::hash(id.as_bytes())) % count;
            return Some(format!("{{punctual:{route}:{index}/{count}}}"));
        }
        None
    }

    /// The life of a message that a producer gives to a source. A member of a sorted set is added once: a second one would be
    /// another message.
    pub async fn live_at_source(&self, number: u64, mut random: Random) {
        let route = random.pick(self.sources());
        let id = format!("{}-{number}-0", self.prefix());
        self.oracle.begin(&id, Life { is_from_source: true, ..Life::of(route) });
        let due = clock::now() + random.between(0, MAX_DELAY);
        // The library writes whole seconds.
        let due = if route == "from-library" { due / 1000 * 1000 } else { due };
        let text = payload::of(&id, 1);
        let input = Input { id: &id, payload: &text, due };
        let deadline = Instant::now() + MAX_REPEAT;
        loop {
            let called = wall_clock();
            let known = self.producers.send(route, &input).await;
            let answered = wall_clock();
            let (answer, kind) = match known {
                Known::Confirmed => (Answer::Done { due }, "done"),
                Known::Refused => (Answer::Nothing("not sent".into()), "nothing"),
                Known::Unknown(error) => (Answer::Unknown(error), "unknown"),
            };
            let is_open = match answer {
                Answer::Done { .. } => false,
                Answer::Nothing(_) => true,
                // It has an id of the producer.
                Answer::Unknown(_) => route == "from-rabbitmq",
            };
            self.count(&format!("{route}: {kind}"));
            let operation = Operation::Schedule;
            let instance = NO_INSTANCE;
            let call = Call { operation, version: 1, not_before: due, instance, called, answered, answer };
            self.oracle.record(&id, call);
            if !is_open || Instant::now() > deadline {
                return;
            }
            sleep(PAUSE).await;
        }
    }
}

/// Status and due time.
async fn produce(
    link: &mut redis::aio::MultiplexedConnection,
    tag: &str,
    production: &Production,
    payload: &str,
) -> redis::RedisResult<(String, String)> {
    let Production { id, due, options, .. } = production;
    let mut call = PRODUCE.prepare_invoke();
    call.key(format!("{tag}:pending")).arg(1).arg(id).arg(due).arg(payload).arg(options);
    let (status, _, due): (String, String, i64) = call.invoke_async(link).await?;
    Ok((status, jiff::Timestamp::from_millisecond(due).expect("a time").to_string()))
}
