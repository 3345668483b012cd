//! A list on another Redis than the queue's. RPUSH appends many messages in one command over a separate connection; its
//! reply confirms them.
//!
//! An error of a command (wrong type at the key, out of memory, read-only...) concerns the list or its server, never
//! one message. So the sink is unavailable and no message becomes a dead letter. If each message names its list, a
//! wrong type at a list fails only the messages of that list.

mod settings;

pub use self::settings::RedisListSettings;

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc, time::Duration, vec};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use redis::cmd;
use tokio::time::Instant;

use crate::sink::{Delivery, Report, Sink, envelope};
use crate::{
    sink::{
        Outcome,
        envelope::ListFormat,
        template::{Allow, Template},
    },
    store::{
        StoreError,
        redis::{
            check_list,
            connection::{Connection, NO_ANSWER, client},
        },
    },
};

/// Maximum messages of one command. A larger command is not faster.
const MAX_COMMAND_MESSAGES: usize = 500;
/// Maximum bytes of values in one command: it blocks Redis for milliseconds. A larger value goes alone.
const MAX_COMMAND_BYTES: usize = 4 * 1024 * 1024;
/// Maximum commands in flight: enough to use the connection fully, with few rendered values in memory.
const MAX_COMMANDS: usize = 4;
/// The lowest `proto-max-bulk-len` that Redis can be configured with: its limit of one value, in bytes. A smaller value
/// needs no check.
const LEAST_VALUE_LIMIT: usize = 1024 * 1024;
/// The default of `proto-max-bulk-len`, in bytes.
const DEFAULT_VALUE_LIMIT: usize = 512 * 1024 * 1024;

pub struct RedisListSink {
    connection: Connection,
    /// The address without secrets.
    address: String,
    key: Template,
    allow: Allow,
    format: ListFormat,
    timeout: Duration,
}

impl RedisListSink {
    /// `config` must name a server: the store itself moves messages to a list on the queue's Redis. Connects on first
    /// use.
    ///
    /// # Errors
    /// The setting that is invalid.
    pub fn new(config: &RedisListSettings) -> Result<Self, String> {
        let server = config.server().ok_or("a list on the Redis of the queue needs no sink")?;
        Ok(Self {
            connection: Connection::new(client(&server)?, config.timeout.0),
            address: server.url.to_string(),
            key: config.key.clone(),
            allow: config.allow.clone(),
            format: config.format,
            timeout: config.timeout.0,
        })
    }

    /// Groups a batch by list, in order. Reports messages with a list that is not allowed.
    fn by_list(&self, batch: Vec<Delivery>, report: &Report) -> BTreeMap<Arc<str>, Vec<(usize, Delivery)>> {
        let mut lists: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
        for (index, delivery) in batch.into_iter().enumerate() {
            match self.key.render_allowed(&self.allow, &delivery.route, &delivery.metadata) {
                Ok(key) => match lists.get_mut(&*key) {
                    Some(list) => list.push((index, delivery)),
                    None => drop(lists.insert(Cow::into_owned(key).into(), vec![(index, delivery)])),
                },
                Err(error) => report.outcome(index, Outcome::Unsendable { error }),
            }
        }
        lists
    }

    async fn push(&self, PushCommand { key, mut values }: PushCommand, deadline: Instant, report: &Report) {
        if values.iter().any(|value| value.bytes.len() > LEAST_VALUE_LIMIT) {
            let limit = self.value_limit().await;
            values.retain(|value| {
                let fits = value.bytes.len() <= limit;
                if !fits {
                    let error = format!("{} bytes exceed the limit of the destination: {limit}", value.bytes.len());
                    report.outcome(value.index, Outcome::Unsendable { error });
                }
                fits
            });
            if values.is_empty() {
                return;
            }
        }
        let mut command = cmd("RPUSH");
        command.arg(&*key);
        for value in &values {
            command.arg(value.bytes.as_ref());
        }
        // The deadline includes the wait of this command for its turn.
        let outcome = match self.connection.run_by::<u64>(&command, deadline).await {
            Ok(_length) => Outcome::Confirmed,
            Err(error @ StoreError::WrongType { .. }) if self.key.as_constant().is_none() => {
                Outcome::Failed { error: format!("list `{key}`: {error}"), retry_after: None }
            }
            Err(error) => failure(error),
        };
        for value in values {
            report.outcome(value.index, outcome.clone());
        }
    }

