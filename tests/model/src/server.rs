//! A server: commands, scripts, its clock, and the faults of both.

mod links;

use std::sync::{Arc, atomic::AtomicU64};

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use crate::{commands, keyspace::Keyspace, scripts::Scripts, value::Reply};

pub use self::links::{LinkFaults, Links};

/// State that scripts reach while they run.
pub struct Host {
    keyspace: Keyspace,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Added to the clock, in microseconds.
    step: i64,
    /// While a script runs: the number of its commands so far.
    commands: u32,
    /// Number of the command of the running script that fails, from 1.
    fails_at: Option<u32>,
    subscribers: Vec<Subscriber>,
    loses_messages: bool,
    steps: u64,
    failed: u64,
}

struct Subscriber {
    link: u64,
    /// With SSUBSCRIBE.
    is_sharded: bool,
    channel: Vec<u8>,
    messages: UnboundedSender<Reply>,
}

/// Numbers of scripts, commands in scripts, and injected errors so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub scripts: u64,
    pub commands: u64,
    pub failed: u64,
}

impl Host {
    /// Microseconds since the epoch.
    fn now(&self) -> u64 {
        (self.clock)().saturating_add_signed(self.step)
    }

    pub fn begin_script(&mut self) {
        self.keyspace.begin();
        self.commands = 0;
    }

    /// Returns the number of commands of the script.
    pub fn end_script(&mut self) -> u32 {
        self.fails_at = None;
        self.commands
    }

    pub fn execute_in_script(&mut self, command: &[Vec<u8>]) -> Reply {
        self.commands += 1;
        self.steps += 1;
        if self.fails_at == Some(self.commands) {
            self.failed += 1;
            return Reply::error("ERR injected");
        }
        self.execute(command).unwrap_or_else(|| Reply::error("ERR Unknown Redis command called from script"))
    }

    fn execute(&mut self, command: &[Vec<u8>]) -> Option<Reply> {
        let name = command.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        match (&name[..], &command[1.min(command.len())..]) {
            (b"TIME", []) => {
                let now = self.now();
                let part = |number: u64| Reply::bulk(number.to_string());
                Some(Reply::Array(vec![part(now / 1_000_000), part(now % 1_000_000)]))
            }
            (b"PUBLISH", [channel, message]) => Some(Reply::count(self.publish(channel, message, false))),
            (b"SPUBLISH", [channel, message]) => Some(Reply::count(self.publish(channel, message, true))),
            (b"PUBLISH" | b"SPUBLISH", _) => Some(commands::wrong_number("publish")),
            _ => commands::run(&mut self.keyspace, command),
        }
    }

    /// Returns the number of subscriptions.
    fn publish(&mut self, channel: &[u8], message: &[u8], is_sharded: bool) -> usize {
        if self.loses_messages {
            return 0;
        }
        let kind = if is_sharded { &b"smessage"[..] } else { b"message" };
        let parts = [kind, channel, message].map(Reply::bulk);
        self.subscribers.retain(|one| !one.messages.is_closed());
        let of_channel = self.subscribers.iter().filter(|one| one.channel == channel && one.is_sharded == is_sharded);
        of_channel.filter(|one| one.messages.send(Reply::Array(parts.to_vec())).is_ok()).count()
    }
}

/// Replies to commands that a test gives.
type Replies = Box<dyn Fn(&[String]) -> Option<Reply> + Send>;

/// One server with one database.
pub struct Server {
    host: Arc<Mutex<Host>>,
    scripts: Mutex<Running>,
    replies: Mutex<Option<Replies>>,
    /// Number of links that were made.
    links: AtomicU64,
}

struct Running {
    scripts: Scripts,
    count: u64,
}

