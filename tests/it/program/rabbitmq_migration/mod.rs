//! From a broker with the delayed-message exchange plugin to one without it: what `punctual migrate rabbitmq` writes is
//! imported and run.

mod clients;
mod commands;
mod latency;
mod topology;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use lapin::{
    BasicProperties,
    message::Delivery,
    options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use tempfile::TempDir;
use tokio::{
    sync::{Mutex, MutexGuard, OnceCell},
    time::timeout,
};

use crate::support::{
    RabbitMq,
    command::{self, Ended},
    port::Port,
    punctual::Punctual,
    receiver::wall_clock,
};

/// Maximum wait for any event, on a busy machine.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// The old broker: five delayed exchanges in two virtual hosts, as RabbitMQ 3.10 with the plugin exports them.
const OLD: &str = include_str!("old.json");
const PASSWORD: &str = "a secret of the tests";

/// A broker onto which the old definitions were migrated, and where what the command wrote is.
struct Migrated {
    broker: RabbitMq,
    management: Port,
    directory: TempDir,
}

impl Migrated {
    /// The broker of the tests that leave it as it is. They use it in sequence.
    async fn shared() -> MutexGuard<'static, Self> {
        static MIGRATED: OnceCell<Mutex<Migrated>> = OnceCell::const_new();
        MIGRATED.get_or_init(|| async { Mutex::new(Self::start().await) }).await.lock().await
    }

    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("old.json"), OLD).expect("written");
        let management = Port::reserve();
        let settings = format!("management.tcp.port = {}\nmanagement.tcp.ip = 127.0.0.1\n", management.number());
        let broker = RabbitMq::start_with_plugins("rabbitmq_management,rabbitmq_amqp1_0", &settings).await;
        let migrated = Self { broker, management, directory };
        let ended = migrated.migrate(&["--out", "new"]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        // On a broker without the plugin it only imports.
        migrated.broker.script(&migrated.path("new/cutover.sh"), &[]).await;
        migrated
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn migrate(&self, arguments: &[&str]) -> Ended {
        let environment = [("PUNCTUAL_RABBITMQ_PASSWORD", PASSWORD), ("PUNCTUAL_MANAGEMENT_PASSWORD", "guest")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let arguments = [&["migrate", "rabbitmq", "old.json"], arguments].concat();
        command::run(self.directory.path(), &environment, &arguments, b"").await
    }

    /// As the written configuration has it, with a Redis of its own.
    async fn punctual(&self) -> Punctual {
        let yaml = std::fs::read_to_string(self.path("new/punctual.yaml")).expect("written");
        let url = format!("amqp://127.0.0.1:{}", self.broker.port());
        let environment = [
            ("PUNCTUAL_RABBITMQ_URL", &*url),
            ("PUNCTUAL_RABBITMQ_PASSWORD", PASSWORD),
            ("PUNCTUAL_REDIS_URL", "embedded"),
        ];
        Punctual::start_with(&yaml, &environment).await
    }

    /// Publishes to an exchange of `/`, persistent, and waits for the confirm.
    async fn publish(&self, exchange: &str, key: &str, properties: BasicProperties) {
        let channel = self.broker.channel().await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let (options, properties) = (BasicPublishOptions::default(), properties.with_delivery_mode(2));
        channel.basic_publish(exchange.into(), key.into(), options, b"body", properties).await.unwrap();
        channel.wait_for_confirms().await.unwrap();
    }

    /// The next `count` messages of a queue of `/`, each with the time when it came, epoch milliseconds.
    async fn consume(&self, queue: &str, count: usize) -> Vec<(u64, Delivery)> {
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let channel = self.broker.channel().await;
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await.unwrap();
        let got = consumer.take(count).map(|message| (wall_clock(), message.unwrap()));
        timeout(MAX_WAIT, got.collect()).await.unwrap_or_else(|_| panic!("{count} messages arrive in {queue}"))
    }
}

fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn client(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