    /// Maximum bytes of a value; the default if the user is not allowed to read the configuration.
    async fn value_limit(&self) -> usize {
        let mut command = cmd("CONFIG");
        command.arg("GET").arg("proto-max-bulk-len");
        match self.connection.run::<Vec<String>>(&command).await {
            Ok(pair) => pair.get(1).and_then(|limit| limit.parse().ok()).unwrap_or(DEFAULT_VALUE_LIMIT),
            Err(_) => DEFAULT_VALUE_LIMIT,
        }
    }
}

#[async_trait]
impl Sink for RedisListSink {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let deadline = Instant::now() + self.timeout;
        let report = &report;
        let lists = self.by_list(batch, report);
        let commands = lists.into_iter().flat_map(|(key, deliveries)| PushCommands::new(key, deliveries, self.format));
        stream::iter(commands).for_each_concurrent(MAX_COMMANDS, |command| self.push(command, deadline, report)).await;
    }

    /// Checks that the user can push, and that the key is a list or does not exist. If the messages name the key, checks
    /// only the server and the right to the command.
    async fn check(&self) -> Result<(), String> {
        let with_address = |error: &dyn fmt::Display| format!("{}: {error}", self.address);
        let key = self.key.as_constant();
        check_list(&self.connection, key, false).await.map_err(|error| with_address(&error))?;
        let Some(key) = key else {
            return self.connection.run(&cmd("PING")).await.map_err(|error| with_address(&error));
        };
        match self.connection.run::<String>(cmd("TYPE").arg(key)).await {
            Ok(kind) if kind == "list" || kind == "none" => Ok(()),
            Ok(kind) => Err(format!("key `{key}` holds a {kind}, not a list")),
            Err(error) => Err(with_address(&error)),
        }
    }
}

fn failure(error: StoreError) -> Outcome {
    match error {
        StoreError::Unavailable { kind: NO_ANSWER, text } => Outcome::Throttled { error: text, retry_after: None },
        other => Outcome::Unavailable { error: other.to_string() },
    }
}

struct ListValue {
    /// Index of the message in its batch.
    index: usize,
    bytes: Bytes,
}

struct PushCommand {
    key: Arc<str>,
    values: Vec<ListValue>,
}

/// Renders the deliveries of one list into commands of bounded size.
struct PushCommands {
    key: Arc<str>,
    /// Each with its index in the batch.
    deliveries: vec::IntoIter<(usize, Delivery)>,
    format: ListFormat,
    /// A rendered value that exceeded the size of the previous command.
    carried: Option<ListValue>,
}

impl PushCommands {
    fn new(key: Arc<str>, deliveries: Vec<(usize, Delivery)>, format: ListFormat) -> Self {
        Self { key, deliveries: deliveries.into_iter(), format, carried: None }
    }

    fn render_next(&mut self) -> Option<ListValue> {
        let (index, delivery) = self.deliveries.next()?;
        Some(ListValue { index, bytes: envelope::render(self.format, &delivery) })
    }
}

impl Iterator for PushCommands {
    type Item = PushCommand;

    fn next(&mut self) -> Option<PushCommand> {
        let first = self.carried.take().or_else(|| self.render_next())?;
        let mut bytes = first.bytes.len();
        let mut values = vec![first];
        while values.len() < MAX_COMMAND_MESSAGES
            && let Some(value) = self.render_next()
        {
            bytes += value.bytes.len();
            if bytes > MAX_COMMAND_BYTES {
                self.carried = Some(value);
                break;
            }
            values.push(value);
        }
        Some(PushCommand { key: Arc::clone(&self.key), values })
    }
}

#[cfg(test)]
mod tests {
    use punctual_model::{LinkFaults, Reply};

    use super::*;
    use crate::{
        message::{MessageId, Metadata},
        sink::template::Place,
        store::redis::simulated::Simulated,
        time::UnixMillis,
    };