impl Server {
    /// `clock`: microseconds since the epoch.
    pub fn new(clock: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Self> {
        let host = Arc::new(Mutex::new(Host {
            keyspace: Keyspace::default(),
            clock: Box::new(clock),
            step: 0,
            commands: 0,
            fails_at: None,
            subscribers: Vec::new(),
            loses_messages: false,
            steps: 0,
            failed: 0,
        }));
        let scripts = Mutex::new(Running { scripts: Scripts::new(&host), count: 0 });
        Arc::new(Self { host, scripts, replies: Mutex::default(), links: AtomicU64::new(0) })
    }

    /// Microseconds since the epoch.
    pub fn now(&self) -> u64 {
        self.host.lock().now()
    }

    /// Steps the clock.
    pub fn step_clock(&self, micros: i64) {
        self.host.lock().step += micros;
    }

    /// Reads or changes keys. Signals nothing.
    pub fn keys<T>(&self, with: impl FnOnce(&mut Keyspace) -> T) -> T {
        let mut host = self.host.lock();
        host.keyspace.begin();
        with(&mut host.keyspace)
    }

    /// Commands outside of scripts, such as INFO, get these replies. `None`: that of the model.
    pub fn reply_with(&self, replies: impl Fn(&[String]) -> Option<Reply> + Send + 'static) {
        *self.replies.lock() = Some(Box::new(replies));
    }

    /// Messages to channels are lost from now on, or are not.
    pub fn lose_messages(&self, lost: bool) {
        self.host.lock().loses_messages = lost;
    }

    pub fn counts(&self) -> Counts {
        let scripts = self.scripts.lock().count;
        let host = self.host.lock();
        Counts { scripts, commands: host.steps, failed: host.failed }
    }

    /// Runs one command.
    pub fn execute(&self, command: &[Vec<u8>]) -> Reply {
        self.execute_failing(command, |_| None)
    }

    /// Runs one command. `fails_at` is called for a script with the number of commands in its last run, and returns the
    /// number of the command that fails.
    pub fn execute_failing(&self, command: &[Vec<u8>], fails_at: impl FnOnce(u32) -> Option<u32>) -> Reply {
        let Some((name, arguments)) = command.split_first() else { return Reply::error("ERR empty command") };
        if let Some(reply) = self.given(command) {
            return reply;
        }
        match (&name.to_ascii_uppercase()[..], arguments) {
            (b"EVALSHA", [sha, number, rest @ ..]) => {
                let sha = String::from_utf8_lossy(sha).to_lowercase();
                self.evaluate(&sha, number, rest, fails_at)
            }
            (b"EVAL", [code, number, rest @ ..]) => {
                let sha = self.scripts.lock().scripts.load(code);
                self.evaluate(&sha, number, rest, fails_at)
            }
            (b"SCRIPT", [sub, rest @ ..]) => self.script(&sub.to_ascii_uppercase(), rest),
            (b"PING", []) => Reply::Status("PONG".into()),
            (b"CLIENT" | b"SELECT", _) => Reply::ok(),
            _ => {
                let mut host = self.host.lock();
                host.keyspace.begin();
                let unknown = || Reply::error(format!("ERR unknown command '{}'", String::from_utf8_lossy(name)));
                host.execute(command).unwrap_or_else(unknown)
            }
        }
    }

    /// The reply that a test gives.
    fn given(&self, command: &[Vec<u8>]) -> Option<Reply> {
        let replies = self.replies.lock();
        let words = command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
        replies.as_ref().and_then(|replies| replies(&words.collect::<Vec<_>>()))
    }

    fn script(&self, sub: &[u8], arguments: &[Vec<u8>]) -> Reply {
        let mut running = self.scripts.lock();
        match (sub, arguments) {
            (b"LOAD", [code]) => Reply::bulk(running.scripts.load(code).as_bytes()),
            (b"FLUSH", []) => {
                running.scripts.flush();
                Reply::ok()
            }
            (b"EXISTS", names) => {
                let known = |name: &Vec<u8>| running.scripts.is_loaded(&String::from_utf8_lossy(name));
                Reply::Array(names.iter().map(|name| Reply::flag(known(name))).collect())
            }
            _ => Reply::error("ERR unknown subcommand"),
        }
    }

    fn evaluate(&self, sha: &str, number: &[u8], rest: &[Vec<u8>], fails_at: impl FnOnce(u32) -> Option<u32>) -> Reply {
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse::<usize>().ok());
        let Some(number) = number.filter(|number| *number <= rest.len()) else {
            return Reply::error("ERR Number of keys can't be greater than number of args");
        };
        let mut running = self.scripts.lock();
        running.count += 1;
        self.host.lock().fails_at = fails_at(running.scripts.commands(sha));
        let (keys, arguments) = rest.split_at(number);
        running.scripts.run(sha, keys, arguments, &self.host)
    }

    /// Keeps the writes from now on, so that a fail-over can drop the last ones.
    pub fn keep_journal(&self) {
        self.host.lock().keyspace.keep_journal();
    }

    /// Another server takes over, which misses the writes of the last `count` commands and scripts that wrote, and which
    /// knows no script. Returns how many were dropped.
    pub fn fail_over(&self, count: usize) -> usize {
        self.scripts.lock().scripts.flush();
        self.host.lock().keyspace.drop_last(count)
    }

    /// Returns how many channels of this kind the link has.
    fn subscribe(&self, link: u64, channel: &[u8], is_sharded: bool, messages: &UnboundedSender<Reply>) -> usize {
        let subscriber = Subscriber { link, is_sharded, channel: channel.to_vec(), messages: messages.clone() };
        let count = self.unsubscribe(link, channel, is_sharded);
        self.host.lock().subscribers.push(subscriber);
        count + 1
    }

    fn unsubscribe(&self, link: u64, channel: &[u8], is_sharded: bool) -> usize {
        let subscribers = &mut self.host.lock().subscribers;
        let is_of_link = |one: &Subscriber| one.link == link && one.is_sharded == is_sharded;
        subscribers.retain(|one| !is_of_link(one) || one.channel != channel);
        subscribers.iter().filter(|one| is_of_link(one)).count()
    }

    fn end_link(&self, link: u64) {
        self.host.lock().subscribers.retain(|one| one.link != link);
    }
}
