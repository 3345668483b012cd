//! A list on another Redis than that of the queue: messages are appended by RPUSH over a connection of its
//! own, many in one command, and confirmed by its reply.
//!
//! Whatever keeps that Redis from taking a command (wrong type at the key, out of memory, read-only...)
//! concerns the destination and never one message, so it makes the sink unavailable and nothing dead. Only where
//! each message names its list is a wrong type at one of them a failure of those messages: the others go on.

mod settings;

pub use self::settings::RedisListSettings;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration, vec};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use redis::cmd;
use tokio::time::{Instant, timeout_at};

use crate::sink::{Delivery, Report, Sink, envelope};
use crate::{
    sink::{
        Outcome,
        envelope::ListFormat,
        template::{Allow, Template},
    },
    store::{
        StoreError,
        redis::connection::{Connection, NO_ANSWER, client},
    },
};

/// Messages in one command: past a few hundred a larger command saves nothing.
const MAX_COMMAND_MESSAGES: usize = 500;
/// Bytes of values in one command, so that it blocks Redis for milliseconds only; a larger value goes alone.
const MAX_COMMAND_BYTES: usize = 4 * 1024 * 1024;
/// Commands under way at once: enough to keep the line busy, and few values rendered at a time.
const MAX_COMMANDS: usize = 4;
/// The lowest limit of one value that Redis can be set to (`proto-max-bulk-len`): below, nobody need ask.
const LEAST_VALUE_LIMIT: usize = 1024 * 1024;
/// The limit of a Redis that was not set to another.
const DEFAULT_VALUE_LIMIT: usize = 512 * 1024 * 1024;

pub struct RedisListSink {
    connection: Connection,
    /// As it may be shown.
    address: String,
    key: Template,
    allow: Allow,
    format: ListFormat,
    timeout: Duration,
}

impl RedisListSink {
    /// `config` must name a server: into a list on the queue's own Redis leads a transition of the store.
    ///
    /// # Errors
    /// Which setting cannot be used; nothing is connected yet.
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

    /// The batch by its lists, in its order within each; what may not go to its list is rejected.
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

    async fn push(&self, Push { key, mut values }: Push, deadline: Instant, report: &Report) {
        if values.iter().any(|value| value.bytes.len() > LEAST_VALUE_LIMIT) {
            let limit = self.value_limit().await;
            values.retain(|value| {
                let fits = value.bytes.len() <= limit;
                if !fits {
                    let error = format!("{} bytes are more than the destination takes: {limit}", value.bytes.len());
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
        // The connection has a bound of its own, but this command may have waited for its turn.
        let outcome = match timeout_at(deadline, self.connection.run::<u64>(&command)).await {
            Ok(Ok(_length)) => Outcome::Confirmed,
            Ok(Err(error @ StoreError::WrongType { .. })) if self.key.as_constant().is_none() => {
                Outcome::Failed { error: format!("list `{key}`: {error}"), retry_after: None }
            }
            Ok(Err(error)) => failure(error),
            Err(_) => {
                let error = format!("no answer within {:?}", self.timeout);
                Outcome::Throttled { error, retry_after: None }
            }
        };
        for value in values {
            report.outcome(value.index, outcome.clone());
        }
    }

    /// Bytes of the largest value. A Redis that keeps its configuration to itself has the default, we assume.
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
        let commands = lists.into_iter().flat_map(|(key, deliveries)| Commands::new(key, deliveries, self.format));
        stream::iter(commands).for_each_concurrent(MAX_COMMANDS, |command| self.push(command, deadline, report)).await;
    }

    /// Asks for the type of the key: a list, or nothing yet. Where the messages name it, only the server answers.
    async fn check(&self) -> Result<(), String> {
        let with_address = |error: StoreError| format!("{}: {error}", self.address);
        let Some(key) = self.key.as_constant() else {
            return self.connection.run(&cmd("PING")).await.map_err(with_address);
        };
        match self.connection.run::<String>(cmd("TYPE").arg(key)).await {
            Ok(kind) if kind == "list" || kind == "none" => Ok(()),
            Ok(kind) => Err(format!("key `{key}` holds a {kind}, not a list")),
            Err(error) => Err(with_address(error)),
        }
    }
}

fn failure(error: StoreError) -> Outcome {
    match error {
        StoreError::Unavailable { kind: NO_ANSWER, text } => Outcome::Throttled { error: text, retry_after: None },
        other => Outcome::Unavailable { error: other.to_string() },
    }
}

/// One list element, and the place of its message in the batch.
struct Value {
    index: usize,
    bytes: Bytes,
}

/// One command.
struct Push {
    key: Arc<str>,
    values: Vec<Value>,
}

/// Cuts what goes to one list into what one command takes, rendering as it goes.
struct Commands {
    key: Arc<str>,
    /// Each with its place in the batch.
    deliveries: vec::IntoIter<(usize, Delivery)>,
    format: ListFormat,
    /// Rendered, but did not fit into the command before.
    carried: Option<Value>,
}

impl Commands {
    fn new(key: Arc<str>, deliveries: Vec<(usize, Delivery)>, format: ListFormat) -> Self {
        Self { key, deliveries: deliveries.into_iter(), format, carried: None }
    }

    fn render_next(&mut self) -> Option<Value> {
        let (index, delivery) = self.deliveries.next()?;
        Some(Value { index, bytes: envelope::render(self.format, &delivery) })
    }
}

impl Iterator for Commands {
    type Item = Push;

    fn next(&mut self) -> Option<Push> {
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
        Some(Push { key: Arc::clone(&self.key), values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        message::{MessageId, Metadata},
        time::UnixMillis,
    };

    /// Counts and sizes of the commands for payloads of these sizes.
    fn cut(sizes: &[usize]) -> Vec<Vec<usize>> {
        let delivery = |size: &usize| Delivery {
            id: MessageId::parse("m").unwrap(),
            route: "r".into(),
            attempt: 1,
            due: UnixMillis::default(),
            metadata: Metadata::default(),
            payload: vec![0; *size].into(),
        };
        let batch: Vec<_> = sizes.iter().map(delivery).enumerate().collect();
        let commands = Commands::new("jobs".into(), batch, ListFormat::Payload);
        let commands: Vec<Vec<Value>> = commands.map(|push| push.values).collect();
        let indices: Vec<usize> = commands.iter().flatten().map(|value| value.index).collect();
        assert_eq!(indices, (0..sizes.len()).collect::<Vec<_>>());
        commands.iter().map(|values| values.iter().map(|value| value.bytes.len()).collect()).collect()
    }

    #[test]
    fn commands_are_bounded_in_count_and_bytes_and_keep_the_order() {
        let lengths: Vec<usize> = cut(&[1; 1201]).iter().map(Vec::len).collect();
        assert_eq!(lengths, [500, 500, 201]);
        let half = MAX_COMMAND_BYTES / 2;
        assert_eq!(cut(&[half, half, 1, 3 * half, half]), [vec![half, half], vec![1], vec![3 * half], vec![half]]);
        assert!(cut(&[]).is_empty());
    }
}