    /// Sizes of the values of each command, for payloads of these sizes.
    fn split(sizes: &[usize]) -> Vec<Vec<usize>> {
        let delivery = |size: &usize| Delivery {
            id: MessageId::parse("m").unwrap(),
            route: "r".into(),
            attempt: 1,
            due: UnixMillis::default(),
            metadata: Metadata::default(),
            payload: vec![0; *size].into(),
            send_until: None,
        };
        let batch: Vec<_> = sizes.iter().map(delivery).enumerate().collect();
        let commands = PushCommands::new("jobs".into(), batch, ListFormat::Payload);
        let commands: Vec<Vec<ListValue>> = commands.map(|command| command.values).collect();
        let indices: Vec<usize> = commands.iter().flatten().map(|value| value.index).collect();
        assert_eq!(indices, (0..sizes.len()).collect::<Vec<_>>());
        commands.iter().map(|values| values.iter().map(|value| value.bytes.len()).collect()).collect()
    }

    #[test]
    fn commands_are_bounded_in_count_and_bytes_and_keep_the_order() {
        let lengths: Vec<usize> = split(&[1; 1201]).iter().map(Vec::len).collect();
        assert_eq!(lengths, [500, 500, 201]);
        let half = MAX_COMMAND_BYTES / 2;
        assert_eq!(split(&[half, half, 1, 3 * half, half]), [vec![half, half], vec![1], vec![3 * half], vec![half]]);
        assert!(split(&[]).is_empty());
    }

    /// A sink to lists of a model of Redis, and the outcomes of a batch.
    async fn sent(key: &str, redis: &Simulated, batch: Vec<Delivery>) -> Vec<Outcome> {
        sent_by(&sink(key, redis), batch).await
    }

    async fn sent_by(sink: &RedisListSink, batch: Vec<Delivery>) -> Vec<Outcome> {
        let (report, mut outcomes) = Report::channel();
        let count = batch.len();
        sink.send(batch, report).await;
        let mut all: Vec<_> = (0..count).map(|_| outcomes.try_recv().expect("an outcome for each")).collect();
        all.sort_by_key(|one| one.index);
        assert!(outcomes.try_recv().is_err() && all.iter().enumerate().all(|(n, one)| one.index == n));
        all.into_iter().map(|one| one.outcome).collect()
    }

    fn sink(key: &str, redis: &Simulated) -> RedisListSink {
        RedisListSink {
            connection: redis.connection(),
            address: "redis://other".to_owned(),
            key: Template::parse(key, Place::ListKey { key_prefix: "".into() }).unwrap(),
            allow: Allow::new(["list*"]).unwrap(),
            format: ListFormat::Payload,
            timeout: Duration::from_secs(2),
        }
    }

    fn delivery(key: Option<&str>, size: usize) -> Delivery {
        Delivery {
            id: MessageId::parse("m").unwrap(),
            route: "r".into(),
            attempt: 1,
            due: UnixMillis::default(),
            metadata: Metadata { key: key.map(str::to_owned), ..Metadata::default() },
            payload: vec![b'x'; size].into(),
            send_until: None,
        }
    }

    fn length(redis: &Simulated, list: &str) -> Reply {
        redis.server.execute(&[b"LLEN".to_vec(), list.as_bytes().to_vec()])
    }

    #[tokio::test(start_paused = true)]
    async fn each_message_has_the_outcome_of_its_list() {
        let redis = Simulated::start([]).await;
        redis.execute(&["SET", "list:text", "x"]);
        let keys = ["1", "2", "1", "text", "1/../2"];
        let batch = keys.map(|key| delivery(Some(key), 5)).into();
        let outcomes = sent("list:{key}", &redis, batch).await;
        assert_eq!(outcomes[..3], [Outcome::Confirmed, Outcome::Confirmed, Outcome::Confirmed]);
        assert!(matches!(&outcomes[3], Outcome::Failed { error, .. } if error.starts_with("list `list:text`")));
        assert_eq!([length(&redis, "list:1"), length(&redis, "list:2")], [Reply::Int(2), Reply::Int(1)]);
        // With one list a wrong type concerns all messages.
        let outcomes = sent("list:text", &redis, vec![delivery(None, 1)]).await;
        assert!(matches!(outcomes[..], [Outcome::Unavailable { .. }]), "{outcomes:?}");
        let outcomes = sent("other:{key}", &redis, vec![delivery(Some("1"), 1)]).await;
        assert!(matches!(outcomes[..], [Outcome::Unsendable { .. }]), "{outcomes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_beyond_the_limit_of_the_server_cannot_be_sent() {
        let redis = Simulated::start([]).await;
        let asked = Arc::new(parking_lot::Mutex::new(0));
        let count = asked.clone();
        let limit = LEAST_VALUE_LIMIT + 100;
        redis.server.reply_with(move |command| {
            (command[0] == "CONFIG").then(|| {
                *count.lock() += 1;
                Reply::Array(vec![Reply::bulk("proto-max-bulk-len"), Reply::bulk(limit.to_string())])
            })
        });
        let small = [LEAST_VALUE_LIMIT, 1].map(|size| delivery(None, size)).into();
        assert_eq!(sent("list", &redis, small).await, [Outcome::Confirmed, Outcome::Confirmed]);
        assert_eq!(*asked.lock(), 0);
        let batch = [limit, limit + 1, 1].map(|size| delivery(None, size)).into();
        let outcomes = sent("list", &redis, batch).await;
        let error = format!("{} bytes exceed the limit of the destination: {limit}", limit + 1);
        assert_eq!(outcomes, [Outcome::Confirmed, Outcome::Unsendable { error }, Outcome::Confirmed]);
        assert_eq!((*asked.lock(), length(&redis, "list")), (1, Reply::Int(4)));
        redis.server.reply_with(|command| (command[0] == "CONFIG").then(|| Reply::error("NOPERM")));
        assert_eq!(sent("list", &redis, vec![delivery(None, limit + 1)]).await, [Outcome::Confirmed]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_silent_or_refuses_is_not_the_fault_of_a_message() {
        let redis = Simulated::start([]).await;
        redis.server.reply_with(|command| (command[0] == "RPUSH").then(|| Reply::error("OOM command not allowed")));
        let outcomes = sent("list", &redis, vec![delivery(None, 1)]).await;
        assert!(matches!(outcomes[..], [Outcome::Unavailable { .. }]), "{outcomes:?}");
        redis.server.reply_with(|_| None);
        let silent = sink("list", &redis);
        redis.links.set_faults(LinkFaults { silence: 1.0, ..LinkFaults::default() });
        // The link is silent after this one.
        assert_eq!(sent_by(&silent, vec![delivery(None, 1)]).await, [Outcome::Confirmed]);
        let began = Instant::now();
        let outcomes = sent_by(&silent, vec![delivery(None, 1)]).await;
        assert!(matches!(outcomes[..], [Outcome::Throttled { .. }]), "{outcomes:?}");
        assert!(began.elapsed() > Duration::ZERO && began.elapsed() <= silent.timeout());
        redis.links.set_faults(LinkFaults { down: true, ..LinkFaults::default() });
        let began = Instant::now();
        let outcomes = sent("list", &redis, vec![delivery(None, 1)]).await;
        assert!(matches!(outcomes[..], [Outcome::Unavailable { .. }]), "{outcomes:?}");
        assert!(began.elapsed() <= Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_names_a_key_of_another_type() {
        let redis = Simulated::start([]).await;
        assert_eq!(sink("list", &redis).check().await, Ok(()));
        redis.execute(&["RPUSH", "list", "x"]);
        assert_eq!(sink("list", &redis).check().await, Ok(()));
        redis.execute(&["SET", "list:text", "x"]);
        assert_eq!(
            sink("list:text", &redis).check().await,
            Err("key `list:text` holds a string, not a list".to_owned())
        );
        assert_eq!(sink("list:{key}", &redis).check().await, Ok(()));
        redis.server.reply_with(|command| (command[0] == "PING").then(|| Reply::error("MASTERDOWN")));
        let error = sink("list:{key}", &redis).check().await.unwrap_err();
        assert!(error.starts_with("redis://other: "), "{error}");
    }
}
